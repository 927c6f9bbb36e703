"""Speculative decoding without a KV cache of its own (ngram, suffix): drafts come and go, and no source names one.

vLLM 0.32 schedules these methods synchronously. Runner V1 takes computed counts from the scheduler, which takes
rejected drafts back before anybody looks.
"""

from __future__ import annotations

from dataclasses import replace

import pytest

from acmserve.engine.requests import served_source
from tests.support.simulator.failure import SimulationFailure
from tests.support.simulator.machine import Factory
from tests.support.simulator.report import Report
from tests.support.simulator.scripts import Script, random_script
from tests.support.simulator.simulation import Simulation
from tests.support.simulator.suite import seeds

NUM_DRAFTS = 3


def drafting(seed: int) -> Script:
    """A script whose machine has room for the drafts of a step."""
    script = random_script(seed, async_scheduling=False, runner_v2=False, acmserve=True)
    machine = replace(script.machine, num_drafts=NUM_DRAFTS, num_blocks=script.machine.num_blocks + 2)
    return replace(script, machine=machine)


def test_engine_passes_every_script(factory: Factory) -> None:
    report, num_accepted, num_rejected = Report(), 0, 0
    for seed in seeds(40):
        simulation = Simulation(drafting(seed), factory)
        report += simulation.run()
        num_accepted += simulation.worker.num_accepted
        num_rejected += simulation.worker.num_rejected
    assert num_accepted > 400
    assert num_rejected > 400
    assert report.num_preemptions > 40
    assert report.num_moved_requests > 40
    assert report.num_turned_tokens > 1200
    assert {"None", "kv_cache_full", "source_evicted", "forgotten"} <= set(report.fallback_reasons)


def test_a_source_that_names_drafts_trips_the_simulator(factory: Factory, monkeypatch: pytest.MonkeyPatch) -> None:
    """Negative control: tokens that were drafted behind the last one count as served."""
    monkeypatch.setattr(served_source, "num_served_tokens", lambda request: request.num_tokens + 2)
    kinds = set()
    for seed in seeds(40):
        try:
            Simulation(drafting(seed), factory).run()
        except SimulationFailure as failure:
            kinds.add(failure.kind)
    assert {"poison", "leak"} <= kinds
