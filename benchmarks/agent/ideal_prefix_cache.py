"""The best that any prefix cache can do: one that holds every prompt it ever saw, token by token, for ever.

    before   [a b c d e f]   [a b x y]
    prompt   [a b c d|q r s]             4 tokens are found, 3 are computed

No block size, no eviction, nothing to wait for. The last token of a prompt is always computed, since its logits are
wanted. Moved KV is outside of it: a server that moves may compute less.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence

import numpy as np

_BYTES = 4


class PrefixCache:
    """Prompts so far in lexical order: the longest common prefix with any of them is that with a neighbour."""

    def __init__(self) -> None:
        self._seen: list[bytes] = []

    def computed(self, tokens: Sequence[int]) -> int:
        """Tokens to compute for a prompt, which is remembered. An empty prompt costs nothing."""
        if not tokens:
            return 0
        # Most significant byte first: then bytes have the order of tokens.
        prompt = np.asarray(tokens, dtype=">u4").tobytes()
        at = bisect_left(self._seen, prompt)
        neighbours = self._seen[max(0, at - 1) : at + 1]
        num_found = max((_num_common(prompt, other) for other in neighbours), default=0)
        if at == len(self._seen) or self._seen[at] != prompt:
            self._seen.insert(at, prompt)
        return len(tokens) - min(num_found, len(tokens) - 1)


def _num_common(one: bytes, other: bytes) -> int:
    """Tokens that two prompts have in common at their beginning."""
    length = min(len(one), len(other))
    same = np.frombuffer(one[:length], dtype=">u4") == np.frombuffer(other[:length], dtype=">u4")
    return length // _BYTES if same.all() else int(np.argmin(same))
