"""The rows of a batch with holes, without an engine: lengths, places and positions, and what is no chunk."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from vllm.v1.attention.backend import CommonAttentionMetadata

from acmserve.engine.vllm.hooks import HolePass
from acmserve.engine.vllm.passes.rows import AttentionRows, plan_rows, positions_of, split_rows, splitting_builders
from acmserve.errors import IntegrityError

PASS = HolePass("b", ((10, 13), (20, 22), (40, 41)))
BATCH = ["a", "b", "c"]
NUM_SCHEDULED = np.array([1, 6, 4])
LENGTHS = np.array([100, 41, 4])


def rows() -> AttentionRows:
    return plan_rows([PASS], BATCH, NUM_SCHEDULED, LENGTHS)


def test_a_row_for_each_span_and_for_each_other_request() -> None:
    planned = rows()
    assert planned.requests.tolist() == [0, 1, 1, 1, 2]
    assert planned.ends.tolist() == [100, 13, 22, 41, 4]
    assert planned.starts.tolist() == [0, 1, 4, 6, 7, 11]
    assert {column.dtype for column in (planned.requests, planned.ends, planned.starts)} == {np.dtype(np.int32)}


def test_tokens_stand_where_they_belong() -> None:
    assert positions_of(rows()).tolist() == [99, 10, 11, 12, 20, 21, 40, 0, 1, 2, 3]


def test_without_passes_the_rows_are_the_requests() -> None:
    planned = plan_rows([], BATCH, NUM_SCHEDULED, LENGTHS)
    assert planned.requests.tolist() == [0, 1, 2]
    assert planned.ends.tolist() == LENGTHS.tolist()
    assert positions_of(planned).tolist() == [99, 35, 36, 37, 38, 39, 40, 0, 1, 2, 3]


@pytest.mark.parametrize(
    ("one", "message"),
    [
        (HolePass("b", ((10, 13), (40, 41))), r"pass of b: .* is no chunk of 6 tokens up to 41"),
        (HolePass("b", ((10, 13), (20, 22), (41, 42))), r"is no chunk of 6 tokens up to 41"),
        (HolePass("gone", ((10, 13),)), "pass of gone: the request is not in the batch"),
    ],
    ids=["too few tokens", "another end", "another batch"],
)
def test_a_pass_that_is_not_its_chunk_stops_the_step(one: HolePass, message: str) -> None:
    with pytest.raises(IntegrityError, match=message):
        plan_rows([one], BATCH, NUM_SCHEDULED, LENGTHS)


def test_metadata_has_the_blocks_of_a_request_in_each_of_its_rows() -> None:
    tables = torch.arange(12, dtype=torch.int32).reshape(3, 4)
    starts = torch.tensor([0, 1, 7, 11], dtype=torch.int32)
    lengths: Any = torch.from_numpy(LENGTHS).int()
    common = CommonAttentionMetadata(
        query_start_loc=starts,
        query_start_loc_cpu=starts,
        seq_lens=lengths,
        num_reqs=3,
        num_actual_tokens=11,
        max_query_len=6,
        max_seq_len=100,
        block_table_tensor=tables,
        slot_mapping=torch.arange(11),
        is_prefilling=torch.tensor([False, True, True]),
    )
    split = split_rows(common, rows())
    assert split.num_reqs == 5
    assert (split.max_query_len, split.max_seq_len, split.num_actual_tokens) == (4, 100, 11)
    assert split.seq_lens.tolist() == [100, 13, 22, 41, 4]
    assert split.query_start_loc.tolist() == split.query_start_loc_cpu.tolist() == [0, 1, 4, 6, 7, 11]
    assert split.block_table_tensor.tolist() == tables[[0, 1, 1, 1, 2]].tolist()
    assert split.is_prefilling is not None
    assert split.is_prefilling.tolist() == [False, True, True, True, True]
    assert common.num_reqs == 3, "the batch of vLLM stays what it was"


def test_a_group_whose_metadata_nobody_asks_for_stops_the_step() -> None:
    """Its attention would be that of a chunk."""

    class Builder:
        def build(self, common_prefix_len: int, common_attn_metadata: Any, fast_build: bool = False) -> bool:
            return fast_build

    asked, forgotten = Builder(), Builder()
    common = CommonAttentionMetadata(
        query_start_loc=torch.tensor([0, 1, 7, 11], dtype=torch.int32),
        query_start_loc_cpu=torch.tensor([0, 1, 7, 11], dtype=torch.int32),
        seq_lens=torch.from_numpy(LENGTHS).int(),
        num_reqs=3,
        num_actual_tokens=11,
        max_query_len=6,
        max_seq_len=100,
        block_table_tensor=torch.zeros((3, 4), dtype=torch.int32),
        slot_mapping=torch.arange(11),
    )
    with splitting_builders([asked], rows()):
        assert asked.build(0, common) is True
    with (
        pytest.raises(IntegrityError, match="passes: 1 of 2 attention groups have no rows"),
        splitting_builders([asked, forgotten], rows()),
    ):
        asked.build(0, common)
    assert not {"build"} & (vars(asked).keys() | vars(forgotten).keys())


@pytest.mark.parametrize(
    ("size", "splits", "bounded"), [(513, 0, 1), (512, 0, 0), (513, 32, 32)], ids=["many", "few", "bounded already"]
)
def test_rows_of_many_tokens_are_not_split(size: int, splits: int, bounded: int) -> None:
    """Else FlashAttention 3 keeps a partial output of each split, of all tokens of the step."""
    built = SimpleNamespace(max_num_splits=splits)
    builder = SimpleNamespace(build=lambda *args, **kwargs: built)
    planned = plan_rows([], ["a"], np.array([size]), np.array([size]))
    starts = torch.tensor([0, size], dtype=torch.int32)
    common = CommonAttentionMetadata(
        query_start_loc=starts,
        query_start_loc_cpu=starts,
        seq_lens=starts[1:],
        num_reqs=1,
        num_actual_tokens=size,
        max_query_len=size,
        max_seq_len=size,
        block_table_tensor=torch.zeros((1, 4), dtype=torch.int32),
        slot_mapping=torch.arange(size),
    )
    with splitting_builders([builder], planned):
        assert builder.build(0, common).max_num_splits == bounded
