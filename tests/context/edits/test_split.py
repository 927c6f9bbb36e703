"""Splitting: nothing lost, nothing empty, about equal, and at the best boundary that is near."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from acmserve.context.edits.split import plan_split
from acmserve.context.session.fragment import Piece
from acmserve.context.transcript.message import Place
from acmserve.context.transcript.tokenizer import Tokenizer
from tests.support.context.conversation import WORDS, Characters, lines

TEXTS = st.lists(st.text(alphabet="ab .\n\u3002\U0001f600", min_size=1, max_size=80), min_size=1, max_size=4)


class Bytes:
    """Several tokens begin at one character, as a byte-level tokenizer has it. Starts come as an array."""

    def starts(self, text: str) -> np.ndarray[tuple[int], np.dtype[np.int32]]:
        sizes = [len(character.encode()) for character in text]
        return np.repeat(np.arange(len(text), dtype=np.int32), sizes)


class LongWords:
    """White space belongs to no token."""

    def starts(self, text: str) -> list[int]:
        return [i for i, c in enumerate(text) if not c.isspace() and (i == 0 or text[i - 1].isspace())]


def pieces_of(texts: list[str], offset: int = 0) -> list[tuple[Piece, str]]:
    return [(Piece(Place(i), offset, offset + len(text)), text) for i, text in enumerate(texts)]


def split(text: str, num: int) -> list[str]:
    made = plan_split(pieces_of([text]), num, WORDS)
    return [text[run[0].start : run[0].end] for run, _ in made]


@pytest.mark.parametrize("tokenizer", [WORDS, Characters(), Bytes(), LongWords()])
@given(texts=TEXTS, num=st.integers(1, 20), offset=st.integers(0, 5))
def test_fragments_partition_the_text(tokenizer: Tokenizer, texts: list[str], num: int, offset: int) -> None:
    made = plan_split(pieces_of(texts, offset), num, tokenizer)
    assert 1 <= len(made) <= num
    run_of_pieces = [piece for run, _ in made for piece in run]
    rebuilt = [""] * len(texts)
    position = dict.fromkeys(range(len(texts)), offset)
    for piece in run_of_pieces:
        assert piece.start == position[piece.place.entry] < piece.end
        assert type(piece.start) is type(piece.end) is int
        position[piece.place.entry] = piece.end
        rebuilt[piece.place.entry] += texts[piece.place.entry][piece.start - offset : piece.end - offset]
    assert rebuilt == texts
    assert run_of_pieces == sorted(run_of_pieces)
    num_tokens = sum(len(tokenizer.starts(text)) for text in texts)
    assert sum(count for _, count in made) == num_tokens
    assert all(count > 0 for _, count in made) or num_tokens == 0


@given(st.lists(st.integers(1, 6), min_size=40, max_size=120), st.integers(2, 8))
def test_dense_lines_give_equal_fragments_that_end_with_a_line(sizes: list[int], num: int) -> None:
    """Each cut is within one line of its target, so fragments differ from the mean by less than two lines."""
    text = "".join("a" * size + "\n" for size in sizes)
    made = plan_split(pieces_of([text]), num, Characters())
    assert len(made) == num
    for run, count in made:
        assert text[run[-1].end - 1] == "\n"
        assert abs(count - len(text) / num) <= 7


@pytest.mark.parametrize("num_words", range(1, 60))
def test_no_fragment_is_without_tokens_where_targets_meet(num_words: int) -> None:
    """Boundaries lie in the middle of tokens here, and on the border between the reach of two targets."""
    for num in range(1, 21):
        made = plan_split(pieces_of(["a  " * num_words]), num, WORDS)
        assert all(count > 0 for _, count in made)


def test_cuts_fall_between_messages_first() -> None:
    made = plan_split(pieces_of([lines(9), lines(11)]), 2, WORDS)
    assert [[piece.place.entry for piece in run] for run, _ in made] == [[0], [1]]


def test_cuts_prefer_lines_to_sentences_to_words() -> None:
    assert split("a b c d. e f\ng h i j", 2) == ["a b c d. e f\n", "g h i j"]
    assert split("a b c. d e f g", 2) == ["a b c. ", "d e f g"]
    assert split("a b c d e f g h", 2) == ["a b c ", "d e f g h"]
    assert split("\u4e00\u3002\u4e00\u3002", 2) == ["\u4e00\u3002", "\u4e00\u3002"]


def test_a_far_better_boundary_is_not_taken() -> None:
    """The only line ends after the first word: too far from the middle."""
    assert split("a\n" + "b " * 20, 2) == ["a\n" + "b " * 9, "b " * 11]


def test_no_more_fragments_than_tokens() -> None:
    assert split("one two", 20) == ["one", " two"]
    assert plan_split([], 5, WORDS) == []


def test_counts_are_those_of_the_fragment_in_its_text() -> None:
    made = plan_split(pieces_of([lines(10)]), 5, WORDS)
    ends = [0, *(run[-1].end for run, _ in made)]
    for (start, end), (_, count) in zip(pairwise(ends), made, strict=True):
        assert count == sum(start <= token < end for token in WORDS.starts(lines(10)))
