"""Images and other media in a token sequence: what of a move is text, and whether it stands as far behind the media.

    source   [text A][image 1][text B][text C]           media have ids below zero, each item one of its own
    prompt   [text A][image 1][marker][text C]           one image in front of C in both: C moves by the tokens' delta
    prompt   [text A][marker][text C]                    none in front of it now

Media that a prompt begins with are kept like text, where they are the same items. A move never covers media. Their KV
depends on more than token ids.

M-RoPE gives an image as many positions as its longest side has, and more tokens than that. So text behind it stands at
another distance from its index than text in front of it. Text turns by one delta, the one of the indices, when the same
media stand in front of it as in the source. Else it is computed.

Knows ids and positions. Does not know which item an id stands for (`engine/requests/media_ids.py`).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from acmserve.plan.pieces import Move
from acmserve.plan.source import ServedSequence, Tokens

FIRST_MEDIA_ID = -2
"""Of the first item. The next ones lie below. -1 stands between texts in a search (`removed.py`)."""


@dataclass(frozen=True, slots=True)
class TextMoves:
    """`moves` cover text alone. `num_media` tokens of media and `num_shifted` of text were matched and are computed."""

    moves: tuple[Move, ...]
    num_media: int = 0
    num_shifted: int = 0


def has_media(tokens: Tokens) -> bool:
    """Whether an int32 sequence holds media."""
    return bool((tokens < 0).any())


def text_moves(
    moves: Sequence[Move],
    prompt: Tokens,
    sources: Sequence[ServedSequence],
    min_tokens: int,
    *,
    media_shift_positions: bool,
) -> TextMoves:
    """The text of `moves`, in pieces of at least `min_tokens`.

    With `media_shift_positions` (M-RoPE) a piece has to have the same media in front of it as in its source.
    """
    used = {move.source for move in moves}
    if not has_media(prompt) and not any(has_media(sources[index].tokens) for index in used):
        return TextMoves(tuple(moves))
    in_prompt = _Media.of(prompt)
    in_sources = {index: _Media.of(sources[index].tokens) for index in used}
    found: list[Move] = []
    num_media = num_shifted = 0
    for move in moves:
        src_end = move.src_start + move.num_tokens
        num_media += in_sources[move.source].num_in(move.src_start, src_end)
        for start, end in in_sources[move.source].texts(move.src_start, src_end):
            dst_start = move.dst_start + start - move.src_start
            if end - start < min_tokens:
                continue
            if media_shift_positions and not in_sources[move.source].same_in_front(start, in_prompt, dst_start):
                num_shifted += end - start
                continue
            found.append(Move(dst_start, start, end - start, move.source))
    return TextMoves(tuple(found), num_media, num_shifted)


@dataclass(frozen=True, slots=True)
class _Media:
    """Where media stand in a sequence: the places and ids of their tokens, in order, int64 and int32."""

    places: NDArray[np.int64]
    ids: Tokens

    @classmethod
    def of(cls, tokens: Tokens) -> _Media:
        places = np.flatnonzero(tokens < 0)
        return cls(places, tokens[places])

    def num_in_front(self, position: int) -> int:
        return int(np.searchsorted(self.places, position))

    def num_in(self, start: int, end: int) -> int:
        return self.num_in_front(end) - self.num_in_front(start)

    def same_in_front(self, position: int, other: _Media, other_position: int) -> bool:
        """Whether the same items, in the same order, stand in front of a place here and of one there."""
        num = self.num_in_front(position)
        return num == other.num_in_front(other_position) and bool(np.array_equal(self.ids[:num], other.ids[:num]))

    def texts(self, start: int, end: int) -> Iterator[tuple[int, int]]:
        """The ranges of `[start, end)` without media."""
        for place in self.places[self.num_in_front(start) : self.num_in_front(end)].tolist():
            if place > start:
                yield start, place
            start = place + 1
        if end > start:
            yield start, end
