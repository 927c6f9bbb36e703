"""All or none: what competes with text that is computed anew is computed anew as well.

    moved    [.. anchor: cedar .... anchor: elm .... and so on ..]
    anew           |- a repair -|   |- closure -|                    the phrase is the same, so both answer to it

Repaired text beats moved text of the same form, whichever of the two is right. So a phrase that is computed in one
place, with the `ECHO_BEHIND` tokens behind it, is computed so in every place.

`PhraseTable` knows the phrases of the moved text once, and closes any marks over them. With `rest_tokens` what is left
between two marks, and is shorter, is marked as well and pulls in what competes with it. Text in which this takes most
of what was left is one list of a form.

Pure. The result holds the marks that it was given, grows with them, and closing it again changes nothing. Where it does
not settle within `MAX_ROUNDS` everything is marked: chosen tokens must not hold up the planner.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from acmserve.plan.match import TokenArray, gram_hashes
from acmserve.plan.ngrams import Mask, cover

ECHO_TOKENS = 3
"""Tokens of a phrase: two are chance in any text, and four miss `key: value` lines with short keys."""
ECHO_BEHIND = 2
"""Tokens behind a phrase that belong to it. With one, half of a value of two tokens is moved: up to 9 nats (LOG)."""
MAX_ROUNDS = 16
_GAP = np.full(ECHO_BEHIND, -1, dtype=np.int32)


class PhraseTable:
    """The phrases of several texts (int32 [n] each). None reaches from one text into another."""

    def __init__(self, texts: Sequence[TokenArray]) -> None:
        self._lengths = [len(text) for text in texts]
        joined = np.concatenate([part for text in texts for part in (text, _GAP)])
        num_gaps = np.concatenate([[0], np.cumsum(joined < 0)])
        hashes = gram_hashes(joined, ECHO_TOKENS)
        self._is_inside: Mask = num_gaps[ECHO_TOKENS:] == num_gaps[: len(hashes)]
        # Number of each phrase, so that what is known of one place is known of all.
        _, self._phrase = np.unique(hashes, return_inverse=True)

    def close(self, anew: Sequence[Mask], rest_tokens: int = 1) -> list[Mask]:
        """The marks, bool [n] of each text, with all that competes with them."""
        # Between two texts stands what is computed, so a phrase at an end has all behind it.
        mask = np.concatenate([part for marks in anew for part in (marks, _GAP < 0)])
        is_done = np.zeros(len(self._phrase), dtype=np.bool_)
        for _ in range(MAX_ROUNDS):
            before = int(mask.sum())
            fill_rests(mask, rest_tokens)
            is_done[self._phrase[self._is_inside & _is_computed(mask, len(self._phrase))]] = True
            mask |= cover(is_done[self._phrase] & self._is_inside, ECHO_TOKENS + ECHO_BEHIND)[: len(mask)]
            if int(mask.sum()) == before:
                break
        else:
            mask[:] = True
        ends = np.cumsum([length + ECHO_BEHIND for length in self._lengths]) - ECHO_BEHIND
        return [mask[end - length : end] for end, length in zip(ends, self._lengths, strict=True)]


def fill_rests(anew: Mask, rest_tokens: int) -> None:
    """Mark what is left between marks, or beside an end, and is shorter than `rest_tokens`, in place."""
    edges = np.flatnonzero(np.diff(anew, prepend=True, append=True)).reshape(-1, 2)
    short = edges[edges[:, 1] - edges[:, 0] < rest_tokens]
    if len(short):
        steps = np.zeros(len(anew) + 1, dtype=np.int8)
        steps[short[:, 0]], steps[short[:, 1]] = 1, -1
        anew |= np.cumsum(steps[:-1], dtype=np.int8) > 0


def _is_computed(anew: Mask, num_phrases: int) -> Mask:
    """For each phrase whether it is marked whole, with what is behind it."""
    sums = np.concatenate([[0], np.cumsum(anew)])
    ends = np.minimum(np.arange(num_phrases) + ECHO_TOKENS + ECHO_BEHIND, len(anew))
    found: Mask = sums[ends] - sums[:num_phrases] == ends - np.arange(num_phrases)
    return found
