"""Speculative decoding by EAGLE: the drafter's layer stands in the same blocks, looks one token ahead, and is moved.

vLLM computes the last block of every hit anew, so that the drafter has seen the right token at the junction. Moves end
one token early for the same reason.

A few junctions are stale all the same. vLLM alone leaves some: two blocks may have one hash and different tokens behind
them. And where the second of two pieces side by side is gone when the scheduler gets there, the first one ends at it.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import pytest

from acmserve.engine.requests import request_plan
from acmserve.plan.pieces import EditPlan
from tests.support.simulator.drafting.worker import DraftingWorker
from tests.support.simulator.failure import SimulationFailure
from tests.support.simulator.machine import Factory
from tests.support.simulator.report import Report
from tests.support.simulator.scripts import Script, random_script
from tests.support.simulator.simulation import Simulation
from tests.support.simulator.suite import seeds
from tests.support.simulator.worker import Worker

NUM_DRAFTS = 3


def drafting(seed: int, *, on_gpu: bool = False) -> Script:
    """A script on a machine with an EAGLE head, and with room for the drafts of a step.

    A CPU has runner V1 and a synchronous scheduler, a GPU has runner V2 and an asynchronous one.
    """
    script = random_script(seed, async_scheduling=on_gpu, runner_v2=on_gpu, acmserve=True)
    num_blocks = script.machine.num_blocks + 4
    machine = replace(script.machine, num_drafts=NUM_DRAFTS, draft_method="eagle", num_blocks=num_blocks)
    return replace(script, machine=machine)


@dataclass
class Outcome:
    """What many scripts came to: junctions, and what the drafter read of prompts. Of both, what was stale."""

    report: Report
    num_junctions: int = 0
    num_stale_junctions: int = 0
    num_read: int = 0
    num_stale: int = 0
    num_accepted: int = 0

    def add(self, worker: DraftingWorker) -> None:
        for name in ("num_junctions", "num_stale_junctions", "num_read", "num_stale", "num_accepted"):
            setattr(self, name, getattr(self, name) + getattr(worker, name))


def run(factory: Factory, num_scripts: int, *, on_gpu: bool = False) -> Outcome:
    outcome = Outcome(Report())
    for seed in seeds(num_scripts):
        simulation = Simulation(drafting(seed, on_gpu=on_gpu), factory, worker_class=DraftingWorker)
        outcome.report += simulation.run()
        assert isinstance(simulation.worker, DraftingWorker)
        outcome.add(simulation.worker)
    return outcome


@pytest.mark.parametrize("on_gpu", [False, True], ids=["sync-V1", "async-V2"])
def test_engine_passes_every_script(factory: Factory, on_gpu: bool) -> None:
    """No drafter reads what nobody meant for it, and in front of its first token it has seen the right one ahead."""
    outcome = run(factory, 20, on_gpu=on_gpu)
    assert outcome.num_accepted > 200
    assert outcome.report.num_preemptions > 20
    assert outcome.report.num_moved_requests > 20
    assert outcome.report.num_turned_tokens > 600
    assert outcome.num_junctions > 200
    assert outcome.num_stale_junctions < outcome.num_junctions / 25
    assert outcome.num_stale < outcome.num_read / 500


def test_moves_that_do_not_end_early_leave_stale_junctions(factory: Factory, monkeypatch: pytest.MonkeyPatch) -> None:
    """Negative control: the last token of a move keeps what it has seen ahead in its source."""

    def whole(plan: EditPlan, num_lookahead: int) -> EditPlan:
        assert num_lookahead == 1
        return plan

    monkeypatch.setattr(request_plan, "end_early", whole)
    outcome = run(factory, 8)
    assert outcome.num_stale_junctions > outcome.num_junctions / 10


def test_a_drafter_whose_layer_stays_behind_trips_the_simulator(
    factory: Factory, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Negative control: the worker moves the KV of the model only."""
    monkeypatch.setattr(DraftingWorker, "_apply", Worker._apply)
    kinds = set()
    for seed in seeds(8):
        try:
            Simulation(drafting(seed), factory, worker_class=DraftingWorker).run()
        except SimulationFailure as failure:
            kinds.add(failure.kind)
    assert "poison" in kinds
