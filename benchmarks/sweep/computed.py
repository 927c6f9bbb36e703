"""How many tokens of each prompt of a session a server computes, planned from the prompts alone. No engine.

    stock   all behind the longest prefix, in whole blocks, that any earlier prompt has        vLLM's prefix cache
    exact   all behind the longest prefix that one of the last prompts has
    reuse   what the plan of acmserve neither keeps nor moves

The plans are the product's own (`forecast`). The pool is never full, and no session knows the KV of another. Answers
are never what was recorded, so their tokens are computed when they come back, as in `bench trace`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import pairwise

import numpy as np

from acmserve.plan.estimate import ServedTokens, forecast
from acmserve.plan.source import Tokens

STOCK, EXACT, REUSE = "stock", "exact", "reuse"
BLOCK_TOKENS = 16
"""vLLM's default on a GPU. On a CPU it has 128, which costs stock some tokens more for each prompt."""
Counts = dict[str, int]


def count_computed(prompts: Iterable[tuple[int, ...]], block_tokens: int = BLOCK_TOKENS) -> Iterator[Counts]:
    """Computed tokens by server, prompt after prompt of one session. `block_tokens` are those of the stock server."""
    blocks: set[int] = set()
    served = {EXACT: ServedTokens(), REUSE: ServedTokens()}
    for prompt in prompts:
        tokens = np.array(prompt, dtype=np.int32)
        counts = {STOCK: _behind_blocks(tokens, blocks, block_tokens)}
        for fidelity, before in served.items():
            found = forecast(tokens, before, fidelity)
            moves = [(move.dst_start, move.src_start, move.num_tokens) for move in found.moves]
            served[fidelity] = before.after(tokens, found.num_kept, moves)
            counts[fidelity] = found.num_computed
        yield counts


def _behind_blocks(tokens: Tokens, known: set[int], size: int) -> int:
    """Tokens behind the first block that is not known. Then all blocks of the prompt are. The last token is computed.

    A block is known by its tokens and all in front of it, as in vLLM.
    """
    ends = range(0, len(tokens) + 1, size)
    chain, num_kept, is_known = 0, 0, True
    for start, end in pairwise(ends):
        chain = hash((chain, tokens[start:end].tobytes()))
        is_known = is_known and chain in known and end < len(tokens)
        num_kept = end if is_known else num_kept
        known.add(chain)
    return len(tokens) - num_kept
