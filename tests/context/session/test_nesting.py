"""How fragments lie in one another: what is found by bisection is what the definition says, in small random cases."""

from __future__ import annotations

import random
from collections.abc import Iterable, Sequence
from dataclasses import replace

import pytest

from acmserve.context.session import nesting
from acmserve.context.session.fragment import Fragment, Piece, Visibility
from acmserve.context.session.nesting import PiecesByPlace
from acmserve.context.transcript.message import Place
from acmserve.errors import IntegrityError

SEEDS = range(40)
NUM_TEXTS, NUM_CHARS = 3, 12


def naive_holds(outer: Sequence[Piece], inner: Sequence[Piece]) -> bool:
    return all(any(piece.covers(mine) for piece in outer) for mine in inner)


def naive_overlaps(one: Sequence[Piece], other: Sequence[Piece]) -> bool:
    return any(piece.overlaps(mine) for piece in one for mine in other)


def naive_crosses(one: Sequence[Piece], other: Sequence[Piece]) -> bool:
    return naive_overlaps(one, other) and not naive_holds(one, other) and not naive_holds(other, one)


def naive_minus(pieces: Sequence[Piece], gone: Sequence[Piece]) -> tuple[Piece, ...]:
    """Piece by piece: each of those that go cuts what is left of all others."""
    left = list(pieces)
    for other in gone:
        cut: list[Piece] = []
        for piece in left:
            if piece.overlaps(other):
                ends = ((piece.start, other.start), (other.end, piece.end))
                cut += [Piece(piece.place, start, end) for start, end in ends if start < end]
            else:
                cut.append(piece)
        left = cut
    return tuple(left)


def naive_within(pieces: Sequence[Piece], kept: Sequence[Piece]) -> tuple[Piece, ...]:
    return tuple(
        Piece(piece.place, max(piece.start, other.start), min(piece.end, other.end))
        for piece in pieces
        for other in sorted(kept)
        if piece.overlaps(other)
    )


def naive_crossing(fragments: Iterable[Fragment], pieces: Sequence[Piece]) -> list[Fragment]:
    found = [fragment for fragment in fragments if naive_crosses(fragment.pieces, pieces)]
    return sorted(found, key=nesting.num_chars, reverse=True)


def naive_lay_around(fragments: Iterable[Fragment], pieces: Sequence[Piece]) -> list[tuple[Piece, ...]]:
    """Fragment by fragment: each splits every span into what lies outside of it and what lies inside."""
    spans = [tuple(pieces)]
    for fragment in naive_crossing(fragments, pieces):
        outside = [naive_minus(span, fragment.pieces) for span in spans]
        inside = [] if fragment.hidden else [naive_within(span, fragment.pieces) for span in spans]
        spans = [span for span in (*outside, *inside) if span]
    return sorted(spans)


def is_tree(spans: Sequence[Sequence[Piece]]) -> bool:
    pairs = [(one, other) for number, one in enumerate(spans) for other in spans[:number]]
    return not any(naive_crosses(one, other) or one == other for one, other in pairs)


def span_of(rng: random.Random) -> tuple[Piece, ...]:
    """Pieces of some texts, ascending and apart. Some touch, as those of neighbouring lines do."""
    pieces: list[Piece] = []
    for text in sorted(rng.sample(range(NUM_TEXTS), rng.randint(1, NUM_TEXTS))):
        ends = sorted(rng.sample(range(NUM_CHARS + 1), 2 * rng.randint(1, 3)))
        pieces += [Piece(Place(text), start, end) for start, end in zip(ends[::2], ends[1::2], strict=True)]
        if rng.random() < 0.3 and pieces[-1].end - pieces[-1].start > 1:
            last = pieces.pop()
            pieces += [replace(last, end=last.start + 1), replace(last, start=last.start + 1)]
    return tuple(pieces)


def tree_of(rng: random.Random, most: int = 8) -> list[Fragment]:
    """Fragments of which no two cross. Half of the new ones are a part of one that is there."""
    spans: list[tuple[Piece, ...]] = []
    for _ in range(40):
        made = span_of(rng)
        if spans and rng.random() < 0.5:
            made = naive_within(made, rng.choice(spans))
        if made and len(spans) < most and is_tree([*spans, made]):
            spans.append(made)
    states = (Visibility.VISIBLE, Visibility.VISIBLE, Visibility.FOLDED)
    return [Fragment(f"f{number}", "user", span, 1, rng.choice(states)) for number, span in enumerate(spans)]


@pytest.mark.parametrize("seed", SEEDS)
def test_two_spans_lie_as_the_definition_says(seed: int) -> None:
    rng = random.Random(seed)
    seen = set()
    for _ in range(100):
        one, other = span_of(rng), span_of(rng)
        if rng.random() < 0.4:
            other = naive_within(other, one) or other
        there = PiecesByPlace(one)
        assert there.covers(other) is naive_holds(one, other)
        assert there.lie_within(other) is naive_holds(other, one)
        assert there.overlaps(other) is naive_overlaps(one, other)
        assert nesting.crosses(one, other) is naive_crosses(one, other)
        assert nesting.minus(one, other) == naive_minus(one, other)
        for piece in other:
            wanted = [mine for mine in one if mine.overlaps(piece)]
            assert there.overlapping(piece) == wanted
            here = [(mine, "") for mine in one if mine.place == piece.place]
            assert list(nesting.overlapping(here, piece)) == [(mine, "") for mine in wanted]
        seen.add((naive_overlaps(one, other), naive_holds(one, other), naive_holds(other, one)))
    assert len(seen) >= 3


@pytest.mark.parametrize("seed", SEEDS)
def test_what_goes_may_overlap(seed: int) -> None:
    """Redactions may lie in one another where a file says so."""
    rng = random.Random(seed)
    for _ in range(100):
        pieces, gone = span_of(rng), [*span_of(rng), *span_of(rng)]
        assert nesting.minus(pieces, gone) == naive_minus(pieces, gone)
        there = PiecesByPlace(gone)
        assert there.covers(pieces) is naive_holds(gone, pieces)
        assert there.overlaps(pieces) is naive_overlaps(gone, pieces)


@pytest.mark.parametrize("seed", SEEDS)
def test_a_cut_is_laid_around_a_tree_as_the_definition_says(seed: int) -> None:
    rng = random.Random(seed)
    num_crossed = 0
    for _ in range(15):
        fragments, pieces = tree_of(rng), span_of(rng)
        crossed = naive_crossing(fragments, pieces)
        assert nesting.crossing(fragments, pieces) == crossed
        assert nesting.lay_around(fragments, pieces) == naive_lay_around(fragments, pieces)
        if not crossed:
            hidden = [f for f in fragments if f.hidden and naive_holds(f.pieces, pieces)]
            assert nesting.hiding(fragments, pieces) is max(hidden, key=nesting.num_chars, default=None)
        num_crossed += len(crossed)
    assert num_crossed > 10


@pytest.mark.parametrize("seed", SEEDS)
def test_fragments_that_cross_are_no_tree(seed: int) -> None:
    rng = random.Random(seed)
    for _ in range(30):
        fragments = tree_of(rng, 5)
        nesting.check_tree(fragments)
        spans = [*(fragment.pieces for fragment in fragments), span_of(rng)]
        rng.shuffle(spans)
        if is_tree(spans):
            assert nesting.first_crossing(spans) is None
        else:
            assert nesting.first_crossing(spans) is not None
            with pytest.raises(IntegrityError, match=r"cross$"):
                nesting.check_tree([Fragment(f"f{number}", "user", span, 1) for number, span in enumerate(spans)])
