"""Moves on models with recurrent states beside full attention: a state is composed where KV is copied.

A request goes on from the state in front of its next token, in every recurrent group, or the simulation fails.
"""

from __future__ import annotations

import random
from dataclasses import replace
from typing import Any

import pytest
from vllm.config import DeviceConfig

from acmserve.engine.plugin import connector
from acmserve.engine.scheduling import jump as jumping
from acmserve.engine.scheduling.leaps import planner
from acmserve.engine.scheduling.leaps.runs import TransitionPath
from acmserve.engine.scheduling.leaps.transitions import TransitionIndex
from acmserve.engine.scheduling.transition_keeper import TransitionKeeper
from acmserve.engine.worker.copies import KVCopy, StateMove
from acmserve.engine.worker.kv_mover import Abilities
from tests.support.simulator.failure import Kind, SimulationFailure
from tests.support.simulator.machine import Factory, Machine
from tests.support.simulator.recurrent.worker import RecurrentWorker
from tests.support.simulator.report import Report
from tests.support.simulator.scripts import Script, Turn, recurrent
from tests.support.simulator.simulation import Simulation
from tests.support.simulator.suite import MODES, Mode, dealt_seeds, first_failure, script_of, seeds
from tests.support.simulator.truth import answer


@pytest.fixture(autouse=True)
def short_prefixes_are_restored(monkeypatch: pytest.MonkeyPatch) -> None:
    """The scripts have blocks of a few tokens, so that there is little behind vLLM's own hit."""
    monkeypatch.setattr(planner, "MIN_RESTORED_TOKENS", 1)


def run_script(factory: Factory, mode: Mode, seed: int, *, has_convolutions: bool = False) -> Report:
    script = recurrent(script_of(mode, seed), has_convolutions=has_convolutions)
    counts = {"num_groups": script.machine.num_recurrent, "num_convolutions": script.machine.num_convolutions}
    worker = type("Worker", (RecurrentWorker,), counts)
    simulation = Simulation(script, factory, worker_class=worker)
    report = simulation.run()
    assert isinstance(simulation.worker, RecurrentWorker)
    report.num_restored_states = simulation.worker.num_restored
    report.num_answer_states = simulation.worker.num_kept
    return report


@pytest.mark.parametrize("mode", MODES, ids=str)
def test_engine_passes_every_script(factory: Factory, mode: Mode) -> None:
    """8 scripts a mode. `make simulator` runs 25 times as many."""
    report = Report()
    for seed in seeds(8):
        report += run_script(factory, mode, seed)
    assert report.num_preemptions > 5
    assert report.num_moved_requests > 2
    assert report.num_turned_tokens > 20
    assert report.num_kept_boundaries > 20
    assert report.num_restored_states > 2
    assert report.num_answer_states > 20
    assert "source_state_not_kept" in report.fallback_reasons


@pytest.mark.parametrize("mode", MODES, ids=str)
def test_engine_passes_every_script_with_short_convolutions(factory: Factory, mode: Mode) -> None:
    """Some stand beside states that are composed. The others move without any state in front."""
    report = Report()
    for seed in dealt_seeds(8, (3, 5, 6, 7), mode):
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


