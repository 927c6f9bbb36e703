"""Closure as a property: it holds what it was given, grows with it, settles, and leaves no competitor moved."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from acmserve.plan import closure
from acmserve.plan.closure import ECHO_BEHIND, ECHO_TOKENS, PhraseTable
from acmserve.plan.ngrams import Mask
from acmserve.plan.source import Tokens
from tests.plan.test_planner import tokens

WIDTH = ECHO_TOKENS + ECHO_BEHIND

marked = st.lists(st.tuples(st.integers(0, 2), st.booleans()), min_size=1, max_size=60)
pieces = st.lists(marked, min_size=1, max_size=3)


def split(drawn: list[list[tuple[int, bool]]]) -> tuple[list[Tokens], list[Mask]]:
    texts = [tokens(*(token for token, _ in piece)) for piece in drawn]
    return texts, [np.array([mark for _, mark in piece], dtype=np.bool_) for piece in drawn]


@given(pieces, st.integers(1, 9))
@settings(max_examples=200, deadline=None)
def test_competitors_are_computed_all_or_none(drawn: list[list[tuple[int, bool]]], rest: int) -> None:
    texts, masks = split(drawn)
    before = [mask.copy() for mask in masks]
    closed = PhraseTable(texts).close(masks, rest)
    assert all(np.array_equal(a, b) for a, b in zip(masks, before, strict=True)), "the input was changed"
    assert all((mask <= more).all() for mask, more in zip(masks, closed, strict=True))
    assert all(np.array_equal(a, b) for a, b in zip(PhraseTable(texts).close(closed, rest), closed, strict=True))
    computed = {
        tuple(text[i : i + ECHO_TOKENS])
        for text, mask in zip(texts, closed, strict=True)
        for i in range(len(text) - WIDTH + 1)
        if mask[i : i + WIDTH].all()
    }
    for text, mask in zip(texts, closed, strict=True):
        for i in range(len(text) - ECHO_TOKENS + 1):
            if tuple(text[i : i + ECHO_TOKENS]) in computed:
                assert mask[i : i + WIDTH].all()
        edges = np.flatnonzero(np.diff(mask, prepend=True, append=True)).reshape(-1, 2)
        assert all(end - start >= rest for start, end in edges.tolist())


@given(pieces, st.integers(1, 9), st.randoms())
@settings(max_examples=200, deadline=None)
def test_more_marks_are_closed_to_more(drawn: list[list[tuple[int, bool]]], rest: int, rng: object) -> None:
    texts, masks = split(drawn)
    more = [mask | np.array([rng.random() < 0.2 for _ in mask], dtype=np.bool_) for mask in masks]  # type: ignore[attr-defined]
    pairs = zip(PhraseTable(texts).close(masks, rest), PhraseTable(texts).close(more, rest), strict=True)
    assert all((less <= greater).all() for less, greater in pairs)


def test_a_repaired_line_takes_the_other_line_of_its_key() -> None:
    """Repaired text beats moved text of its form, so a key is repaired in both places, with its value of two tokens."""
    line, other = tokens(8, 30, 7, 500, 501, 8, 99), tokens(8, 30, 7, 600, 601, 8, 98)
    text = np.concatenate([np.arange(100, 120, dtype=np.int32), line, np.arange(200, 240, dtype=np.int32), other])
    anew = np.zeros(len(text), dtype=np.bool_)
    anew[20:25] = True
    (closed,) = PhraseTable([text]).close([anew])
    assert np.flatnonzero(closed).tolist() == [*range(20, 25), *range(67, 72)]


@pytest.mark.parametrize("num_links", [closure.MAX_ROUNDS - 2, closure.MAX_ROUNDS + 2])
def test_what_does_not_settle_is_computed_whole(num_links: int) -> None:
    """Each text pulls in the next one, one a round; the last text has nothing to do with them."""
    texts = [np.arange(2 * link, 2 * link + 5, dtype=np.int32) for link in range(num_links)] + [
        tokens(*range(900, 950))
    ]
    masks = [np.zeros(len(text), dtype=np.bool_) for text in texts]
    masks[0][:] = True
    *chain, unrelated = PhraseTable(texts).close(masks)
    assert all(mask.all() for mask in chain)
    assert unrelated.any() == unrelated.all() == (num_links > closure.MAX_ROUNDS)
