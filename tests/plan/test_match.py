"""The matcher: C++ and numpy agree, the cover obeys its rules, and edits are found as one would draw them."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

import acmserve._native as _native
from acmserve.plan.match import (
    MAX_CANDIDATES,
    TokenMatch,
    common_prefix,
    common_prefix_twin,
    find_matches,
    find_matches_twin,
    gram_hashes,
)

Tokens = NDArray[np.int32]


def tokens(*values: int) -> Tokens:
    return np.array(values, dtype=np.int32)


def text(seed: int, length: int, vocabulary: int = 50_000) -> Tokens:
    return np.random.default_rng(seed).integers(0, vocabulary, length, dtype=np.int32)


@st.composite
def problems(draw: st.DrawFn) -> tuple[Tokens, list[Tokens], int, int, int]:
    """Small alphabets and spliced pieces, so that repetitions, ties and long matches are the rule."""
    pool = text(draw(st.integers(0, 99)), 120, draw(st.sampled_from([1, 2, 3, 1000])))

    def sequence() -> Tokens:
        pieces = draw(st.lists(st.tuples(st.integers(0, 119), st.integers(0, 60)), max_size=5))
        return np.concatenate([tokens(), *(pool[start : start + length] for start, length in pieces)])

    prompt = sequence()
    sources = [sequence() for _ in range(draw(st.integers(0, 3)))]
    start, stop = sorted(draw(st.tuples(st.integers(0, len(prompt)), st.integers(0, len(prompt)))))
    return prompt, sources, start, stop, draw(st.integers(1, 80))


@settings(max_examples=400, deadline=None)
@given(problems())
def test_native_and_twin_give_identical_covers(problem: tuple[Tokens, list[Tokens], int, int, int]) -> None:
    matches = find_matches(*problem)
    assert matches == find_matches_twin(*problem)
    prompt, sources, start, stop, min_tokens = problem
    at = start
    for match in matches:
        end = match.dst_start + match.num_tokens
        assert at <= match.dst_start
        assert end <= stop
        assert match.num_tokens >= min_tokens
        source = sources[match.source]
        behind = match.src_start + match.num_tokens
        assert np.array_equal(prompt[match.dst_start : end], source[match.src_start : behind])
        assert end == stop or behind == len(source) or prompt[end] != source[behind], "could be longer to the right"
        at = end


@settings(max_examples=200, deadline=None)
@given(st.lists(st.integers(0, 2), max_size=40), st.lists(st.integers(0, 2), max_size=40))
def test_common_prefix(left: list[int], right: list[int]) -> None:
    a, b = tokens(*left), tokens(*right)
    length = common_prefix(a, b)
    assert length == common_prefix_twin(a, b)
    assert left[:length] == right[:length]
    assert length == min(len(a), len(b)) or left[length] != right[length]


def test_a_match_of_at_least_min_tokens_is_always_found_in_text_without_repetition() -> None:
    source = text(1, 3000)
    for start, length in [(0, 64), (1000, 65), (2900, 100)]:
        prompt = np.concatenate([text(2, 50), source[start : start + length], text(3, 50)])
        assert find_matches(prompt, [source], 0, len(prompt), 64) == (TokenMatch(50, 0, start, length),)
        assert find_matches(prompt, [source], 0, len(prompt), length + 1) == ()


def test_a_fold_leaves_one_match_behind_the_marker() -> None:
    source = text(1, 5500)
    prompt = np.concatenate([source[:500], text(2, 22), source[2500:], text(3, 29)])
    assert find_matches(prompt, [source], 500, len(prompt) - 1, 32) == (TokenMatch(522, 0, 2500, 3000),)


def test_paragraphs_in_changed_order_are_all_moved() -> None:
    source = text(1, 900)
    prompt = np.concatenate([source[600:], source[300:600], source[:300]])
    expected = (TokenMatch(0, 0, 600, 300), TokenMatch(300, 0, 300, 300), TokenMatch(600, 0, 0, 300))
    assert find_matches(prompt, [source], 0, 900, 32) == expected


def test_the_diagonal_is_kept_where_two_positions_are_equally_long() -> None:
    """A paragraph stands twice in the source: after a changed word the match goes on where it was, not at the first."""
    paragraph, other = text(1, 100), text(2, 100)
    source = np.concatenate([paragraph, text(3, 40), other, tokens(7), paragraph, text(4, 40)])
    prompt = np.concatenate([other, tokens(8), paragraph])
    assert find_matches(prompt, [source], 0, len(prompt), 32) == (
        TokenMatch(0, 0, 140, 100),
        TokenMatch(101, 0, 241, 100),
    )


def test_the_earlier_source_wins_a_tie() -> None:
    shared = text(1, 80)
    sources = [text(2, 80), np.concatenate([text(3, 9), shared]), shared]
    assert find_matches(shared, sources, 0, 80, 32) == (TokenMatch(0, 1, 9, 80),)


def test_the_right_position_is_found_behind_many_equal_headers() -> None:
    """Every message starts with one header. Only its text tells which of the hundred it was."""
    header = text(1, 40)
    messages = [np.concatenate([header, text(100 + i, 200)]) for i in range(10 * MAX_CANDIDATES)]
    source = np.concatenate(messages)
    assert find_matches(messages[63], [source], 0, 240, 32) == (TokenMatch(0, 0, 63 * 240, 240),)


def test_negative_and_large_tokens_hash_alike_in_both_implementations() -> None:
    prompt = tokens(-1, 2**31 - 1, -(2**31), 0, 5)
    expected = (TokenMatch(0, 0, 0, 5),)
    assert find_matches(prompt, [prompt], 0, 5, 3) == find_matches_twin(prompt, [prompt], 0, 5, 3) == expected
    assert len(gram_hashes(prompt, 6)) == 0


@pytest.mark.parametrize("find", [find_matches, find_matches_twin])
@pytest.mark.parametrize(("start", "stop", "min_tokens"), [(-1, 3, 2), (2, 1, 2), (0, 6, 2), (0, 5, 0)])
def test_arguments_out_of_range(find: object, start: int, stop: int, min_tokens: int) -> None:
    assert callable(find)
    with pytest.raises(ValueError, match=r"outside of the prompt|min_tokens"):
        find(text(1, 5), [text(1, 5)], start, stop, min_tokens)


def test_the_extension_is_the_one_that_answers() -> None:
    """`make test` must not pass on the slow twin alone."""
    assert _native.find_matches(text(1, 40), [text(1, 40)], 0, 40, 32, 3, 5) == [(0, 0, 0, 40)]
