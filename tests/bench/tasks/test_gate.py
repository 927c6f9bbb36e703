"""The gate of `bench tasks`: what turns it red, and how an answer becomes a choice."""

from __future__ import annotations

import re
from dataclasses import asdict
from typing import Any

import pytest

from acmserve.bench.harness.engine import EngineReply
from acmserve.bench.tasks.generators.case import CasePiece, CaseQuestion, TaskCase, first_word_is
from acmserve.bench.tasks.prompt import AskedTokens, CaseTokens
from acmserve.bench.tasks.run import (
    AUTO,
    EXACT,
    FULL,
    REUSE,
    VARIANTS,
    TasksOutcome,
    _check,
    _Prepared,
    check_choice,
    choice,
    num_movable,
)
from acmserve.plan.auto import Features, choose_fidelity

NUM_FULL, NUM_FOLDED, NUM_ASKED = 300, 150, 2
FIRST_TOKENS = {"dew": 7, "elm": 5, "fern": 6}
WAYS = {variant.name: variant for variant in VARIANTS}


def prepared() -> _Prepared:
    question = CaseQuestion("a:", "elm", tuple(FIRST_TOKENS), first_word_is)
    case = TaskCase("t", "s", 0, (CasePiece("x\n"), CasePiece("y\n", is_folded=True), CasePiece("z\n")), (question,))
    asked = AskedTokens((1,) * NUM_ASKED, FIRST_TOKENS, ())
    spans = ((20, 40), (50, NUM_FOLDED))
    return _Prepared(case, CaseTokens((0,) * NUM_FULL, (0,) * NUM_FOLDED, spans, 170, (asked,)))


def reply(kept: int, moved: int, computed: int, reason: str | None = None) -> EngineReply:
    receipt: dict[str, Any] = {"kept_tokens": kept, "moved_tokens": moved, "computed_tokens": computed}
    return EngineReply(0.1, 0, (5,), " elm", receipt | {"fallback_reason": reason})


def failures(name: str, given: EngineReply) -> TasksOutcome:
    one, outcome = prepared(), TasksOutcome()
    one.replies[name] = [given]
    _check(one, WAYS[name], outcome)
    return outcome


def test_pieces_too_short_to_move_are_not_asked_for() -> None:
    assert prepared().tokens.num_suffix == 120
    assert num_movable(prepared().tokens) == 100


@pytest.mark.parametrize(
    ("name", "counts"),
    [(FULL, (256, 0, 46)), (EXACT, (20, 0, 132)), (REUSE, (20, 90, 42)), (AUTO, (20, 0, 132)), (AUTO, (20, 90, 42))],
)
def test_receipts_that_add_up_are_green(name: str, counts: tuple[int, int, int]) -> None:
    assert failures(name, reply(*counts)).failures == []


@pytest.mark.parametrize(
    ("name", "counts", "said"),
    [
        (FULL, (256, 0, 45), r"t/s/0, full context: kept, moved, computed \(256, 0, 45\) do not sum to 302"),
        (EXACT, (20, 1, 131), "1 tokens were moved under exact"),
        (REUSE, (20, 89, 43), r"moved 89 of 100 tokens \(the source is gone\)"),
    ],
)
def test_what_is_wrong_is_told_with_its_numbers(name: str, counts: tuple[int, int, int], said: str) -> None:
    (failure,) = failures(name, reply(*counts, "the source is gone")).failures
    assert re.search(said, failure)


def test_a_model_that_is_refused_is_told_and_is_no_failure() -> None:
    outcome = failures(REUSE, reply(20, 0, 132, "model: sliding windows"))
    assert (outcome.failures, outcome.refusal) == ([], "model: sliding windows")


def test_auto_has_to_choose_what_its_rule_says() -> None:
    features = asdict(Features(num_moved=600, num_removed=100))
    rule = choose_fidelity(Features(**features)).fidelity
    outcome = TasksOutcome()
    for told in (rule, None):
        check_choice({"case": "t/s/0", "features": features, "variants": {AUTO: {"chosen": told}}}, outcome)
    assert outcome.failures == []
    check_choice({"case": "t/s/0", "features": features, "variants": {AUTO: {"chosen": "exact"}}}, outcome)
    assert [failure.split(" (")[0] for failure in outcome.failures] == [f"t/s/0: auto chose exact, the rule {rule}"]


def test_the_most_likely_candidate_is_the_choice_whatever_else_was_said() -> None:
    (asked,) = prepared().tokens.asked
    told = EngineReply(0.1, 0, (9,), " oak", None, logprobs=({9: -0.1, 5: -2.0, 6: -1.5, 7: -3.0},))
    assert choice(told, asked) == "fern"
    tied = EngineReply(0.1, 0, (9,), " oak", None, logprobs=({5: -2.0, 6: -2.0, 7: -2.0},))
    assert choice(tied, asked) == "dew"
