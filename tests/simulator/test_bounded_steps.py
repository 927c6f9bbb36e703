"""What takes long is spread over steps: plans beside the scheduler, jumps in parts, keys that go a few at a time.

Every bound is set so low here that the short prompts of the simulator exceed it. The moves are the same as without.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import pytest
from vllm.v1.core.sched.output import SchedulerOutput

from acmserve.engine.requests.live_requests import LiveRequests
from acmserve.engine.scheduling import jump, key_evictions, plan_queue
from acmserve.engine.scheduling.plan_queue import PlanQueue
from acmserve.engine.scheduling.step import SchedulerStep
from tests.support.simulator.late_plans import LateExecutor
from tests.support.simulator.machine import Factory, Machine, SchedulerClass
from tests.support.simulator.scripts import Script, Tokens, Turn
from tests.support.simulator.simulation import Simulation
from tests.support.simulator.suite import MODES, Mode, run_scripts, seeds

HEAD, SECRET, TAIL, MARKER = tuple(range(10, 49)), tuple(range(100, 161)), tuple(range(200, 445)), (7, 8, 9)
FULL, FOLDED = HEAD + SECRET + TAIL, HEAD + MARKER + TAIL

modes = pytest.mark.parametrize("mode", MODES, ids=str)


@pytest.fixture
def late(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every search is made beside the scheduler, and is ready a few steps later."""
    monkeypatch.setattr(PlanQueue, "max_inline_tokens", 0)
    monkeypatch.setattr(plan_queue, "ThreadPoolExecutor", lambda **options: LateExecutor())


def _turn(request_id: str, prompt: Tokens, **fields: Any) -> Turn:
    return Turn(request_id, prompt, **{"max_tokens": 3, "session": "s", "fidelity": "reuse", **fields})


def _simulate(factory: Factory, mode: Mode, *turns: Turn) -> Simulation:
    machine = Machine(
        mode.async_scheduling, mode.runner_v2, block_size=16, num_blocks=200, connector={"min_move_tokens": 4}
    )
    simulation = Simulation(Script(0, machine, turns), factory)
    simulation.run()
    return simulation


@dataclass(frozen=True)
class Step:
    """The tokens that a step schedules, the blocks that it copies from, and the keys that still wait to go then."""

    num_tokens: dict[str, int]
    num_source_blocks: int
    num_keys: int


def _watched(factory: Factory, seen: list[Step]) -> Factory:
    """Notes of each step."""

    def adapt(base: SchedulerClass) -> SchedulerClass:
        class Watched(base):  # type: ignore[misc]
            def schedule(self, *args: Any, **kwargs: Any) -> SchedulerOutput:
                output: SchedulerOutput = super().schedule(*args, **kwargs)
                num_blocks = sum(len(copy.src_block_ids) for copy in output.kv_connector_metadata.copies)
                seen.append(Step(dict(output.num_scheduled_tokens), num_blocks, len(self.connector.evictions)))
                return output

        return Watched

    return factory.adapted(adapt)


