"""Where a jump of a model with recurrent layers begins and ends, why there is none, and what asking costs."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import numpy as np
import pytest

from acmserve.engine.groups.facts import GroupFacts, KVGroups
from acmserve.engine.requests.receipt import KVOrigin, ReceiptBuilder
from acmserve.engine.requests.session_request import ReusableRange, SessionRequest
from acmserve.engine.scheduling.jump import next_available, plan_jump
from acmserve.engine.scheduling.leaps.runs import TransitionPath
from acmserve.engine.scheduling.source_gone import SOURCE_GONE, STATE_GONE, WINDOW_GONE, why_gone
from acmserve.plan.owner import Owner
from acmserve.plan.source import KeptState, ServedSequence

BS, NUM_BLOCKS, START = 16, 300, 32
FULL, STATES, WINDOW = GroupFacts(0, BS), GroupFacts(1, BS, 0, mixed=3, is_composed=True), GroupFacts(1, BS, 39)
GROUPS = KVGroups((FULL, STATES), BS)
SOURCE = ServedSequence(
    np.arange(NUM_BLOCKS * BS, dtype=np.int32), BS, tuple(i.to_bytes(4, "big") for i in range(NUM_BLOCKS))
)
SEGMENT = ReusableRange(20, 20 + NUM_BLOCKS * BS - START, START, SOURCE, KVOrigin.MOVED)


@dataclass
class Block:
    block_id: int
    ref_cnt: int = 0


@dataclass
class Cache:
    """All blocks of full attention but for those `gone`, and the states behind these blocks of the source."""

    states: tuple[int, ...]
    gone: tuple[int, ...] = ()
    num_asked: int = field(default=0)

    def block(self, key: bytes, group: int) -> Block | None:
        self.num_asked += 1
        number = int.from_bytes(key, "big")
        is_there = number not in self.gone if group == 0 else number in self.states
        return Block(1000 * group + number) if is_there else None


def moving() -> SessionRequest:
    request = SessionRequest("r", Owner("s"), "reuse", ReceiptBuilder(9999), np.arange(9999, dtype=np.int32))
    request.segments = [SEGMENT]
    return request


def find_path(source: ServedSequence, start: int, end: int) -> TransitionPath | None:
    return TransitionPath((7,), 0.5)


def test_a_jump_goes_from_a_kept_state_to_the_last_one() -> None:
    jump = plan_jump(moving(), 20, Cache((1, 4, 6)).block, GROUPS, find_path)
    assert jump is not None
    assert (jump.start, jump.end) == (20, 20 + 5 * BS)
    (state,) = jump.states
    assert (state.before.block_id, state.after.block_id) == (1001, 1006)
    (read,) = jump.reads
    assert [block.block_id for block in read.blocks] == [2, 3, 4, 5, 6]


def test_a_jump_ends_where_a_turn_did() -> None:
    """Behind 107 tokens, in the midst of block 6. The state there is that of key 999."""
    source = replace(SOURCE, states=(KeptState(107, (999).to_bytes(4, "big")),))
    request = moving()
    request.segments = [replace(SEGMENT, source=source)]
    jump = plan_jump(request, 20, Cache((1, 4, 999)).block, GROUPS, find_path)
    assert jump is not None
    assert jump.end == 20 + 107 - START
    (state,) = jump.states
    assert (state.before.block_id, state.after.block_id) == (1001, 1999)
    assert [block.block_id for block in jump.reads[0].blocks] == [2, 3, 4, 5, 6]
    earlier = plan_jump(request, 20, Cache((1, 4)).block, GROUPS, find_path)
    assert earlier is not None
    assert earlier.end == 20 + 3 * BS, "the state is gone, and the last one in front is that of a block"


@pytest.mark.parametrize("cache", [Cache((4, 6)), Cache((1,)), Cache((1, 4), gone=(2,))])
def test_there_is_none_without_both_states_and_the_keys(cache: Cache) -> None:
    assert plan_jump(moving(), 20, cache.block, GROUPS, find_path) is None


def test_there_is_none_from_the_midst_of_a_block_or_without_a_path() -> None:
    assert plan_jump(moving(), 21, Cache((1, 2, 4)).block, GROUPS, find_path) is None
    assert plan_jump(moving(), 20, Cache((1, 2, 4)).block, GROUPS) is None


@pytest.mark.parametrize("is_composed", [True, False])
def test_asking_where_no_state_is_kept_costs_a_few_look_ups_a_block(is_composed: bool) -> None:
    cache, groups = Cache(()), KVGroups((FULL, replace(STATES, is_composed=is_composed)), BS)
    assert next_available(moving(), SEGMENT, 20, cache.block, groups, find_path) == SEGMENT.dst_end
    assert cache.num_asked <= 4 * NUM_BLOCKS


@pytest.mark.parametrize(
    ("groups", "reason", "num_asked"),
    [
        (GROUPS, STATE_GONE, 1),
        (KVGroups((FULL, WINDOW), BS), WINDOW_GONE, 1),
        (KVGroups.single(BS), SOURCE_GONE, 0),
    ],
)
def test_why_it_is_gone_is_asked_only_where_two_answers_are_possible(
    groups: KVGroups, reason: str, num_asked: int
) -> None:
    cache = Cache(())
    assert why_gone(SEGMENT, 20, cache.block, groups) == reason
    assert cache.num_asked == num_asked
    assert why_gone(SEGMENT, 20, Cache((), gone=(2,)).block, groups) == SOURCE_GONE
