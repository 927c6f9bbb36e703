"""Cuts a long text into fragments near equal token counts, at line or sentence boundaries.

    pieces    [user message 1 ..............][user message 2 ........................]     one or more texts
    targets          |1/4           |2/4           |3/4                                     in tokens
    cuts            |              |                 |                                      the nearest good boundary
    fragments [======][============][.=================][============================]

A boundary is good in this order: where another fragment ends, between two messages, after a line, after a sentence,
after a word, anywhere. A worse kind is taken only when no better one lies within half a fragment of the target, and is
not looked for before. Pure. Offsets in, offsets out.
"""

from __future__ import annotations

import re
from bisect import bisect_left
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import cache, partial
from itertools import pairwise

from acmserve.context.session.fragment import Piece
from acmserve.context.transcript.message import Place
from acmserve.context.transcript.tokenizer import Tokenizer

_LINE = re.compile(r"\n+")
_SENTENCE = re.compile(r"[.!?][\"')\]]*\s+|[\u3002\uff01\uff1f]")
_WORD = re.compile(r"\s+")
_PATTERNS = (_LINE, _SENTENCE, _WORD)


@dataclass(frozen=True, slots=True)
class _Text:
    """One piece with its text, and where it begins in the line of all pieces (characters and tokens)."""

    piece: Piece
    text: str
    starts: Sequence[int]
    first_char: int
    first_token: int


def plan_split(
    pieces: Sequence[tuple[Piece, str]],
    num_fragments: int,
    tokenizer: Tokenizer,
    ends: Collection[tuple[Place, int]] = (),
) -> list[tuple[tuple[Piece, ...], int]]:
    """Cut `pieces` (with their texts, in order) into at most `num_fragments` runs of pieces, with their token counts.

    `ends` are where fragments begin and end. Fewer come back where the text has fewer tokens or too few boundaries.
    None is empty.
    """
    line = _lay_out(pieces, tokenizer)
    if not line:
        return []
    num_tokens = line[-1].first_token + len(line[-1].starts)
    num_chars = line[-1].first_char + len(line[-1].text)
    num_fragments = max(1, min(num_fragments, num_tokens))
    width = Fraction(num_tokens, num_fragments)
    good: list[Callable[[Sequence[_Text]], _Boundaries]] = [partial(_at_ends, ends), _between_texts]
    good += [*map(_behind, _PATTERNS), _between_tokens]
    kinds = [cache(partial(kind, line)) for kind in good]
    cuts = [0]
    for k in range(1, num_fragments):
        cut = _nearest(kinds, k * width, width / 2, cuts[-1], num_chars)
        if cut is not None:
            cuts.append(cut)
    cuts.append(num_chars)
    return [_run(line, start, end) for start, end in pairwise(cuts)]


def _lay_out(pieces: Sequence[tuple[Piece, str]], tokenizer: Tokenizer) -> list[_Text]:
    line: list[_Text] = []
    char = token = 0
    for piece, text in pieces:
        starts = [int(start) for start in tokenizer.starts(text)]
        line.append(_Text(piece, text, starts, char, token))
        char, token = char + len(text), token + len(starts)
    return line


@dataclass(frozen=True, slots=True)
class _Boundaries:
    """Boundaries of one kind, ascending: their positions in tokens (of the next token), and in characters."""

    tokens: list[int]
    chars: list[int]


def _between_texts(line: Sequence[_Text]) -> _Boundaries:
    return _Boundaries([text.first_token for text in line[1:]], [text.first_char for text in line[1:]])


def _at_ends(ends: Collection[tuple[Place, int]], line: Sequence[_Text]) -> _Boundaries:
    there: dict[Place, list[int]] = {}
    for place, at in ends:
        there.setdefault(place, []).append(at)
    found = {
        (text.first_token + bisect_left(text.starts, at - text.piece.start), text.first_char + at - text.piece.start)
        for text in line
        for at in there.get(text.piece.place, ())
        if text.piece.start <= at <= text.piece.end
    }
    return _Boundaries([token for token, _ in sorted(found)], [char for _, char in sorted(found)])


def _behind(pattern: re.Pattern[str]) -> Callable[[Sequence[_Text]], _Boundaries]:
    def boundaries(line: Sequence[_Text]) -> _Boundaries:
        found = _Boundaries([], [])
        for text in line:
            for match in pattern.finditer(text.text):
                found.chars.append(text.first_char + match.end())
                found.tokens.append(text.first_token + bisect_left(text.starts, match.end()))
        return found

    return boundaries


def _between_tokens(line: Sequence[_Text]) -> _Boundaries:
    """Several tokens may begin at one character (parts of an emoji). The first of them is the boundary."""
    found = _Boundaries([], [])
    for text in line:
        for index, start in enumerate(text.starts):
            if index == 0 or start != text.starts[index - 1]:
                found.chars.append(text.first_char + start)
                found.tokens.append(text.first_token + index)
    return found


def _nearest(
    kinds: Sequence[Callable[[], _Boundaries]], target: Fraction, reach: Fraction, after: int, before: int
) -> int | None:
    """The character position of the best boundary near token `target`, strictly between `after` and `before`.

    Near means within `[target - reach, target + reach)`: half open and without rounding, so that no two targets take
    the same token.
    """
    for boundaries in kinds:
        kind = boundaries()
        index = bisect_left(kind.tokens, target)
        near = range(max(0, index - 2), min(len(kind.tokens), index + 2))
        fit = [i for i in near if -reach <= kind.tokens[i] - target < reach and after < kind.chars[i] < before]
        if fit:
            return kind.chars[min(fit, key=lambda i: (abs(kind.tokens[i] - target), i))]
    return None


def _run(line: Sequence[_Text], start: int, end: int) -> tuple[tuple[Piece, ...], int]:
    """The pieces of characters `[start, end)` of the line, and their tokens."""
    pieces, num_tokens = [], 0
    for text in line:
        first = max(start - text.first_char, 0)
        last = min(end - text.first_char, len(text.text))
        if first < last:
            offset = text.piece.start
            pieces.append(Piece(text.piece.place, offset + first, offset + last))
            num_tokens += bisect_left(text.starts, last) - bisect_left(text.starts, first)
    return tuple(pieces), num_tokens
