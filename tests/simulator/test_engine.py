"""acmserve's scheduler half under random scripts: every slot that any request reads is one it may read.

A failure prints seed, step and machine. `script_of(mode, seed)` makes the same script again.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any

import pytest

from acmserve.engine.scheduling.arrivals import Arrivals
from acmserve.engine.scheduling.source_pins import SourcePins
from acmserve.engine.vllm.scheduler import MoveSchedulerMixin
from tests.support.simulator.failure import Kind
from tests.support.simulator.machine import Factory
from tests.support.simulator.repair import repaired
from tests.support.simulator.scripts import Script, random_script
from tests.support.simulator.simulation import Simulation
from tests.support.simulator.suite import MODES, Mode, dealt_seeds, first_failure, run_scripts, script_of, seeds
from tests.support.simulator.worker import Worker


@pytest.mark.parametrize("mode", MODES, ids=str)
def test_engine_passes_every_script(factory: Factory, mode: Mode) -> None:
    """20 scripts, most in each mode, and they reach what they are for. `make simulator` runs 25 times as many."""
    dear = (1, 2, 3, 4, 5, 9, 10, 14)
    report = run_scripts(factory, mode, dealt_seeds(20, dear, mode), acmserve=True)
    assert report.num_preemptions > 20
    assert report.num_aborted > 10
    assert report.num_moved_requests > 20
    assert report.num_requests_with_holes > 10
    assert report.num_turned_tokens > 600
    assert report.num_repaired_tokens > 200
    assert report.num_forgets_beside_live_requests > 10
    assert report.num_forgotten_keys > 200
    assert {"None", "kv_cache_full", "source_evicted", "forgotten"} <= set(report.fallback_reasons)


def failure_of(factory: Factory, mode: Mode, num_scripts: int = 30, likely: Sequence[int] = ()) -> Kind | None:
    """How the first of the scripts that fails does so, for the negative controls."""
    return first_failure(lambda seed: Simulation(script_of(mode, seed), factory).run(), num_scripts, likely)


@pytest.mark.parametrize("mode", MODES, ids=str)
@pytest.mark.parametrize(
    ("part", "switch", "kinds"),
    [
        (SourcePins, "pin_sources", {"poison", "overlap"}),
        (Arrivals, "lineage_keys", {"leak"}),
        (MoveSchedulerMixin, "flag_sync_loads", {"poison"}),
    ],
    ids=["no-pins", "no-lineage-keys", "no-sync-flag"],
)
def test_negative_control(
    factory: Factory, monkeypatch: pytest.MonkeyPatch, mode: Mode, part: type, switch: str, kinds: set[Kind]
) -> None:
    """With one of the engine's safeguards off, the simulator trips."""
    monkeypatch.setattr(part, switch, False)
    assert failure_of(factory, mode) in kinds


@pytest.mark.parametrize("mode", MODES, ids=str)
def test_negative_control_no_resend(factory: Factory, monkeypatch: pytest.MonkeyPatch, mode: Mode) -> None:
    """Runner V2 works on with the count from before the leap. Runner V1 does not care."""
    monkeypatch.setattr(MoveSchedulerMixin, "resend_leapt", False)
    assert failure_of(factory, mode, 10) == ("count" if mode.runner_v2 else None)


class _Recorder(Worker):
    """Keeps what the scheduler said, step by step."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.steps: list[object] = []

    def execute(self, output: Any, handed_out: Iterable[int]) -> Any:
        blocks = tuple(handed_out)
        self.steps.append((dict(output.num_scheduled_tokens), blocks, set(output.preempted_req_ids or ())))
        return super().execute(output, blocks)


def _recorded(script: Script, factory: Factory) -> list[object]:
    simulation = Simulation(script, factory, worker_class=_Recorder)
    simulation.run()
    assert isinstance(simulation.worker, _Recorder)
    return simulation.worker.steps


@pytest.mark.parametrize("runner_v2", [False, True], ids=["V1", "V2"])
def test_without_sessions_every_step_is_the_stock_engine_s(factory: Factory, runner_v2: bool) -> None:
    """Same tokens, same blocks, same preemptions, but for the repair of repair.py.

    Synchronous only: with async scheduling vLLM itself defers frees as soon as there is a connector. Without adapters:
    vLLM's hashes do not tell two loads of one name apart.
    """
    for seed in seeds(8):
        script = random_script(seed, async_scheduling=False, runner_v2=runner_v2, acmserve=True)
        turns = tuple(replace(turn, session=None, fidelity=None, forget=False, adapter=None) for turn in script.turns)
        anonymous = replace(script, turns=turns)
        stock = replace(anonymous, machine=replace(script.machine, connector=None))
        assert _recorded(anonymous, factory) == _recorded(stock, factory.adapted(repaired)), f"seed {seed}"


@pytest.mark.parametrize("has_passes", [True, False], ids=["", "refused"])
def test_holes_are_computed_in_passes(factory: Factory, has_passes: bool) -> None:
    """On both runners. Small budgets, preemptions and aborts are among the scripts."""
    num_passes = dict.fromkeys(MODES, 0)
    for mode in MODES:
        for seed in seeds(6):
            script = script_of(mode, seed)
            simulation = Simulation(replace(script, machine=replace(script.machine, has_passes=has_passes)), factory)
            simulation.run()
            num_passes[mode] += simulation.worker.num_passes
    assert all((found > 5) is has_passes for found in num_passes.values()), num_passes
    assert has_passes or not any(num_passes.values())
