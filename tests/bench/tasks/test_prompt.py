"""Tokens of a case: what stands behind a fold is the same with and without it, whatever the tokenizer merges."""

from __future__ import annotations

import re
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from acmserve.bench.tasks.generators.case import CasePiece, CaseQuestion, TaskCase, first_word_is
from acmserve.bench.tasks.prompt import tokenize_case, tokenize_cases
from acmserve.bench.tasks.run import TasksOutcome, run_cases
from acmserve.errors import AcmError

QUESTION = CaseQuestion("kettle:", "amber", ("amber", "birch", "bisque", "coral"), first_word_is)
BEGIN = 1


class Words:
    """A tokenizer with a token for every two letters of a word, its space included, and one that begins a text."""

    def __call__(self, text: str, *, add_special_tokens: bool = True, verbose: bool = True) -> Any:
        parts = re.findall(r" ?\w\w?|\W", text)
        ids = [2 + sum(ord(c) << 8 * n for n, c in enumerate(part)) for part in parts]
        return SimpleNamespace(input_ids=[BEGIN, *ids] if add_special_tokens else ids)


def case(pieces: list[CasePiece], question: CaseQuestion = QUESTION) -> TaskCase:
    return TaskCase("t", "s", 0, tuple(pieces), (question,))


pieces = st.lists(
    st.builds(CasePiece, st.text("ab \n", max_size=20).map(lambda text: text + "\n"), st.booleans()),
    min_size=1,
    max_size=6,
)


@given(pieces)
def test_suffix_spans_are_the_kept_tokens_behind_a_fold(drawn: list[CasePiece]) -> None:
    tokens = tokenize_case(case([*drawn, CasePiece("kettle: amber\n")]), Words())
    tail = tuple(Words()("kettle: amber\n", add_special_tokens=False).input_ids)
    assert tokens.full[0] == tokens.folded[0] == BEGIN
    assert tokens.full[-len(tail) :] == tokens.folded[-len(tail) :] == tail
    kept = [token for start, end in tokens.suffix_spans for token in tokens.folded[start:end]]
    assert tokens.num_suffix == len(kept)
    if any(piece.is_folded for piece in drawn):
        assert tuple(kept[-len(tail) :]) == tail
    else:
        assert (kept, tokens.folded) == ([], tokens.full)


def test_a_fold_leaves_the_marker_that_the_product_writes() -> None:
    tokens = tokenize_case(case([CasePiece("aa\n"), CasePiece("bb bb\n", is_folded=True), CasePiece("cc\n")]), Words())
    text = 'aa\n[folded f00001: 3 tokens hidden; restore_fragment("f00001") to read]\ncc\n'
    encoded = [token for line in text.splitlines(keepends=True) for token in Words()(line).input_ids[1:]]
    assert tokens.folded == (BEGIN, *encoded)
    assert tokens.num_folded == 3


def test_choices_that_begin_alike_are_told_apart_by_dropping_one_and_never_the_right_one() -> None:
    (asked,) = tokenize_case(case([CasePiece("a\n")]), Words()).asked
    assert (list(asked.first_tokens), asked.dropped) == (["amber", "birch", "coral"], ("bisque",))
    other = CaseQuestion("kettle:", "bisque", QUESTION.choices, first_word_is)
    (asked,) = tokenize_case(case([CasePiece("a\n")], other), Words()).asked
    assert (list(asked.first_tokens), asked.dropped) == (["bisque", "amber", "coral"], ("birch",))


def test_a_choice_that_the_tokenizer_knows_nothing_of_is_dropped_and_never_the_right_one() -> None:
    unknown = CaseQuestion("kettle:", "amber", ("amber", "", "birch"), first_word_is)
    nothing = SimpleNamespace(input_ids=[])
    known = Words()

    def blind(text: str, **more: Any) -> Any:
        return nothing if text == " " else known(text, **more)

    (asked,) = tokenize_case(case([CasePiece("a\n")], unknown), blind).asked
    assert (list(asked.first_tokens), asked.dropped) == (["amber", "birch"], ("",))
    with pytest.raises(AcmError, match="choices of ''"):
        tokenize_case(case([CasePiece("a\n")], CaseQuestion("k:", "", ("", "birch", "coral"), first_word_is)), blind)


def test_all_cases_have_tokens_before_the_first_is_served() -> None:
    """One that cannot be asked ended the run in the group in which it was served."""
    good, bad = (
        case([CasePiece("a\n")]),
        case([CasePiece("a\n")], CaseQuestion("k:", "ab", ("ab", "abc"), first_word_is)),
    )
    assert [one.case for one in tokenize_cases([good, good], Words())] == [good, good]
    asked: list[object] = []
    engine: Any = SimpleNamespace(tokenizer=Words(), ask_all=asked.append)
    with pytest.raises(AcmError, match="1 choices have a first token"):
        run_cases(engine, [*[good] * 20, bad], TasksOutcome())
    assert asked == []


def test_a_question_whose_choices_all_begin_alike_is_refused() -> None:
    with pytest.raises(
        AcmError,
        match=r"t/s/0, choices of 'amber': 1 choices have a first token of their own; 2 to 128 are needed\. Name",
    ):
        tokenize_case(
            case([CasePiece("a\n")], CaseQuestion("k:", "amber", ("amber", "amulet"), first_word_is)), Words()
        )