def test_negative_control_a_turn_goes_on_without_the_state_behind_its_prefix(
    factory: Factory, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan = jumping.plan_copies

    def plan_others(*args: Any) -> list[Any]:
        return [copy for copy in plan(*args) if isinstance(copy, KVCopy) or copy.there is not None]

    monkeypatch.setattr(jumping, "plan_copies", plan_others)
    assert failure_of(factory, MODES[0]) in {"token", "position", "poison"}


def kept_of_an_answer(
    factory: Factory, *, is_async: bool = False, is_stopped: bool = False, keep_tail: bool = True
) -> tuple[int, int]:
    """A prompt is answered, and then sent again with the answer and more: (tokens kept, tokens served before)."""
    prompt = tuple(random.Random(3).randrange(800) for _ in range(301))
    said = answer(prompt, 90)
    said = said[: said.index(said[41]) + 1] if is_stopped else said
    settings = {"keep_tail": keep_tail}
    machine = Machine(is_async, False, 16, 200, 512, connector=settings, num_recurrent=1, retention=0)
    turns = (
        Turn("asked", prompt, 90, session="s", stop_tokens=said[-1:] if is_stopped else ()),
        Turn("again", (*prompt, *said, *range(20)), 1, session="s", after="asked"),
    )
    simulation = Simulation(Script(0, machine, turns), factory, worker_class=RecurrentWorker)
    simulation.run()
    return simulation.receipts["again"]["kept_tokens"], len(prompt) + len(said) - 1


@pytest.mark.parametrize("is_async", [False, True])
def test_a_turn_goes_on_where_the_last_one_ended(factory: Factory, *, is_async: bool) -> None:
    """One token in front is computed. An answer that is as long as asked for ends with no step in flight."""
    kept, served = kept_of_an_answer(factory, is_async=is_async)
    assert kept == served - 1


def test_without_the_state_behind_it_an_answer_is_computed(factory: Factory) -> None:
    """Control: vLLM goes on where the last whole block of the prompt ended."""
    assert kept_of_an_answer(factory, keep_tail=False)[0] == 301 // 16 * 16


def test_a_state_with_a_step_in_flight_is_not_kept(factory: Factory, monkeypatch: pytest.MonkeyPatch) -> None:
    """A stop token ends the answer while the next token is on its way. With the control: the state is behind that."""
    kept, served = kept_of_an_answer(factory, is_stopped=True)
    assert kept == served - 1
    kept, served = kept_of_an_answer(factory, is_async=True, is_stopped=True)
    assert kept == 301 // 16 * 16
    monkeypatch.setattr(connector, "is_state_at_end", lambda request, source: True)
    with pytest.raises(SimulationFailure, match="restores position"):
        kept_of_an_answer(factory, is_async=True, is_stopped=True)


def moved_over_an_answer(factory: Factory, *, is_async: bool = False) -> tuple[dict[str, int], int]:
    """A piece in front of an answer is folded: (the move, tokens served before)."""
    prompt = tuple(random.Random(5).randrange(800) for _ in range(301))
    said = answer(prompt, 90)
    folded = (*prompt[:20], *range(7), *prompt[90:], *said, *range(20))
    machine = Machine(is_async, False, 16, 200, 512, connector={}, num_recurrent=1, retention=0)
    turns = (
        Turn("asked", prompt, 90, session="s", foldable=((20, 90),)),
        Turn("folded", folded, 1, session="s", fidelity="reuse", after="asked"),
    )
    simulation = Simulation(Script(0, machine, turns), factory, worker_class=RecurrentWorker)
    simulation.run()
    (move,) = simulation.receipts["folded"]["moves"]
    return move, len(prompt) + len(said) - 1


@pytest.mark.parametrize("is_async", [False, True])
def test_a_move_goes_over_a_decoded_answer(factory: Factory, *, is_async: bool) -> None:
    """It begins with the first block behind the piece, and ends where the turn did, in the midst of a block."""
    move, served = moved_over_an_answer(factory, is_async=is_async)
    assert (move["src_start"], move["src_start"] + move["num_tokens"]) == (96, served)


def test_without_the_answer_a_move_ends_with_its_prompt(factory: Factory, monkeypatch: pytest.MonkeyPatch) -> None:
    """Control: what was recorded over the answer is not named."""
    monkeypatch.setattr(TransitionKeeper, "finish", lambda keeper, request_id, source: None)
    move, _ = moved_over_an_answer(factory)
    assert move["src_start"] + move["num_tokens"] == 301


def test_negative_control_a_transition_lacks_decoded_tokens(factory: Factory, monkeypatch: pytest.MonkeyPatch) -> None:
    """The workers are told of the first step of each transition alone."""
    record = TransitionKeeper._record

    def record_first(keeper: TransitionKeeper, session: Any, request: Any, num_tokens: int) -> None:
        num_records = len(keeper._records)
        record(keeper, session, request, num_tokens)
        for one in keeper._records[num_records:]:
            if one.num_tokens > num_tokens:
                keeper._records.remove(one)
                keeper.index._by_number[one.number].num_steps -= 1

    monkeypatch.setattr(TransitionKeeper, "_record", record_first)
    with pytest.raises(SimulationFailure, match="its transitions are over"):
        moved_over_an_answer(factory)
    assert failure_of(factory, MODES[0]) == "token"


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
