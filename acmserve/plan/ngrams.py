"""Where a text repeats phrases of the text that was removed in front of it: sets of n-grams of token ids.

A phrase is `k` tokens in a row. It is known by its 64-bit hash, so that 32K tokens cost two sorts. Of each phrase the
first occurrence counts, for text sees only what stands in front of it.

Pure numpy. A collision (1 in 2**32 for 64K phrases) makes a token look repeated that is not. Nothing is lost by it.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from acmserve.plan.match import TokenArray, gram_hashes

Mask = NDArray[np.bool_]


class GramIndex:
    """The phrases of `num_tokens` tokens in spans of one sequence, each with the token behind its first occurrence.

    `spans` are `[start, end)` in order. No phrase reaches over the end of one.
    """

    def __init__(self, tokens: TokenArray, spans: Sequence[tuple[int, int]], num_tokens: int) -> None:
        self.num_tokens = num_tokens
        hashes = [np.zeros(0, dtype=np.uint64)]
        ends = [np.zeros(0, dtype=np.int64)]
        for start, end in spans:
            grams = gram_hashes(np.ascontiguousarray(tokens[start:end]), num_tokens)
            hashes.append(grams)
            ends.append(np.arange(len(grams), dtype=np.int64) + start + num_tokens)
        # The index of the first occurrence, which is the earliest: spans are in order.
        self._hashes, first = np.unique(np.concatenate(hashes), return_index=True)
        self._ends = np.concatenate(ends)[first]

    def find(self, text: TokenArray, limit: int) -> Mask:
        """For each phrase `text[i : i + num_tokens]` whether it occurs, whole, in front of token `limit`."""
        grams = gram_hashes(np.ascontiguousarray(text), self.num_tokens)
        if not len(self._hashes):
            return np.zeros(len(grams), dtype=np.bool_)
        at = np.minimum(np.searchsorted(self._hashes, grams), len(self._hashes) - 1)
        found: Mask = (self._hashes[at] == grams) & (self._ends[at] <= limit)
        return found


def cover(found: Mask, num_tokens: int) -> Mask:
    """For each token whether it lies in a phrase of `num_tokens` that was found: bool [len(found) + num_tokens - 1]."""
    mask = np.zeros(len(found) + num_tokens - 1, dtype=np.bool_)
    for i in range(num_tokens):
        mask[i : i + len(found)] |= found
    return mask
