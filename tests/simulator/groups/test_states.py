"""Moves on models with recurrent states beside full attention: a state is composed where KV is copied.

A request goes on from the state in front of its next token, in every recurrent group, or the simulation fails.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from vllm.config import DeviceConfig

from acmserve.engine.scheduling import jump as jumping
from acmserve.engine.scheduling.leaps.runs import TransitionPath
from acmserve.engine.scheduling.leaps.transitions import TransitionIndex
from acmserve.engine.worker.copies import KVCopy, StateMove
from acmserve.engine.worker.kv_mover import Abilities
from tests.support.simulator.failure import Kind
from tests.support.simulator.machine import Factory
from tests.support.simulator.recurrent.worker import RecurrentWorker
from tests.support.simulator.report import Report
from tests.support.simulator.scripts import recurrent
from tests.support.simulator.simulation import Simulation
from tests.support.simulator.suite import MODES, Mode, first_failure, script_of, seeds


def run_script(factory: Factory, mode: Mode, seed: int, *, has_convolutions: bool = False) -> Report:
    script = recurrent(script_of(mode, seed), has_convolutions=has_convolutions)
    counts = {"num_groups": script.machine.num_recurrent, "num_convolutions": script.machine.num_convolutions}
    worker = type("Worker", (RecurrentWorker,), counts)
    return Simulation(script, factory, worker_class=worker).run()


@pytest.mark.parametrize("mode", MODES, ids=str)
def test_engine_passes_every_script(factory: Factory, mode: Mode) -> None:
    """8 scripts a mode; `make simulator` runs 25 times as many."""
    report = Report()
    for seed in seeds(8):
        report += run_script(factory, mode, seed)
    assert report.num_preemptions > 5
    assert report.num_moved_requests > 2
    assert report.num_turned_tokens > 20
    assert report.num_kept_boundaries > 20
    assert "source_state_not_kept" in report.fallback_reasons


@pytest.mark.parametrize("mode", MODES, ids=str)
def test_engine_passes_every_script_with_short_convolutions(factory: Factory, mode: Mode) -> None:
    """Some stand beside states that are composed. The others move without any state in front."""
    report = Report()
    for seed in seeds(8):
        report += run_script(factory, mode, seed, has_convolutions=True)
    assert report.num_moved_requests > 5


def test_negative_control_a_redaction_leaves_transitions(factory: Factory, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(TransitionIndex, "forget", lambda index, keys: None)
    assert failure_of(factory, MODES[0]) == "forgotten"


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_where_states_are_not_moved_none_is_kept_for_moves(
    factory: Factory, device: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    judge = Abilities.of_engine

    def judge_there(vllm_config: Any, kv_cache_config: Any) -> Abilities:
        monkeypatch.setattr(vllm_config, "device_config", DeviceConfig(device))
        return judge(vllm_config, kv_cache_config)

    monkeypatch.setattr(Abilities, "of_engine", judge_there)
    script = recurrent(script_of(MODES[0], 0))
    connector: Any = factory.scheduler(replace(script.machine, num_recurrent=1)).connector
    refusal = connector.abilities.move_refusal
    assert connector.abilities.copy_refusal is None
    assert (refusal is None) is (connector.boundaries._rules.states is not None) is (device == "cpu")
    assert refusal is None or "for CPUs only" in refusal


def failure_of(factory: Factory, mode: Mode, *, has_convolutions: bool = False) -> Kind | None:
    return first_failure(lambda seed: run_script(factory, mode, seed, has_convolutions=has_convolutions))


@pytest.mark.parametrize("has_convolutions", [False, True])
def test_negative_control_states_stay_where_they_were(
    factory: Factory, monkeypatch: pytest.MonkeyPatch, *, has_convolutions: bool
) -> None:
    """KV is copied and no state composed: the request goes on from the one in front of the jump."""
    plan = jumping.plan_copies
    monkeypatch.setattr(jumping, "plan_copies", lambda *args: [c for c in plan(*args) if isinstance(c, KVCopy)])
    assert failure_of(factory, MODES[0], has_convolutions=has_convolutions) in {"token", "position"}


def test_negative_control_states_move_alone(factory: Factory, monkeypatch: pytest.MonkeyPatch) -> None:
    plan = jumping.plan_copies
    monkeypatch.setattr(jumping, "plan_copies", lambda *args: [c for c in plan(*args) if isinstance(c, StateMove)])
    assert failure_of(factory, MODES[0]) == "poison"


def test_negative_control_a_path_lacks_its_first_part(factory: Factory, monkeypatch: pytest.MonkeyPatch) -> None:
    find = TransitionIndex.find_path

    def find_shorter(*args: Any) -> TransitionPath | None:
        path = find(*args)
        return path and replace(path, numbers=path.numbers[1:])

    monkeypatch.setattr(TransitionIndex, "find_path", find_shorter)
    assert failure_of(factory, MODES[0]) == "token"
