"""Jumps of a model with a window group beside full attention: which KV each group copies, and where a jump ends.

source       0 ...................................... 192       12 whole blocks of 16
request      one move: source [32, 192) to prompt [20, 180), so every block boundary is shifted by 12
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pytest
import torch
from vllm.v1.kv_cache_interface import FullAttentionSpec

from acmserve.engine.groups.facts import GroupFacts, KVGroups, read_groups
from acmserve.engine.requests.receipt import KVOrigin, ReceiptBuilder
from acmserve.engine.requests.session_request import ReusableRange, SessionRequest
from acmserve.engine.scheduling import jump as jumping
from acmserve.engine.scheduling.jump import is_available, next_available, plan_copies, plan_jump, plan_trimmed
from acmserve.engine.scheduling.leaps.runs import Jump
from acmserve.errors import MoveRefused
from acmserve.plan.owner import Owner
from acmserve.plan.source import ServedSequence

BS, WINDOW = 16, 40
FULL, WINDOWED = GroupFacts(0, BS), GroupFacts(1, BS, WINDOW - 1)
GROUPS = KVGroups((FULL, WINDOWED), BS)
SOURCE = ServedSequence(np.arange(192, dtype=np.int32), BS, tuple(b"h%d" % i for i in range(12)))


@dataclass
class Block:
    block_id: int
    ref_cnt: int = 0


class Cache(dict[tuple[int, int], Block]):
    """(group, block of the source) -> block. What is not in it was evicted."""

    def block(self, key: bytes, group: int) -> Block | None:
        return self.get((group, SOURCE.block_hashes.index(key)))


def cache(full: range = range(12), window: range = range(12)) -> Cache:
    return Cache({(g, i): Block(100 * (g + 1) + i) for g, found in enumerate((full, window)) for i in found})


def moving() -> SessionRequest:
    request = SessionRequest("r", Owner("s"), "reuse", ReceiptBuilder(200), np.arange(200, dtype=np.int32))
    request.segments = [ReusableRange(20, 180, 32, SOURCE, KVOrigin.MOVED)]
    return request


def spans(jump: Jump | None) -> dict[int, tuple[int, int]]:
    """What is copied of each group, in positions of the prompt."""
    assert jump is not None
    return {read.group.index: (read.start, read.end) for read in jump.reads}


def test_of_a_window_group_only_what_is_still_read_is_copied() -> None:
    jump = plan_jump(moving(), 20, cache().block, GROUPS)
    assert spans(jump) == {0: (20, 180), 1: (180 - 39, 180)}
    assert jump is not None
    full, window = plan_copies(jump, "r", [list(range(12)), [-1] * 8 + [50, 51, 52, 53]])
    assert (full.src_start, full.num_tokens, full.group) == (32, 160, 0)
    assert (window.src_start, window.dst_start, window.num_tokens, window.group) == (153, 141, 39, 1)
    assert window.src_block_ids == (209, 210, 211)
    assert window.dst_block_ids == (50, 51, 52, 53)


def test_a_jump_shorter_than_the_window_copies_all_of_it() -> None:
    request = moving()
    request.segments = [ReusableRange(20, 50, 32, SOURCE, KVOrigin.MOVED)]
    assert spans(plan_jump(request, 20, cache().block, GROUPS)) == {0: (20, 50), 1: (20, 50)}


def test_a_window_tail_that_is_gone_shortens_the_jump_for_all_groups() -> None:
    jump = plan_jump(moving(), 20, cache(window=range(7)).block, GROUPS)
    assert spans(jump) == {0: (20, 100), 1: (61, 100)}, "block 7 begins at source token 112, prompt token 100"
    assert jump is not None
    assert jump.entries()[0].end == 100


def test_a_tail_just_long_enough_will_do() -> None:
    """39 tokens up to source token 128: blocks 5 to 7, of which the first is read from its tenth token on."""
    assert spans(plan_jump(moving(), 20, cache(window=range(5, 8)).block, GROUPS))[1] == (116 - 39, 116)
    assert plan_jump(moving(), 20, cache(window=range(6, 8)).block, GROUPS) is None


def test_without_any_tail_nothing_is_copied_in_any_group() -> None:
    request, empty = moving(), cache(window=range(0))
    assert plan_jump(request, 20, empty.block, GROUPS) is None
    assert not is_available(request, 20, empty.block, GROUPS)
    assert next_available(request, request.segments[0], 20, empty.block, GROUPS) == 180


def test_a_jump_begins_again_within_a_short_tail() -> None:
    """Two blocks of the window are left: no jump from the start, one from where they begin."""
    request, short = moving(), cache(window=range(8, 10))
    assert plan_jump(request, 20, short.block, GROUPS) is None
    start = next_available(request, request.segments[0], 20, short.block, GROUPS)
    assert start == 20 + 8 * BS - 32
    assert spans(plan_jump(request, start, short.block, GROUPS)) == {0: (start, start + 32), 1: (start, start + 32)}


def test_a_gap_in_full_attention_is_passed_over() -> None:
    request, gap = moving(), cache()
    del gap[0, 3]
    jump = plan_jump(request, 20, gap.block, GROUPS)
    assert spans(jump) == {0: (20, 36), 1: (20, 36)}
    request.carry_out(20, 36)
    assert next_available(request, request.segments[0], 36, gap.block, GROUPS) == 52


def test_a_jump_that_is_cut_for_its_length_goes_on_to_the_only_tail(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jumping, "MAX_BLOCKS", 4)
    assert spans(plan_jump(moving(), 20, cache().block, GROUPS))[0] == (20, 84)
    assert spans(plan_jump(moving(), 20, cache(window=range(9, 12)).block, GROUPS))[0] == (20, 180)


def test_a_window_may_reach_over_several_segments() -> None:
    request = moving()
    request.segments = [
        ReusableRange(20, 90, 32, SOURCE, KVOrigin.MOVED),
        ReusableRange(90, 110, 144, SOURCE, KVOrigin.MOVED),
    ]
    jump = plan_jump(request, 20, cache().block, GROUPS)
    assert jump is not None
    assert [(read.group.index, read.start, read.end) for read in jump.reads] == [
        (0, 20, 90),
        (0, 90, 110),
        (1, 71, 90),
        (1, 90, 110),
    ]
    trimmed = plan_trimmed(jump, 95)
    assert trimmed is not None
    assert [(read.group.index, read.start, read.end) for read in trimmed.reads] == [(0, 95, 110), (1, 95, 110)]


def test_larger_blocks_are_found_under_their_last_hash() -> None:
    groups = KVGroups((FULL, GroupFacts(1, 2 * BS, WINDOW - 1)), BS)
    assert [SOURCE.block_key(index, 2 * BS) for index in (0, 5, 6)] == [b"h1", b"h11", None]
    jump = plan_jump(moving(), 20, cache(window=range(9, 12, 2)).block, groups)
    assert spans(jump) == {0: (20, 180), 1: (141, 180)}
    assert jump is not None
    assert [block.block_id for block in jump.reads[1].blocks] == [209, 211]


def test_the_partial_block_of_every_size_is_found_under_the_tail_key() -> None:
    source = ServedSequence(np.arange(40, dtype=np.int32), BS, (b"h0", b"h1"), b"tail")
    assert [source.block_key(index) for index in range(4)] == [b"h0", b"h1", b"tail", None]
    assert [source.block_key(index, 2 * BS) for index in range(3)] == [b"h1", b"tail", None]
    assert [source.block_key(index, 4 * BS) for index in range(2)] == [b"tail", None]
    for size in (BS, 2 * BS, 4 * BS):
        for first in range(4):
            keys = [source.block_key(index, size) for index in range(first, 5)]
            assert source.block_keys(first, 5, size) == [key for key in keys if key is not None]


def test_kinds_are_told_by_the_exact_class() -> None:
    sliding = type("SlidingWindowSpec", (), {"block_size": 16, "sliding_window": 128, "extra_retained_tokens": 3})()
    assert read_groups([sliding])[0] == GroupFacts(0, 16, 130)
    assert GroupFacts(0, 16, 130).needed_from(200) == 70
    assert GroupFacts(0, 16).needed_from(200) == 0
    chunks = type("ChunkedLocalAttentionSpec", (), {"block_size": 16, "attention_chunk_size": 64})()
    (facts,) = read_groups([chunks])
    assert facts == GroupFacts(0, 16, 63, chunk=64)
    assert [facts.needed_from(end) for end in (63, 64, 65, 200)] == [0, 64, 64, 192]
    with pytest.raises(MoveRefused, match="kind SlidingWindowMLASpec"):
        read_groups([type("SlidingWindowMLASpec", (), {"block_size": 16})()])


@pytest.mark.parametrize("num_kv_heads", [1, 2, 8])
def test_a_page_whose_head_slots_are_keys_and_values_is_refused(num_kv_heads: int) -> None:
    """With two KV heads it has the shape of a page that is moved. Keys would be copied, and values turned."""
    backends = pytest.importorskip("vllm.v1.attention.backends.b12x", reason="a backend of vLLM 0.32")
    spec = FullAttentionSpec(block_size=64, num_kv_heads=num_kv_heads, head_size=128, dtype=torch.bfloat16)
    assert read_groups([spec]) == (GroupFacts(0, 64),)
    with pytest.raises(MoveRefused, match="kv cache: keys and values in head slots of their own"):
        read_groups([backends.B12xPagedAttentionBackend.customize_spec(spec)])
