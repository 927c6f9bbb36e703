"""Speculative decoding without a KV cache of its own (ngram, suffix): drafts come and go, and no source names one.

vLLM 0.32 schedules these methods synchronously. Runner V1 takes computed counts from the scheduler, which takes
rejected drafts back before anybody looks.
"""

from __future__ import annotations

from dataclasses import replace

import pytest

from acmserve.engine.requests import served_source
from tests.support.simulator.background import with_background
from tests.support.simulator.failure import SimulationFailure
from tests.support.simulator.machine import Factory, Machine
from tests.support.simulator.report import Report
from tests.support.simulator.scripts import Script, Turn, random_script
from tests.support.simulator.simulation import Simulation
from tests.support.simulator.suite import dealt_seeds, seeds

NUM_DRAFTS = 3


def drafting(seed: int, draft_method: str = "ngram", *, on_gpu: bool = False) -> Script:
    """A script whose machine has room for the drafts of a step."""
    script = random_script(seed, async_scheduling=on_gpu, runner_v2=on_gpu, acmserve=True)
    num_blocks = script.machine.num_blocks + (2 if draft_method == "ngram" else 4)
    machine = replace(script.machine, num_drafts=NUM_DRAFTS, draft_method=draft_method, num_blocks=num_blocks)
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
        if {"poison", "leak"} <= kinds:
            break
    assert {"poison", "leak"} <= kinds


BACKGROUND = {"chunk_tokens": 256, "chunk_s": 1000.0, "quiet_s": 0.0, "min_age_s": 0.0, "delay_share": 1.0}


@pytest.mark.parametrize("share", [0.06, 0.5])
def test_a_prompt_that_is_there_but_for_its_last_token(factory: Factory, share: float) -> None:
    """vLLM pads that token to a row of drafts, over the end of a block, and takes no part of the row.

    A share of six blocks has no room for it. Of a large share, the block behind the prompt is nobody's for good.
    """
    prompt = tuple(range(100, 179))
    turn = Turn("first", prompt, max_tokens=1, session="s", precompute=True)
    settings = {f"precompute_{name}": value for name, value in BACKGROUND.items()}
    machine = Machine(
        async_scheduling=False,
        runner_v2=False,
        block_size=16,
        num_blocks=100,
        max_num_batched_tokens=256,
        connector={"min_move_tokens": 4, **settings, "precompute_max_pool_share": share},
        num_drafts=NUM_DRAFTS,
    )
    again = replace(turn, request_id="again", after="first")
    simulation = Simulation(Script(0, machine, (turn, again)), factory)
    simulation.run()
    assert simulation.receipts["first"]["prompt_tokens"] == len(prompt)
    receipt = simulation.receipts["again"]
    if share == 0.5:
        assert (receipt["kept_tokens"], receipt["computed_tokens"]) == (78, 1)
    else:
        assert receipt["fallback_reason"] == "precompute_pool_share"


DRAFTERS = ("ngram", False), ("eagle", False), ("eagle", True)


@pytest.mark.parametrize(("draft_method", "on_gpu"), DRAFTERS, ids=["ngram", "cpu", "gpu"])
def test_background_requests_beside_drafts(factory: Factory, draft_method: str, on_gpu: bool) -> None:
    """What is allocated for drafts counts for the share of the pool, and nothing of it stays when a request ends."""
    report = Report()
    dear = (1, 3, 6, 10, 13, 15, 20, 22, 24)
    for seed in dealt_seeds(25, dear, (draft_method, on_gpu), DRAFTERS):
        script = with_background(drafting(seed, draft_method, on_gpu=on_gpu))
        report += Simulation(script, factory).run()
    assert report.background["ready"] > 100
    assert report.background["precompute_pool_share"] > 20
    assert report.num_precomputed_tokens > 150
