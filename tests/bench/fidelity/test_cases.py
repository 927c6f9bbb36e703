"""The cases of `bench fidelity`: what they claim about themselves is what the planner of the engine sees in them."""

from __future__ import annotations

import numpy as np
import pytest

from acmserve.bench.fidelity.cases import (
    DEPENDENCES,
    KINDS,
    RELATED,
    RESTORE,
    SUPERSEDED,
    UNRELATED,
    Case,
    FidelitySizes,
    Tokens,
    plan_case,
    with_lead,
)
from acmserve.bench.fidelity.plan import FULL, QUICK, BenchPlan, plan_cases, whole_documents
from acmserve.bench.fidelity.text import Document, choose_documents, digest, superseded_text
from acmserve.bench.harness.library_text import Library
from acmserve.plan.planner import plan_edit
from acmserve.plan.source import ServedSequence

SIZES = FidelitySizes(context=1024, continuation=32, share=0.45)
# No token stands twice, so that what is found again is found where it was.
DOCUMENTS = [Document(f"d{n}", tuple(range(10_000 * n + 1000, 10_000 * n + 8000))) for n in range(1, 4)]


def encode(text: str) -> Tokens:
    """A token for each character."""
    return tuple(map(ord, text))


def case_of(kind: str, dependence: str) -> Case:
    return plan_case(kind, dependence, DOCUMENTS[0], DOCUMENTS[1], SIZES, encode, seed=0)


def planned_moves(prompt: Tokens, served: Tokens) -> int:
    sources = [ServedSequence(np.asarray(served, dtype=np.int32), 1, ())]
    plan = plan_edit(np.asarray(prompt, dtype=np.int32), sources, allow_moves=True)
    return sum(move.num_tokens for move in plan.moves)


@pytest.mark.parametrize("dependence", [UNRELATED, RELATED])
@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind != RESTORE])
def test_what_is_movable_is_what_the_planner_would_move(kind: str, dependence: str) -> None:
    context, edited = case_of(kind, dependence).turns
    # The last token of a prompt is always computed.
    assert planned_moves(edited.prompt, context.prompt) == edited.num_movable - 1
    assert edited.num_movable > 400


def test_a_restore_ends_where_it_began() -> None:
    context, folded, restored = case_of(RESTORE, RELATED).turns
    assert restored.prompt == context.prompt != folded.prompt
    assert restored.num_movable == 0


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind not in (RESTORE, "moved")])
def test_the_continuation_goes_on_from_the_kept_text(kind: str) -> None:
    for turn in case_of(kind, RELATED).turns:
        if turn.continuation:
            assert turn.continuation[0] == turn.prompt[-1] + 1
            assert len(turn.continuation) == SIZES.continuation


def test_unrelated_text_is_of_another_document() -> None:
    context, turn = case_of("fold", UNRELATED).turns
    folded = set(context.prompt) - set(turn.prompt)
    assert len(folded) == SIZES.folded
    assert min(folded) > max(*turn.continuation, turn.prompt[0])


def test_the_continuation_asks_for_the_last_round_and_folded_rounds_say_otherwise() -> None:
    prefix, folded, suffix, recall = superseded_text(DOCUMENTS[0], encode, (200, 2000, 900), "seed")
    assert [len(part) for part in (prefix, folded, suffix)] == [200, 2000, 900]
    kept = "".join(map(chr, suffix))
    asked = dict(line.split(": ") for line in "".join(map(chr, recall)).splitlines()[2:])
    assert len(asked) > 10
    assert all(f"{thing}: {place}\n" in kept for thing, place in asked.items())
    old = [line.split(": ") for line in "".join(map(chr, folded)).splitlines()[1:]]
    assert sum(asked[thing] != place for thing, place in old) > 0.9 * len(old)


@pytest.mark.parametrize("plan", [QUICK, FULL])
def test_a_run_has_every_kind_and_the_same_text_for_the_same_seed(plan: BenchPlan) -> None:
    cases = list(plan_cases(DOCUMENTS, plan, encode, seed=3))
    assert cases == list(plan_cases(DOCUMENTS, plan, encode, seed=3))
    assert {case.kind for case in cases} == set(KINDS)
    assert {case.dependence for case in cases} == set(DEPENDENCES)
    assert len({case.name for case in cases}) == len(cases)
    folds = {case.turns[-1].prompt for case in cases if case.kind == "fold" and case.dependence == SUPERSEDED}
    other = plan_cases(DOCUMENTS, plan, encode, seed=4)
    assert folds.isdisjoint(case.turns[-1].prompt for case in other)


def test_a_lead_stands_in_front_of_every_prompt_and_of_nothing_else() -> None:
    plain, led = case_of("fold", RELATED), with_lead(case_of("fold", RELATED), (7, 8))
    for before, turn in zip(plain.turns, led.turns, strict=True):
        assert turn.prompt == (7, 8, *before.prompt)
        assert turn.continuation == before.continuation
        assert turn.num_movable == before.num_movable
    assert led.turns[0].unedited == ()


def test_documents_are_prose_and_code_in_turns_and_long_enough() -> None:
    topics = {f"topic {n}": f"word {n}\n" * 4000 for n in range(3)}
    sources = {f"module {n}": f"x = {n}\n" * 5000 for n in range(3)}
    found = choose_documents(Library(sources, topics), encode, 4, 1000, seed=1)
    assert [document.name.split()[0] for document in found] == ["topic", "module", "topic", "module"]
    assert all(len(document.tokens) == 1000 for document in found)
    with pytest.raises(ValueError, match="only 6 texts"):
        choose_documents(Library(sources, topics), encode, 7, 1000, seed=1)
    with pytest.raises(ValueError, match="has 1000 tokens, 1001 are needed"):
        found[0].cut(1001)


def test_the_digest_tells_texts_apart() -> None:
    assert digest([(1, 2), (3,)]) == digest([(1, 2), (3,)])
    assert digest([(1, 2), (3,)]) != digest([(1,), (2, 3)])


def test_a_run_that_is_cut_short_keeps_the_documents_that_are_whole() -> None:
    cases = list(plan_cases(DOCUMENTS, QUICK, encode, seed=3))
    second = next(n for n, case in enumerate(cases) if case.document != cases[0].document)
    assert whole_documents(cases[: second + 2]) == cases[:second]
    assert whole_documents(cases[:1]) == whole_documents([]) == []
