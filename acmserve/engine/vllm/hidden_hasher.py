"""The hidden hasher: block hashes that nobody can make again.

Replaces `Request._block_hasher` of a request whose session was forgotten while the request is alive. vLLM wants a hash
for every full block. A drawn one costs a tenth of a real one, and names the block for nobody.

A read of the tier has it, too. It never makes a hash there, and tells that none of the read's is of its tokens.
"""

from __future__ import annotations

import secrets

from vllm.v1.core.kv_cache_utils import BlockHash
from vllm.v1.request import Request

_NUM_BYTES = 32


class HiddenHasher:
    """Callable as vLLM's block hasher: hashes of the full blocks that `request.block_hashes` lacks.

    `own_from` is a lineage hasher's. Of such a request nobody is told anything more, also of blocks in front.
    """

    own_from = 0

    def __init__(self, block_size: int) -> None:
        self._block_size = block_size

    def __call__(self, request: Request) -> list[BlockHash]:
        num_blocks = max(request.num_tokens // self._block_size - len(request.block_hashes), 0)
        drawn = secrets.token_bytes(num_blocks * _NUM_BYTES)
        return [BlockHash(drawn[start : start + _NUM_BYTES]) for start in range(0, len(drawn), _NUM_BYTES)]
