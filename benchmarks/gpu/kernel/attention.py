"""Attention over moved KV, by a library that has none of our code: xformers, or torch's own where it is missing.

    moved        keys and values of a run, read through its block table
    library      queries behind the run attend to them
    definition   the same in float64: the source's values, and its keys turned by the definition of a rotation, and
                 rounded once as the cache rounds

So a move that writes right rows into wrong places, or turns by another angle, answers wrongly. Rows of a latent are no
keys and values, and are left out. Needs torch only, and takes xformers where it is installed and the KV is on a GPU.
"""

from __future__ import annotations

import importlib
import importlib.util
from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from acmserve.kernels.layout import KVLayer
from acmserve.kernels.movers import reference
from acmserve.kernels.runs import BlockSpan, MoveRun

NUM_QUERIES, QUERIES_PER_HEAD = 4, 4
MAX_ERROR = 0.03
"""Of the largest element of an answer: some roundings of bfloat16. Unturned keys are off by half of it and more."""


def library_on(device: str) -> str:
    """Whose attention answers there."""
    is_there = device == "cuda" and importlib.util.find_spec("xformers") is not None
    return "xformers" if is_there else "torch"


def attention_error(layer: KVLayer, runs: Sequence[MoveRun], library: str) -> float:
    """The largest difference of an answer over moved KV from the definition, over its largest element."""
    assert layer.rope is not None
    errors = []
    for run in runs:
        src_key, src_value = _rows(layer, run.source)
        key, value = _rows(layer, run.destination)
        query = 3 * torch.randn(
            NUM_QUERIES, QUERIES_PER_HEAD * key.shape[1], key.shape[2], dtype=key.dtype, device=key.device
        )
        answer = _attend(query, key, value, library).double()
        turned = reference.narrow(reference.rotate(src_key, layer.rope, run.delta), layer.kv.dtype)
        expected = _define(query, turned.double(), src_value.double())
        errors.append(float((answer - expected).abs().max() / expected.abs().max()))
    return max(errors)


def _rows(layer: KVLayer, span: BlockSpan) -> tuple[Tensor, Tensor]:
    """Keys and values in bfloat16, `[num_tokens, num_kv_heads, head_size]`: whole blocks, laid side by side and cut.

    torch cannot index 8-bit floats everywhere, so blocks are taken as integers. bfloat16 has all of their numbers.
    """
    stored = layer.kv.view(reference.STORED_AS[layer.kv.element_size()])
    blocks = stored[torch.tensor(list(span.block_ids), device=layer.kv.device)].view(layer.kv.dtype).to(torch.bfloat16)
    rows = blocks.transpose(1, 2).flatten(0, 1)[span.offset : span.offset + span.num_tokens]
    key, value = rows.split([layer.layout.head_size, layer.layout.value_size], dim=-1)
    return key, value


def _attend(query: Tensor, key: Tensor, value: Tensor, library: str) -> Tensor:
    """Every query attends to every key. `[num_queries, num_heads, head_size]`."""
    inputs = [query, *(one.repeat_interleave(QUERIES_PER_HEAD, dim=1) for one in (key, value))]
    if library == "xformers":
        ops = importlib.import_module("xformers.ops")
        answer: Tensor = ops.memory_efficient_attention(*(one[None].contiguous() for one in inputs))
        return answer[0]
    return scaled_dot_product_attention(*(one.transpose(0, 1)[None] for one in inputs))[0].transpose(0, 1)


def _define(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    """softmax(q k / sqrt(d)) v in float64, one KV head after the other."""
    answers = []
    for head in range(key.shape[1]):
        mine = slice(head * QUERIES_PER_HEAD, (head + 1) * QUERIES_PER_HEAD)
        scores = query[:, mine].double() @ key[:, head].T / query.shape[-1] ** 0.5
        answers.append(scores.softmax(dim=-1) @ value[:, head])
    return torch.cat(answers, dim=1)
