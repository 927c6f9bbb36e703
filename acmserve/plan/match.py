"""Finds where a new prompt repeats tokens that were served before: the raw material of an edit plan.

    source 0   a a a a a|x x x x x x|b b b b b b b|c c c c
                         ............ \\            \\      (folded away)
    prompt     a a a a a|m m|b b b b b b b|n|c c c c
                             Match          Match

Rules of the cover, from left to right over `prompt[start:stop]`:

1. A match is as long as it can be to the right, at least `min_tokens`, and verified token by token.
2. The longest match at a position wins. Among equals, the one wins that continues the diagonal of the match before it
   (same source, same distance between source and prompt). After that the earlier source wins, then the earlier
   position in it.
3. The next match starts behind the last one. A position without a match is skipped.

"Longest" is bounded so that the whole takes linear time whatever the tokens. An index of the sources' grams gives the
first 8 positions of a gram. A gram as frequent as a chat template's header can hide the right position behind 8 wrong
ones. So the gram that ends just *beyond* the best match is looked up too. Its positions are extended to the left (up to
4 times). A longer match must contain that gram, and the text behind a header is rarely frequent.

Tokens are chosen by clients, and the search runs in the scheduler's thread. So grams are hashed with a key that is
drawn for each process, and a look-up in the index ends after 64 slots. A gram without a place is not found. That costs
a match, never time.

The inner loop is C++ (csrc/match.hpp). The functions with a trailing `_twin` are the same rules in numpy, used where
the extension is not built. Knows integers only: no blocks, no messages, no cost model.
"""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

try:
    import acmserve._native as _native
except ImportError:  # not built: `acmserve doctor` says so, and the twin gives the same results, slower
    _native = None  # type: ignore[assignment]

# The key: odd, so that no bit of a token is lost.
GRAM_BASE = np.uint64(secrets.randbits(64) | 1)
SLOT_MIX = secrets.randbits(64) | 1
MAX_GRAM = 256
MAX_CANDIDATES = 8
MAX_REFINEMENTS = 4

TokenArray = NDArray[np.int32]


@dataclass(frozen=True, slots=True)
class TokenMatch:
    """`prompt[dst_start : dst_start + num_tokens]` equals `sources[source][src_start : src_start + num_tokens]`."""

    dst_start: int
    source: int
    src_start: int
    num_tokens: int


def common_prefix(prompt: TokenArray, source: TokenArray) -> int:
    """Number of leading tokens that the two int32 arrays share."""
    return common_prefix_twin(prompt, source) if _native is None else _native.common_prefix(prompt, source)


def find_matches(
    prompt: TokenArray, sources: Sequence[TokenArray], start: int, stop: int, min_tokens: int
) -> tuple[TokenMatch, ...]:
    """Cover `prompt[start:stop]` by matches with the sources, by the rules above.

    Args:
        prompt: int32 `[num_tokens]`.
        sources: int32 arrays. The order is the preference among equally long matches.
        start: first position that may be covered.
        stop: end of the positions that may be covered.
        min_tokens: matches shorter than this are not worth a move.

    Returns:
        Matches in order of `dst_start`, not overlapping in the prompt. They may overlap in a source.

    Raises:
        ValueError: `[start, stop)` is outside of the prompt, or `min_tokens` is below 1.

    """
    if _native is None:
        return find_matches_twin(prompt, sources, start, stop, min_tokens)
    rows = _native.find_matches(prompt, sources, start, stop, min_tokens, int(GRAM_BASE), SLOT_MIX)
    return tuple(TokenMatch(*row) for row in rows)


def common_prefix_twin(prompt: TokenArray, source: TokenArray) -> int:
    """`common_prefix` in numpy."""
    limit = min(len(prompt), len(source))
    different = prompt[:limit] != source[:limit]
    return int(different.argmax()) if different.any() else limit


def find_matches_twin(
    prompt: TokenArray, sources: Sequence[TokenArray], start: int, stop: int, min_tokens: int
) -> tuple[TokenMatch, ...]:
    """`find_matches` in numpy. Identical results."""
    if not 0 <= start <= stop <= len(prompt):
        raise ValueError("[start, stop) is outside of the prompt")
    if min_tokens < 1:
        raise ValueError("min_tokens must be at least 1")
    cover = _Cover(prompt, sources, start, stop, min(min_tokens, MAX_GRAM))
    matches: list[TokenMatch] = []
    at = start
    while at + min_tokens <= stop:
        best = cover.longest(at, matches[-1] if matches else None)
        if best.num_tokens >= min_tokens:
            matches.append(best)
            at += best.num_tokens
        else:
            at += 1
    return tuple(matches)


def gram_hashes(tokens: TokenArray, k: int) -> NDArray[np.uint64]:
    """Hash of each `tokens[i : i + k]`, uint64: the polynomial in GRAM_BASE modulo 2**64."""
    num_grams = max(len(tokens) - k + 1, 0)
    values = tokens.view(np.uint32).astype(np.uint64)
    hashes = np.zeros(num_grams, dtype=np.uint64)
    for i in range(k):
        hashes = hashes * GRAM_BASE + values[i : i + num_grams]
    return hashes


class _Cover:
    """The index of the sources' grams and the search at one prompt position."""

    def __init__(self, prompt: TokenArray, sources: Sequence[TokenArray], start: int, stop: int, k: int) -> None:
        self._prompt, self._sources = prompt, sources
        self._start, self._stop, self._k = start, stop, k
        hashes = [gram_hashes(source, k) for source in sources]
        where = [(index, position) for index, grams in enumerate(hashes) for position in range(len(grams))]
        flat = np.concatenate([*hashes, np.zeros(0, dtype=np.uint64)])
        # Stable: positions with one hash stay in (source, position) order.
        order = np.argsort(flat, kind="stable")
        wanted = gram_hashes(prompt[start:stop], k)
        self._where = [where[i] for i in order.tolist()]
        self._first = np.searchsorted(flat[order], wanted, side="left").tolist()
        self._last = np.searchsorted(flat[order], wanted, side="right").tolist()

    def longest(self, at: int, previous: TokenMatch | None) -> TokenMatch:
        """The best match that starts at prompt position `at`. 0 tokens where there is none."""
        best = TokenMatch(at, 0, 0, 0)
        if previous is not None:
            best = self._offer(best, previous.source, at + previous.src_start - previous.dst_start)
        for source, position in self._candidates(at):
            best = self._offer(best, source, position)
        for _ in range(MAX_REFINEMENTS):
            beyond = at + best.num_tokens - self._k + 1
            if best.num_tokens < self._k or beyond + self._k > self._stop:
                break
            before = best
            for source, position in self._candidates(beyond):
                best = self._offer(best, source, position - (beyond - at))
            if best is before:
                break
        return best

    def _candidates(self, at: int) -> list[tuple[int, int]]:
        first, last = self._first[at - self._start], self._last[at - self._start]
        return self._where[first : min(last, first + MAX_CANDIDATES)]

    def _offer(self, best: TokenMatch, source: int, position: int) -> TokenMatch:
        tokens, at = self._sources[source], best.dst_start
        if not 0 <= position < len(tokens):
            return best
        length = common_prefix_twin(self._prompt[at : self._stop], tokens[position:])
        return TokenMatch(at, source, position, length) if length > best.num_tokens else best
