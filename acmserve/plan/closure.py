"""All or none: what competes with text that is computed anew is computed anew as well.

    moved    [.. anchor: cedar .... anchor: elm .... and so on ..]
    anew           |- a repair -|   |- closure -|                    the phrase is the same, so both answer to it

Repaired text beats moved text of the same form, whichever of the two is right. So a phrase that is computed in one
place, with the `ECHO_BEHIND` tokens behind it, is computed so in every place. What is left between
two such places and is shorter than the least rest is computed, too, and may hold phrases of its own.

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


def close(texts: Sequence[TokenArray], anew: Sequence[Mask], rest_tokens: int) -> list[Mask]:
    """The masks with all that competes with them. `texts` are int32 [n], of each text `anew` is bool [n]."""
    if not texts:
        return []
    gap = np.full(ECHO_BEHIND, -1, dtype=np.int32)
    text = np.concatenate([part for piece in texts for part in (piece, gap)])
    # Between two texts stands what is computed. No phrase reaches into it, and none that ends there goes further.
    mask = np.concatenate([part for marks in anew for part in (marks, gap < 0)])
    hashes, phrase = np.unique(gram_hashes(text, ECHO_TOKENS), return_inverse=True)
    inside = ~cover_of_gaps(text)
    for _ in range(MAX_ROUNDS):
        before = int(mask.sum())
        fill_rests(mask, rest_tokens)
        done = np.zeros(len(hashes), dtype=np.bool_)
        done[phrase[_computed(mask, len(phrase)) & inside]] = True
        mask |= cover(done[phrase] & inside, ECHO_TOKENS + ECHO_BEHIND)[: len(mask)]
        if int(mask.sum()) == before:
            break
    else:
        mask[:] = True
    ends = np.cumsum([len(piece) + ECHO_BEHIND for piece in texts])
    return [mask[end - ECHO_BEHIND - len(piece) : end - ECHO_BEHIND] for piece, end in zip(texts, ends, strict=True)]


def fill_rests(anew: Mask, rest_tokens: int) -> None:
    """Mark what is left between marks, or beside an end, and is shorter than `rest_tokens`, in place."""
    edges = np.flatnonzero(np.diff(anew, prepend=True, append=True)).reshape(-1, 2)
    for start, end in edges[edges[:, 1] - edges[:, 0] < rest_tokens].tolist():
        anew[start:end] = True


def cover_of_gaps(text: TokenArray) -> Mask:
    """For each phrase of `text` whether it reaches into what stands between two texts."""
    gaps = np.concatenate([[0], np.cumsum(text < 0)])
    num_phrases = len(text) - ECHO_TOKENS + 1
    found: Mask = gaps[ECHO_TOKENS : ECHO_TOKENS + num_phrases] > gaps[:num_phrases]
    return found


def _computed(mask: Mask, num_phrases: int) -> Mask:
    """For each phrase whether it and the tokens behind it are marked."""
    width = ECHO_TOKENS + ECHO_BEHIND
    sums = np.concatenate([[0], np.cumsum(np.append(mask, np.zeros(ECHO_BEHIND, dtype=np.bool_)))])
    whole: Mask = sums[width : width + num_phrases] - sums[:num_phrases] == width
    return whole
