"""The cases of `bench repairs`: each has its questions, no two sets of seeds share one, and what is folded is stale."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import pytest

from acmserve.bench.harness.library_text import Library, read_library
from acmserve.bench.repairs import thoughts
from acmserve.bench.repairs.cases import (
    ASKED,
    HELD_OUT,
    LATER,
    NEWEST,
    PRECISE,
    SEED_SETS,
    TIMES_PRECISE,
    TRAIN,
    draws_by_task,
    make_cases,
    paraphrase,
    roles_of,
)
from acmserve.bench.repairs.main import _parser, _seeds
from acmserve.bench.tasks.floor import PARAPHRASED
from acmserve.bench.tasks.generators.case import digest
from acmserve.errors import AcmError


@pytest.fixture(scope="module")
def library() -> Library:
    return read_library()


def test_every_size_of_every_family_has_its_three_kinds_of_question(library: Library) -> None:
    """As many cases as the family with most sizes has sizes."""
    num_each = max(map(len, draws_by_task(library).values()))
    cases = make_cases(num_each, TRAIN, library)
    counts = {task: sum(case.task == task for case in cases) for task in draws_by_task(library)}
    assert counts == {task: num_each * (TIMES_PRECISE if task in PRECISE else 1) for task in counts}
    assert len({(case.task, case.setting) for case in cases}) == sum(map(len, draws_by_task(library).values()))
    for case in cases:
        first, *rest = roles_of(case)
        assert (first, *dict.fromkeys(rest)) == (ASKED, LATER, PARAPHRASED)
        asked, *later, other_words = case.questions
        assert asked.text not in [question.text for question in later]
        assert other_words == replace(asked, text=other_words.text) != asked
        for question in case.questions:
            assert question.gold in case.kept_text, "what is asked for is still in sight"
            assert other_words.text not in case.kept_text


def test_a_users_own_conversation_has_no_paraphrased_question(library: Library) -> None:
    """Each of its questions is the last message up to another word. One alone is asked, and no other."""
    (case, *_) = make_cases(1, TRAIN, library)
    own = replace(case, questions=case.questions[:-1])
    assert roles_of(own) == (ASKED, *[LATER] * (len(own.questions) - 1))
    assert roles_of(replace(case, questions=case.questions[:1])) == (ASKED,)
    texts = [replace(case.questions[0], text=f"assistant: Now I know{' more' * number}") for number in range(3)]
    assert roles_of(replace(case, questions=tuple(texts))) == (ASKED, LATER, LATER)


def test_the_same_seeds_give_the_same_cases_and_no_two_sets_share_one(library: Library) -> None:
    first, again, *held_out = (make_cases(1, seeds, library) for seeds in (TRAIN, *SEED_SETS))
    assert digest(first) == digest(again)
    names = [{case.name for case in cases} for cases in (again, *held_out)]
    assert len(set.union(*names)) == sum(map(len, names)) == len(SEED_SETS) * len(first)
    assert min(b - a for a, b in pairwise(sorted(SEED_SETS.values()))) >= 10_000, "room for all cases of a run"


def test_a_quick_look_reads_no_held_out_case_and_a_whole_run_no_used_one() -> None:
    """Unless it is asked to."""
    for asked, seeds in {"": NEWEST, "--quick": TRAIN, "--quick --seeds held-out": HELD_OUT}.items():
        assert _seeds(_parser().parse_args(asked.split())) == seeds
    assert NEWEST not in (TRAIN, HELD_OUT)


def test_one_family_alone_has_the_cases_that_it_has_among_the_others(library: Library) -> None:
    alone = make_cases(2, TRAIN, library, thoughts.TASK)
    assert alone == [case for case in make_cases(2, TRAIN, library) if case.task == thoughts.TASK]
    assert len(alone) == 2
    with pytest.raises(AcmError, match="no family 'thought'; choose one of lists in prose"):
        make_cases(1, TRAIN, library, "thought")


def test_as_many_cases_of_each_family_and_none_of_one_are_the_first_of_them_all(library: Library) -> None:
    even = make_cases(2, TRAIN, library, without=(thoughts.TASK,), times_precise=1)
    every = make_cases(2, TRAIN, library)
    assert even == [case for case in every if case.seed < SEED_SETS[TRAIN] + 2 and case.task != thoughts.TASK]
    assert len(even) == 2 * (len(draws_by_task(library)) - 1)


@pytest.mark.parametrize("sizes", thoughts.SIZES, ids=str)
def test_a_chain_has_a_hole_in_front_of_each_call_and_keeps_less_than_half(
    sizes: thoughts.ChainSizes, library: Library
) -> None:
    case = thoughts.make_case(7, sizes, library.topics)
    case.check_integrity()
    folds = [piece.is_folded for piece in case.pieces]
    assert folds == [False, *[True, False] * (sizes.num_steps + 1)]
    assert not any(piece.has_marker for piece in case.pieces if piece.is_folded), "nothing stands for a thought"
    dropped = "".join(piece.text for piece in case.pieces if piece.is_folded)
    assert len(dropped) > 2 * len(case.kept_text)
    for question in case.questions:
        assert bool(question.distractors) is sizes.guesses
        assert all(value in dropped for value in (question.gold, *question.distractors))
        assert case.kept_text.count(question.gold) >= 1


def test_a_form_without_paraphrase_is_told() -> None:
    with pytest.raises(ValueError, match="no paraphrase of 'Why\\?'"):
        paraphrase("Why?")
