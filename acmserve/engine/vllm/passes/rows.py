"""Lays the holes of a request out as rows of one batch: each a query of its own, and all with the request's blocks.

    request     [ copied )[ hole A )[ copied ....)[ hole B )[ copied )[ rest )     true positions
    vLLM        [ counted as computed ............)[ A )[ B )[ rest )              one chunk, which ends alike
    tokens      A A A B B rest rest rest                                           as many, in this order
    attention   row A, length to A's end | row B, length to B's end | row rest, the whole length

vLLM counts the pass as one chunk behind the copied tokens. So lengths, the sampled position and all bookkeeping are
right as they are. Two things are not: where the tokens of that chunk stand, and how far each of them sees.

Two methods of each model runner are wrapped, `runner_v1.py` and `runner_v2.py`. A step without holes runs vLLM's own.

Knows a batch and its metadata. Does not know plans or copies: those are carried out before the forward pass.

Decision: metadata of rows are built as for a step of drafts, `fast_build`. FlashAttention 3 otherwise plans its blocks
in a buffer, which has room for as many rows as an engine has requests.

It also splits long lengths among the card's processors, and keeps a partial output of each split. vLLM leaves their
number open where a step is longer than its CUDA graphs: its own queries are long then, and not split. Rows are short.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from acmserve.engine.vllm.hooks import HolePass
from acmserve.errors import IntegrityError

if TYPE_CHECKING:
    import torch
    from vllm.v1.attention.backend import CommonAttentionMetadata

_MOST_SPLIT_TOKENS = 512
"""vLLM bounds the splits of as many tokens, the longest of its CUDA graphs. More tokens fill a card without."""
ROWS = "_acm_rows"
"""The attribute under which rows wait between the two wrapped methods."""


@dataclass(frozen=True, slots=True)
class AttentionRows:
    """The rows of a batch with holes. Row i is of the request at index `requests[i]`.

    Each is int32 [rows], and `starts` has one more. `ends` are the lengths up to which the rows see. `starts` says
    where their tokens begin in the batch.
    """

    requests: np.ndarray
    ends: np.ndarray
    starts: np.ndarray

    def tokens_of(self, index: int) -> slice:
        """Where in the batch the tokens of the request at `index` stand."""
        mine = np.flatnonzero(self.requests == index)
        return slice(int(self.starts[mine[0]]), int(self.starts[mine[-1] + 1]))


def plan_rows(
    passes: Sequence[HolePass], request_ids: Sequence[str], num_scheduled: np.ndarray, lengths: np.ndarray
) -> AttentionRows:
    """The rows of a batch: one for each span of a pass, and one for each other request.

    `lengths` are those of the requests behind the step. Raises `IntegrityError` for a pass that is not its chunk.
    """
    spans = {one.request_id: one.spans for one in passes}
    requests: list[int] = []
    ends: list[int] = []
    sizes: list[int] = []
    for index, request_id in enumerate(request_ids):
        size, length = int(num_scheduled[index]), int(lengths[index])
        found = spans.pop(request_id, ((length - size, length),))
        if sum(end - start for start, end in found) != size or found[-1][1] != length:
            raise IntegrityError(f"pass of {request_id}: {found} is no chunk of {size} tokens up to {length}")
        requests += [index] * len(found)
        ends += [end for _, end in found]
        sizes += [end - start for start, end in found]
    if spans:
        raise IntegrityError(f"pass of {min(spans)}: the request is not in the batch")
    starts = np.concatenate([[0], np.cumsum(sizes)])
    return AttentionRows(*(np.asarray(column, dtype=np.int32) for column in (requests, ends, starts)))


def positions_of(rows: AttentionRows) -> np.ndarray:
    """The position of each token of the batch, int64."""
    sizes = np.diff(rows.starts)
    return np.repeat(rows.ends - rows.starts[1:], sizes) + np.arange(rows.starts[-1])


def split_rows(common: CommonAttentionMetadata, rows: AttentionRows) -> CommonAttentionMetadata:
    """The metadata of a batch with a row for each hole."""
    import torch

    device = common.seq_lens.device
    starts, ends = torch.from_numpy(rows.starts), torch.from_numpy(rows.ends)
    requests = torch.from_numpy(rows.requests).long()
    return common.replace(
        query_start_loc=on_device(starts, device),
        query_start_loc_cpu=starts,
        seq_lens=on_device(ends, device),
        seq_lens_cpu_upper_bound=ends,
        num_reqs=len(ends),
        max_query_len=int(np.diff(rows.starts).max()),
        block_table_tensor=common.block_table_tensor[on_device(requests, device)],
        is_prefilling=None if common.is_prefilling is None else common.is_prefilling[requests],
        _num_computed_tokens_cache=None,
        _token_to_req_indices_cache=None,
    )


def on_device(numbers: torch.Tensor, device: torch.device) -> torch.Tensor:
    """Numbers of the host there, copied on its stream. Nobody waits for the copy."""
    return numbers if device.type == "cpu" else numbers.pin_memory().to(device, non_blocking=True)


def _bound_splits(metadata: Any, num_tokens: int) -> None:
    """Rows of many tokens are not split: their partial outputs would be gibibytes, which vLLM has not set aside."""
    if num_tokens > _MOST_SPLIT_TOKENS and getattr(metadata, "max_num_splits", None) == 0:
        metadata.max_num_splits = 1


@contextmanager
def splitting_builders(builders: Sequence[Any], rows: AttentionRows) -> Iterator[None]:
    """Meanwhile the builders see the rows. Raises `IntegrityError` where one of them was not asked for metadata."""
    asked: set[int] = set()

    def splitting(number: int, build: Callable[..., Any]) -> Callable[..., Any]:
        def build_rows(common_prefix_len: int, common_attn_metadata: Any, *args: Any, **kwargs: Any) -> Any:
            kwargs["fast_build"] = True
            asked.add(number)
            built = build(common_prefix_len, split_rows(common_attn_metadata, rows), *args, **kwargs)
            _bound_splits(built, int(rows.starts[-1]))
            return built

        return build_rows

    for number, builder in enumerate(builders):
        builder.build = splitting(number, builder.build)
    try:
        yield
    finally:
        for builder in builders:
            del builder.build
    if len(asked) < len(builders):
        raise IntegrityError(f"passes: {len(builders) - len(asked)} of {len(builders)} attention groups have no rows")
