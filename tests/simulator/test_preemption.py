"""Narrow passages of a session request: preempted in the very step of its leap, after a refused move, and no free slot.

The random scripts preempt often. These passages need several things in one row and are written by hand.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import pytest
from vllm.v1.core.sched.output import SchedulerOutput
from vllm.v1.request import RequestStatus

from acmserve.engine.vllm.scheduler import MoveSchedulerMixin
from acmserve.plan.owner import Owner
from tests.support.simulator.machine import Factory, Machine, SchedulerClass
from tests.support.simulator.scripts import Script, Turn
from tests.support.simulator.simulation import Simulation
from tests.support.simulator.suite import MODES, Mode

BLOCK_SIZE = 16
HEAD, TOOL, TAIL = tuple(range(10, 49)), tuple(range(100, 161)), tuple(range(200, 245))
NOTE, MARKER, MESSAGE = tuple(range(300, 340)), (7, 8, 9), (310, 311, 312, 313, 314)
FULL = HEAD + TOOL + TAIL
"""39, 61 and 45 tokens, of which the 61 become 40 or 3: no edit falls on a block boundary."""
FOLDED_TO_NOTE, FOLDED_TO_MARKER = HEAD + NOTE + TAIL + MESSAGE, HEAD + MARKER + TAIL + MESSAGE

LEAP_END = len(HEAD + NOTE + TAIL)

Adapt = Callable[[SchedulerClass], SchedulerClass]

synchronous = pytest.mark.parametrize("runner_v2", [False, True], ids=["V1", "V2"])


def _counts(receipt: dict[str, Any]) -> tuple[int, int, int]:
    return receipt["kept_tokens"], receipt["moved_tokens"], receipt["computed_tokens"]


def _squeezed(leapt: list[int]) -> Adapt:
    """Somebody takes blocks after the sources were pinned, in the step in which `low` leaps, and returns them after.

    vLLM is left with what `low` itself needs, so it preempts `low` for the next request that asks for a block. Without
    this no allocation can fail in the step of a leap. `MoveExecutor.begin_step` pins sources only while free blocks
    remain for all that the running requests may still ask for. `leapt` gets the computed count with which `low` is
    preempted.
    """

    def adapt(base: SchedulerClass) -> SchedulerClass:
        class Squeezed(base):  # type: ignore[misc]
            def __init__(self, *args: Any, **kwargs: Any) -> None:
                super().__init__(*args, **kwargs)
                self._taken: list[Any] = []
                # A pass would leap a step earlier, over the hole in front of the move.
                self.connector.move_executor.planner._max_pass_tokens = lambda: 0
                self._new_step_starts = self.kv_cache_manager.new_step_starts
                self.kv_cache_manager.new_step_starts = self._squeeze

            def _squeeze(self) -> None:
                """vLLM calls it in `schedule`, behind `begin_step` and before it allocates."""
                self._new_step_starts()
                low = self.requests.get("low")
                if low is None or leapt or low.num_computed_tokens != LEAP_END:
                    return
                pool = self.kv_cache_manager.block_pool
                num_held = len(self.kv_cache_manager.get_block_ids("low")[0])
                num_needed = -(-low.num_tokens // BLOCK_SIZE) - num_held
                self._taken = pool.get_new_blocks(pool.get_num_free_blocks() - num_needed)

            def schedule(self, *args: Any, **kwargs: Any) -> SchedulerOutput:
                output: SchedulerOutput = super().schedule(*args, **kwargs)
                self.kv_cache_manager.block_pool.free_blocks(self._taken)
                self._taken = []
                return output

            def _preempt_request(self, request: Any, *args: Any, **kwargs: Any) -> None:
                leapt.append(request.num_computed_tokens)
                super()._preempt_request(request, *args, **kwargs)

        return Squeezed

    return adapt


def _leap(factory: Factory, runner_v2: bool, *others: Turn, squeeze: bool = True) -> Simulation:
    """`low` folds and leaps in step 8, and `high` asks for blocks behind it in the same step.

    step 1-5   source computes 145 tokens
    step 6     low keeps [0, 39), computes [39, 71)
    step 7     low computes [71, 79), up to its move, and high computes [0, 24)
    step 8     low leaps to 124 and is to compute [124, 129): hashes of its blocks up to 128 are registered. high needs
               blocks for [24, 51), finds none, and preempts low: the copies and tokens of low leave the step

    Synchronous only: vLLM does not preempt a request that is in flight, as every request is that just computed.
    """
    machine = Machine(
        async_scheduling=False,
        runner_v2=runner_v2,
        block_size=BLOCK_SIZE,
        num_blocks=60,
        max_num_batched_tokens=32,
        max_num_seqs=2,
        policy="priority",
        reserve_full_input=False,
        connector={"min_move_tokens": 4},
    )
    source = Turn("source", FULL, max_tokens=1, session="s", fidelity="reuse")
    low = Turn("low", FOLDED_TO_NOTE, max_tokens=2, session="s", fidelity="reuse", priority=1, after="source")
    high = Turn("high", tuple(range(400, 460)), max_tokens=30, at_step=7)
    leapt: list[int] = []
    adapted = factory.adapted(_squeezed(leapt)) if squeeze else factory
    simulation = Simulation(Script(0, machine, (source, low, high, *others)), adapted)
    simulation.run()
    assert simulation.report.num_preemptions == len(leapt) == int(squeeze)
    assert leapt in ([], [LEAP_END])
    return simulation


@synchronous
def test_preempted_in_the_step_of_its_leap(factory: Factory, runner_v2: bool) -> None:
    """No hash of what was neither copied nor computed is left. The request leaps again, as if for the first time."""
    simulation = _leap(factory, runner_v2)
    assert simulation.receipts["low"] == _leap(factory, runner_v2, squeeze=False).receipts["low"]
    assert _counts(simulation.receipts["low"]) == (len(HEAD), len(TAIL), len(NOTE + MESSAGE))
    assert simulation.worker.token_counts["low"].num_turned == len(TAIL)


@synchronous
def test_preempted_in_the_step_of_its_leap_while_a_twin_moves(factory: Factory, runner_v2: bool) -> None:
    """Only what had KV when it was preempted counts as computed. What the request then finds behind that was kept.

    The twin sends the same edit of the same session in step 9 and takes the place of `low` until it is done.
    """
    twin = Turn("twin", FOLDED_TO_NOTE, max_tokens=1, session="s", fidelity="reuse", at_step=9)
    simulation = _leap(factory, runner_v2, twin)
    num_hit = len(FOLDED_TO_NOTE) // BLOCK_SIZE * BLOCK_SIZE
    num_computed = len(NOTE) + len(FOLDED_TO_NOTE) - num_hit
    assert _counts(simulation.receipts["twin"])[1] == len(TAIL)
    assert _counts(simulation.receipts["low"]) == (len(FOLDED_TO_NOTE) - num_computed, 0, num_computed)
    assert simulation.worker.token_counts["low"].num_turned == 0


def _watched(seen: list[tuple[int, int]]) -> Adapt:
    """Notes what preempted `low` would find in every step: its prefix hit in tokens, and cached blocks to move from."""

    def adapt(base: SchedulerClass) -> SchedulerClass:
        class Watched(base):  # type: ignore[misc]
            def schedule(self, *args: Any, **kwargs: Any) -> SchedulerOutput:
                low = self.requests.get("low")
                if low is not None and low.status == RequestStatus.PREEMPTED:
                    source = self.connector.store.get(Owner("s"))[-1]
                    moved = source.block_hashes[len(HEAD + TOOL) // BLOCK_SIZE :]
                    hit = itertools.takewhile(self._is_cached, low.block_hashes)
                    seen.append((BLOCK_SIZE * len(list(hit)), sum(map(self._is_cached, moved))))
                output: SchedulerOutput = super().schedule(*args, **kwargs)
                return output

            def _is_cached(self, block_hash: bytes) -> bool:
                return self.connector.move_executor.cache.block(block_hash, 0) is not None

        return Watched

    return adapt


@pytest.mark.parametrize("mode", MODES, ids=str)
def test_refused_move_stays_refused_when_its_source_comes_back(factory: Factory, mode: Mode) -> None:
    """Its mark was taken back, so its hashes promise exact KV: whoever asks for that must find nothing moved there.

    source     is computed, and a stranger takes the whole pool
    low        arrives, and its move [42, ...) is refused: its source is gone
    high       computes the very text of the source meanwhile, and more of its own. Then the pool is used up, and low
               loses all blocks but [0, 64)
    low        resumes at 64, inside its move, and the source is there again
    probe      asks for the exact KV of the same prompt
    """
    machine = Machine(
        mode.async_scheduling,
        mode.runner_v2,
        block_size=BLOCK_SIZE,
        num_blocks=16,
        max_num_batched_tokens=64,
        max_num_seqs=2,
        policy="priority",
        reserve_full_input=False,
        long_prefill_threshold=BLOCK_SIZE,
        connector={"min_move_tokens": 4},
    )
    turns = (
        Turn("source", FULL, max_tokens=1, session="s", fidelity="reuse"),
        Turn("stranger", tuple(range(400, 400 + 14 * BLOCK_SIZE - 8)), max_tokens=1, after="source"),
        Turn("low", FOLDED_TO_MARKER, max_tokens=10, session="s", fidelity="reuse", priority=1, after="stranger"),
        Turn("high", FULL + NOTE + MESSAGE, max_tokens=10, after="stranger"),
        Turn("probe", FOLDED_TO_MARKER, max_tokens=1, session="s", fidelity="exact", after="low"),
    )
    seen: list[tuple[int, int]] = []
    simulation = Simulation(Script(0, machine, turns), factory.adapted(_watched(seen)))
    assert simulation.run().num_preemptions == 1
    assert seen[-1] == (4 * BLOCK_SIZE, len(FULL) // BLOCK_SIZE - len(HEAD + TOOL) // BLOCK_SIZE)
    receipt = simulation.receipts["low"]
    assert receipt["fallback_reason"] == "source_evicted"
    assert _counts(receipt)[1] == simulation.worker.token_counts["low"].num_turned == 0


def _full(slots: str, pinned: list[int]) -> Adapt:
    """While `long` runs no slot is free. `pinned` gets the blocks that each of these steps has pinned."""

    def adapt(base: SchedulerClass) -> SchedulerClass:
        class Full(base):  # type: ignore[misc]
            def __init__(self, *args: Any, **kwargs: Any) -> None:
                super().__init__(*args, **kwargs)
                if slots == "active":
                    self.max_num_active_reqs = 1
                self._new_step_starts = self.kv_cache_manager.new_step_starts
                self.kv_cache_manager.new_step_starts = self._look

            def _look(self) -> None:
                """vLLM calls it in `schedule`, behind `begin_step` and before it allocates."""
                self._new_step_starts()
                if any(request.request_id == "long" for request in self.running) and "low" in self.requests:
                    pinned.append(len(self.connector.move_executor._pins._blocks))

            def schedule(self, *args: Any, **kwargs: Any) -> SchedulerOutput:
                if slots == "streaming input":
                    self.num_waiting_for_streaming_input = int("long" in self.requests)
                output: SchedulerOutput = super().schedule(*args, **kwargs)
                return output

        return Full

    return adapt


def _wait_for_slot(factory: Factory, mode: Mode, slots: str, pinned: list[int]) -> Simulation:
    """`low` folds while `long` decodes in the only slot."""
    machine = Machine(
        mode.async_scheduling,
        mode.runner_v2,
        block_size=BLOCK_SIZE,
        num_blocks=60,
        max_num_batched_tokens=64,
        max_num_seqs=1 if slots == "running" else 2,
        connector={"min_move_tokens": 4},
    )
    turns = (
        Turn("source", FULL, max_tokens=1, session="s", fidelity="reuse"),
        Turn("long", tuple(range(400, 420)), max_tokens=20, after="source"),
        Turn("low", FOLDED_TO_MARKER, max_tokens=1, session="s", fidelity="reuse", after="source"),
    )
    simulation = Simulation(Script(0, machine, turns), factory.adapted(_full(slots, pinned)))
    simulation.run()
    assert _counts(simulation.receipts["low"])[1] == len(TAIL)
    return simulation


@pytest.mark.parametrize("slots", ["running", "streaming input", "active"])
@pytest.mark.parametrize("mode", MODES, ids=str)
def test_nothing_is_pinned_for_a_request_without_a_slot(
    factory: Factory, monkeypatch: pytest.MonkeyPatch, mode: Mode, slots: str
) -> None:
    """Its sources are pinned in the step in which a slot is free. It is admitted no later than in the control."""
    pinned: list[int] = []
    simulation = _wait_for_slot(factory, mode, slots, pinned)
    assert len(pinned) > 10
    assert not any(pinned), pinned
    monkeypatch.setattr(MoveSchedulerMixin, "mind_slots", False)
    always: list[int] = []
    control = _wait_for_slot(factory, mode, slots, always)
    assert any(always), "the control"
    assert simulation.report.num_steps == control.report.num_steps
    assert simulation.receipts == control.receipts
