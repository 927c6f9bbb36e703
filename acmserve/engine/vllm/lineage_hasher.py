"""The lineage hasher: vLLM's block hashes, with the keys of moved KV mixed in where it begins.

Replaces `Request._block_hasher` of a request that has marks. For blocks in front of the first mark it yields the very
hashes of the stock hasher, so that exact prefixes are shared with everybody. vLLM's own extra keys (cache salt) stay.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from vllm.v1.core.kv_cache_utils import BlockHash, generate_block_hash_extra_keys, hash_block_tokens
from vllm.v1.request import Request

from acmserve.plan.lineage import LineageMark, marks_in


class LineageHasher:
    """Callable as vLLM's block hasher: the hashes of the full blocks that `request.block_hashes` lacks.

    `marks` is the live list of the session request: a mark that is taken back changes later hashes
    (`block_pool.rehash` drops those that were already made).
    """

    def __init__(self, hash_function: Callable[[Any], bytes], block_size: int, marks: Sequence[LineageMark]) -> None:
        self._hash_function = hash_function
        self._block_size = block_size
        self.marks = marks

    def __call__(self, request: Request) -> list[BlockHash]:
        return list(self.extended(request, request.block_hashes)[len(request.block_hashes) :])

    def extended(self, request: Request, known: Sequence[BlockHash]) -> tuple[BlockHash, ...]:
        """The hashes of all full blocks of `request`, of which the first are `known`. Changes nothing."""
        bs = self._block_size
        hashes = list(known)
        previous = hashes[-1] if hashes else None
        for start in range(len(hashes) * bs, request.num_tokens - bs + 1, bs):
            extra_keys, _ = generate_block_hash_extra_keys(request, start, start + bs, 0)
            if keys := marks_in(self.marks, start, start + bs):
                extra_keys = (*(extra_keys or ()), *keys)
            tokens = request.all_token_ids[start : start + bs]
            previous = hash_block_tokens(self._hash_function, previous, tokens, extra_keys)
            hashes.append(previous)
        return tuple(hashes)
