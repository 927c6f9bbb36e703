"""The cases of `bench tasks`: a right answer stands in the text that stays, and a seed says everything."""

from __future__ import annotations

import re
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from acmserve.bench.tasks.cases import FIT, HELD_OUT, TASKS, half_of, make_cases
from acmserve.bench.tasks.generators import mrcr as task_coreference
from acmserve.bench.tasks.generators import needlebench as task_needles
from acmserve.bench.tasks.generators import oolong as task_aggregation
from acmserve.bench.tasks.generators import pi_llm as task_pi_llm
from acmserve.bench.tasks.generators import unrelated as task_unrelated
from acmserve.bench.tasks.generators.case import CasePiece, CaseQuestion, TaskCase, digest, first_word_is
from acmserve.errors import IntegrityError

TOPICS = {name: f"{name} is a topic with words of its own.\n" * 200 for name in ("anvils", "bricks", "cranes", "drums")}
seeds = st.integers(0, 10**6)


def folded_text(case: TaskCase) -> str:
    return "".join(piece.text for piece in case.pieces if piece.is_folded)


@given(seeds, st.sampled_from(task_pi_llm.SMALL + task_pi_llm.PAPER[:4]))
def test_pi_llm_asks_for_the_last_value_that_stays_in_sight(seed: int, sizes: task_pi_llm.UpdateSizes) -> None:
    case = task_pi_llm.make_case(seed, sizes)
    case.check_integrity()
    kept = dict(re.findall(r"^(\w+): (\w+)$", case.kept_text, re.MULTILINE))
    hidden = re.findall(r"^(\w+): (\w+)$", folded_text(case), re.MULTILINE)
    assert len(hidden) == sizes.num_keys * (sizes.num_updates - sizes.num_kept)
    assert len(kept) == sizes.num_keys
    for question in case.questions:
        key = question.text.removesuffix(":")
        assert question.gold == kept[key]
        assert {value for name, value in hidden if name == key} <= question.distractors | {question.gold}


@given(seeds, st.sampled_from(task_needles.SMALL), st.integers(1, 3))
def test_needles_lead_from_the_name_asked_for_to_the_oldest(
    seed: int, sizes: task_needles.NeedleSizes, num_questions: int
) -> None:
    case = task_needles.make_case(seed, sizes, TOPICS, num_questions)
    case.check_integrity()
    parents = dict(re.findall(r"the parent of (\w+) is (\w+)\.", case.kept_text))
    assert len(parents) == num_questions * sizes.num_needles
    for question in case.questions:
        name = re.findall(r"of (\w+) is$", question.text)[0]
        steps = 0
        while name in parents:
            name, steps = parents[name], steps + 1
        assert (name, steps) == (question.gold, sizes.num_needles)
        assert question.gold not in folded_text(case)


@given(seeds, st.sampled_from(task_coreference.SMALL), st.integers(1, 2))
def test_coreference_finds_the_nth_answer_of_its_kind(
    seed: int, sizes: task_coreference.MrcrSizes, num_questions: int
) -> None:
    case = task_coreference.make_case(seed, sizes, num_questions)
    case.check_integrity()
    exchanges = re.findall(r"^The (\w+ about the \w+): (.*)$", case.kept_text, re.MULTILINE)
    openers = [choice.split()[0] for choice in case.questions[0].choices]
    assert len(set(openers)) == len(openers)
    for question in case.questions:
        found = re.findall(r"the (?:(first|second|third|fourth) )?(\w+ about the \w+):", question.text)
        ((ordinal, kind),) = found
        answers = [note for other, note in exchanges if other == kind]
        assert len(answers) == sizes.num_same
        assert answers[task_coreference.ORDINALS.index(ordinal or "first")] == question.gold
        assert kind not in folded_text(case)


@given(seeds, st.sampled_from(task_aggregation.SMALL))
def test_aggregation_counts_the_day_that_stays(seed: int, sizes: task_aggregation.OolongSizes) -> None:
    case = task_aggregation.make_case(seed, sizes)
    case.check_integrity()
    kept = Counter(re.findall(r"^Tuesday \d+: (\w+)$", case.kept_text, re.MULTILINE))
    hidden = Counter(re.findall(r"^Monday \d+: (\w+)$", folded_text(case), re.MULTILINE))
    assert (kept.total(), hidden.total()) == (sizes.num_kept, sizes.num_folded)
    frequent, *numbers = case.questions
    (first, most), (_, second) = kept.most_common(2)
    assert first == frequent.gold
    assert most >= second + 2
    assert frequent.distractors == {hidden.most_common(1)[0][0]}
    for question in numbers:
        mood = next(mood for mood in task_aggregation.MOODS if mood in question.text)
        assert task_aggregation.NUMBERS[kept[mood]] == question.gold


@given(seeds, st.sampled_from(task_unrelated.SMALL))
def test_unrelated_facts_stand_in_what_stays_and_the_fold_names_none(
    seed: int, sizes: task_unrelated.UnrelatedSizes
) -> None:
    case = task_unrelated.make_case(seed, sizes, TOPICS)
    case.check_integrity()
    facts = dict(re.findall(r"^(Note: the locker of \w+ holds) (\w+)\.$", case.kept_text, re.MULTILINE))
    assert facts == {question.text: question.gold for question in case.questions}
    assert "locker" not in folded_text(case)
    assert folded_text(case)[:6] != case.pieces[-1].text[:6]


def test_a_seed_says_everything_and_another_one_something_else() -> None:
    first, again, other = (make_cases(8, seed, TOPICS) for seed in (0, 0, 1))
    assert digest(first) == digest(again)
    assert digest(first) != digest(other)
    assert not {case.name for case in first} & {case.name for case in other}
    assert [case.task for case in first[: len(TASKS)]] == list(TASKS)


def test_both_halves_have_every_size_of_every_task() -> None:
    cases = make_cases(12, 0, TOPICS)
    sizes = [{(case.task, case.setting) for case in cases if half_of(case) == half} for half in (FIT, HELD_OUT)]
    assert sizes[0] == sizes[1]


def test_a_case_whose_last_piece_is_folded_or_whose_answer_is_no_choice_is_refused() -> None:
    question = CaseQuestion("a:", "x", ("x", "y"), first_word_is)
    kept, hidden = CasePiece("a: x\n"), CasePiece("a: y\n", is_folded=True)
    TaskCase("t", "s", 0, (hidden, kept), (question,)).check_integrity()
    with pytest.raises(IntegrityError, match="the last must not"):
        TaskCase("t", "s", 0, (kept, hidden), (question,)).check_integrity()
    with pytest.raises(IntegrityError, match="'z' is not one of"):
        TaskCase("t", "s", 0, (hidden, kept), (CaseQuestion("a:", "z", ("x", "y"), first_word_is),)).check_integrity()