@modes
def test_random_scripts_pass_with_every_bound_exceeded(
    factory: Factory, mode: Mode, late: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(jump, "MAX_BLOCKS", 2)
    monkeypatch.setattr(key_evictions, "MAX_KEYS", 3)
    report = run_scripts(factory, mode, seeds(15), acmserve=True)
    assert report.num_preemptions > 15
    assert report.num_aborted > 7
    assert report.num_moved_requests > 15
    assert report.num_turned_tokens > 300
    assert report.num_forgets_beside_live_requests > 7


@modes
def test_a_plan_made_beside_the_scheduler_is_the_same(factory: Factory, mode: Mode, late: None) -> None:
    turns = _turn("first", FULL), _turn("fold", FOLDED, after="first")
    beside = _simulate(factory, mode, *turns).receipts["fold"]
    assert beside["moved_tokens"] == len(TAIL) - 1
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(PlanQueue, "max_inline_tokens", 10_000)
        assert _simulate(factory, mode, *turns).receipts["fold"] == beside


@modes
def test_others_are_served_while_a_plan_is_made(factory: Factory, mode: Mode, late: None) -> None:
    """The stranger stands behind the edit in the queue."""
    seen: list[Step] = []
    stranger = _turn("stranger", tuple(range(500, 520)), session=None, fidelity=None, after="first")
    _simulate(_watched(factory, seen), mode, _turn("first", FULL), _turn("fold", FOLDED, after="first"), stranger)
    first = {name: next(i for i, step in enumerate(seen) if name in step.num_tokens) for name in ("fold", "stranger")}
    assert first["stranger"] < first["fold"]


@modes
def test_a_redaction_ends_the_plans_of_its_session(factory: Factory, mode: Mode, late: None) -> None:
    """The plan names sources that are gone. The request is answered exactly, and its receipt says why."""
    fold = _turn("fold", FOLDED, after="first")
    redaction = _turn("redaction", (*HEAD, 5, *TAIL), after="first", forget=True)
    receipt = _simulate(factory, mode, _turn("first", FULL), fold, redaction).receipts["fold"]
    assert (receipt["moved_tokens"], receipt["fallback_reason"]) == (0, "forgotten")


@modes
def test_a_request_that_is_aborted_leaves_its_plan(factory: Factory, mode: Mode, late: None) -> None:
    fold = _turn("fold", FOLDED, after="first", abort_after_steps=2)
    simulation = _simulate(factory, mode, _turn("first", FULL), fold, _turn("again", FOLDED, after="fold"))
    assert simulation.report.num_aborted == 1
    assert simulation.receipts["again"]["moved_tokens"] == len(TAIL) - 1


def test_an_error_of_a_plan_is_the_schedulers(factory: Factory, late: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """As it would be if the plan were made at once: no request waits for ever."""
    monkeypatch.setattr("acmserve.engine.scheduling.arrivals.plan_request", lambda *inputs: 1 // 0)
    monkeypatch.setattr(PlanQueue, "is_long", lambda plans, inputs: True)
    with pytest.raises(ZeroDivisionError):
        _simulate(factory, MODES[0], _turn("first", FULL))


@modes
def test_a_long_jump_takes_several_steps(factory: Factory, mode: Mode, monkeypatch: pytest.MonkeyPatch) -> None:
    """Between two parts stands one computed token. Everything else moves."""
    monkeypatch.setattr(jump, "MAX_BLOCKS", 4)
    seen: list[Step] = []
    turns = _turn("first", FULL), _turn("fold", FOLDED, after="first")
    receipt = _simulate(_watched(factory, seen), mode, *turns).receipts["fold"]
    # In a pass the kept part of a block is one of the four of its first step.
    num_parts = -(-len(TAIL) // (4 * 16)) + 1
    assert len(receipt["moves"]) == num_parts
    assert receipt["moved_tokens"] == len(TAIL) - num_parts
    assert receipt["fallback_reason"] is None
    assert max(step.num_source_blocks for step in seen) == 4


@modes
def test_a_redaction_is_answered_when_its_keys_are_gone(
    factory: Factory, mode: Mode, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(key_evictions, "MAX_KEYS", 3)
    seen: list[Step] = []
    redaction = replace(_turn("redaction", FOLDED, after="first"), forget=True)
    simulation = _simulate(_watched(factory, seen), mode, _turn("first", FULL), redaction)
    assert simulation.receipts["redaction"]["moved_tokens"] == 0
    assert max(step.num_keys for step in seen) > 6
    assert {step.num_keys for step in seen if "redaction" in step.num_tokens} == {0}


@modes
def test_jumps_of_many_requests_share_a_step(factory: Factory, mode: Mode, monkeypatch: pytest.MonkeyPatch) -> None:
    """Four sessions edit at once. Each step copies from four blocks at most, and all of them get their moves."""
    monkeypatch.setattr(jump, "MAX_BLOCKS", 4)
    seen: list[Step] = []
    first = [_turn(f"first{i}", FULL, session=f"s{i}", salt=f"s{i}") for i in range(4)]
    folds = [_turn(f"fold{i}", FOLDED, session=f"s{i}", salt=f"s{i}", at_step=60) for i in range(4)]
    receipts = _simulate(_watched(factory, seen), mode, *first, *folds).receipts
    # In a pass the kept part of a block is one of the four of its first step.
    num_parts = -(-len(TAIL) // (4 * 16)) + 1
    assert [receipts[fold.request_id]["moved_tokens"] for fold in folds] == [len(TAIL) - num_parts] * 4
    assert max(step.num_source_blocks for step in seen) == 4


@modes
@pytest.mark.parametrize("looks_at_all", [False, True], ids=["", "control"])
def test_where_everybody_decodes_no_chunk_is_capped(
    factory: Factory, mode: Mode, looks_at_all: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """vLLM asks once for each request of a step, and most of them decode. Control: without the look it asks for all."""
    num_asked = 0
    cap_chunk = SchedulerStep.cap_chunk

    def count(step: SchedulerStep, *told: Any) -> int:
        nonlocal num_asked
        num_asked += 1
        return cap_chunk(step, *told)

    monkeypatch.setattr(SchedulerStep, "cap_chunk", count)
    if looks_at_all:
        monkeypatch.setattr(LiveRequests, "has_prefill", lambda live: True)
    _simulate(factory, mode, _turn("r0", FULL, max_tokens=40), _turn("r1", FOLDED, max_tokens=40, after="r0"))
    assert (num_asked > 70) == looks_at_all
    assert num_asked > 1
