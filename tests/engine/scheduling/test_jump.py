"""Jumps over plans whose blocks are partly gone, and what a refusal does to marks."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from acmserve.engine.groups.facts import KVGroups
from acmserve.engine.requests.receipt import KVOrigin, ReceiptBuilder
from acmserve.engine.requests.request_plan import plan_segments
from acmserve.engine.requests.session_request import SessionRequest
from acmserve.engine.scheduling.jump import next_available, plan_copies, plan_jump, plan_trimmed
from acmserve.engine.worker.copies import KVCopy
from acmserve.plan.owner import Owner
from acmserve.plan.pieces import EditPlan, Keep, Move
from acmserve.plan.source import ServedSequence

BS = 16
OWNER = Owner("s")
SOURCE = ServedSequence(np.arange(100, dtype=np.int32), BS, tuple(b"h%d" % i for i in range(6)), b"tail")


@dataclass
class Block:
    block_id: int
    ref_cnt: int = 0


GROUPS = KVGroups.single(BS)


class Cache(dict[bytes, Block]):
    """Key to block. A missing key is an evicted block."""

    def block(self, key: bytes, group: int) -> Block | None:
        assert group == 0
        return self.get(key)


def whole_cache() -> Cache:
    return Cache({SOURCE.block_key(i) or b"": Block(10 + i) for i in range(7)})


def fold() -> SessionRequest:
    """Keep 20, hole of 3, move 40..100 to 23..83, two new tokens."""
    request = SessionRequest("r", OWNER, "reuse", ReceiptBuilder(85), np.arange(85, dtype=np.int32))
    plan = EditPlan(85, Keep(20, 0), (Move(23, 40, 60, 0),))
    request.segments, request.marks = plan_segments(plan, (SOURCE,), OWNER)
    request.planned = tuple(request.segments)
    return request


def test_a_jump_takes_all_blocks_of_its_segment() -> None:
    request, cache = fold(), whole_cache()
    jump = plan_jump(request, 23, cache.block, GROUPS)
    assert jump is not None
    assert (jump.start, jump.end) == (23, 83)
    assert [block.block_id for block in jump.blocks] == [12, 13, 14, 15, 16]
    assert plan_copies(jump, "r", [[0, 1, 2, 3, 4, 5]]) == [
        KVCopy("r", 40, 23, 60, (12, 13, 14, 15, 16), (1, 2, 3, 4, 5))
    ]


def test_the_kept_part_of_a_block_is_a_jump_of_delta_zero() -> None:
    jump = plan_jump(fold(), 16, whole_cache().block, GROUPS)
    assert jump is not None
    assert (jump.start, jump.end, jump.runs[0].segment.origin) == (16, 20, KVOrigin.KEPT)
    assert plan_copies(jump, "r", [[0, 1]])[0].delta == 0


def test_a_jump_ends_at_the_first_missing_block() -> None:
    request, cache = fold(), whole_cache()
    del cache[b"h4"]
    jump = plan_jump(request, 23, cache.block, GROUPS)
    assert jump is not None
    assert jump.end == 23 + (64 - 40)
    request.carry_out(jump.start, jump.end)
    (rest,) = [s for s in request.segments if s.origin is KVOrigin.MOVED]
    assert plan_jump(request, jump.end, cache.block, GROUPS) is None
    available = next_available(request, rest, jump.end, cache.block, GROUPS)
    assert available == 23 + (80 - 40)
    assert request.refuse(rest, jump.end, available, "gone") is None, "its mark stays: part of it was moved"
    last = plan_jump(request, available, cache.block, GROUPS)
    assert last is not None
    assert last.end == 83


def test_a_refused_move_gives_its_mark_back() -> None:
    request = fold()
    move = request.segments[1]
    assert next_available(request, move, 23, Cache().block, GROUPS) == 83
    assert request.refuse(move, 23, 83, "gone") == 23
    assert request.marks == []
    request.arm()
    assert [s.origin for s in request.segments] == [KVOrigin.KEPT], (
        "a preempted request must not move under exact hashes"
    )


def test_trimming_drops_what_the_prefix_hit_covers() -> None:
    jump = plan_jump(fold(), 23, whole_cache().block, GROUPS)
    assert jump is not None
    trimmed = plan_trimmed(jump, 48)
    assert trimmed is not None
    assert (trimmed.start, trimmed.end, trimmed.runs[0].src_start) == (48, 83, 65)
    assert [block.block_id for block in trimmed.blocks] == [14, 15, 16]
    assert plan_trimmed(jump, 83) is None


def test_a_chunk_stops_where_the_next_segment_begins() -> None:
    request = fold()
    assert request.next_stop(20) == 23
    assert request.next_stop(23) is None


def test_a_reason_is_given_only_for_what_was_computed() -> None:
    request = fold()
    request.fallback_reason = "kv_cache_full"
    request.receipt_builder.admit(16)
    jump = plan_jump(request, 23, whole_cache().block, GROUPS)
    assert jump is not None
    assert request.settle().fallback_reason == "kv_cache_full"
    request.arm()
    request.receipt_builder.jump(jump.entries())
    assert request.settle().fallback_reason is None
