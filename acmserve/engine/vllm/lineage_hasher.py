"""The lineage hasher: vLLM's block hashes, with the keys of moved KV mixed in where it begins.

Replaces `Request._block_hasher` of a request that has marks. For blocks in front of the first mark it yields the very
hashes of the stock hasher, so that exact prefixes are shared with everybody. vLLM's own extra keys stay: cache salt,
adapter, images. The first block of a later load of an adapter has one more (`engine/requests/adapter_loads.py`).
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
    (`block_pool.rehash` drops those that were already made). `adapter_key` joins the hash of the first block.
    """

    def __init__(
        self,
        hash_function: Callable[[Any], bytes],
        block_size: int,
        marks: Sequence[LineageMark],
        adapter_key: bytes | None = None,
    ) -> None:
        self._hash_function = hash_function
        self._block_size = block_size
        self._adapter_key = adapter_key
        self.marks = marks

    @property
    def own_from(self) -> int | None:
        """The first token from which on hashes are not vLLM's. None where all of them are."""
        if self._adapter_key is not None:
            return 0
        return min((mark.position for mark in self.marks), default=None)

    def __call__(self, request: Request) -> list[BlockHash]:
        return list(self.extended(request, request.block_hashes)[len(request.block_hashes) :])

    def extended(self, request: Request, known: Sequence[BlockHash]) -> tuple[BlockHash, ...]:
        """The hashes of all full blocks of `request`, of which the first are `known`. Changes nothing."""
        bs = self._block_size
        hashes = list(known)
        previous = hashes[-1] if hashes else None
        for start in range(len(hashes) * bs, request.num_tokens - bs + 1, bs):
            extra_keys, _ = generate_block_hash_extra_keys(request, start, start + bs, 0)
            keys = marks_in(self.marks, start, start + bs)
            if self._adapter_key is not None and not start:
                keys = (self._adapter_key, *keys)
            if keys:
                extra_keys = (*(extra_keys or ()), *keys)
            tokens = request.all_token_ids[start : start + bs]
            previous = hash_block_tokens(self._hash_function, previous, tokens, extra_keys)
            hashes.append(previous)
        return tuple(hashes)
