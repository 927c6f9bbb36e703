"""Which cases a run of `acmserve bench fidelity` has: kinds, dependences, sizes, dealt out over the documents. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from acmserve.bench.fidelity.cases import (
    DEPENDENCES,
    FOLD,
    KINDS,
    RELATED,
    RESTORE,
    UNRELATED,
    Case,
    Encode,
    FidelitySizes,
    plan_case,
)
from acmserve.bench.fidelity.text import Document


@dataclass(frozen=True, slots=True)
class BenchPlan:
    """Which cases a run has: context sizes and folded shares take turns over the documents."""

    num_documents: int
    contexts: Sequence[int]
    shares: Sequence[float]
    continuation: int
    num_folds: int
    every_dependence: bool


QUICK = BenchPlan(2, (1024,), (0.45,), 16, 1, every_dependence=False)
FULL = BenchPlan(8, (1024, 2048, 3072), (0.2, 0.45, 0.7), 64, 2, every_dependence=True)


def plan_cases(documents: Sequence[Document], plan: BenchPlan, encode: Encode, seed: int) -> Iterator[Case]:
    """All cases, document by document, so that a run that is cut short has whole documents.

    A fold is made with every dependence. The other kinds come with both that need no script, or with one and the other
    in turns. A restore is exact whatever the text, and one token has nothing that is unrelated: these come once.
    Without `every_dependence` each of the other kinds comes with one document only.
    """
    for number, document in enumerate(documents):
        other = documents[(number + 2) % len(documents)] if len(documents) > 2 else documents[number - 1]
        context = plan.contexts[number % len(plan.contexts)]
        for turn, kind in enumerate(KINDS):
            if kind != FOLD and not plan.every_dependence and turn % len(documents) != number:
                continue
            num_repeats = plan.num_folds if kind == FOLD else 1
            for dependence in _dependences(kind, plan.every_dependence, number + turn):
                for repeat in range(num_repeats):
                    share = plan.shares[(number + turn + repeat) % len(plan.shares)]
                    sizes = FidelitySizes(context, plan.continuation, share)
                    yield plan_case(kind, dependence, document, other, sizes, encode, seed)


def whole_documents(begun: Sequence[Case]) -> list[Case]:
    """Of a run that was cut short: the cases of all documents but the last one that was begun."""
    return [case for case in begun if case.document != begun[-1].document]


def _dependences(kind: str, every: bool, number: int) -> tuple[str, ...]:
    if kind == FOLD:
        return DEPENDENCES
    if kind in ("replaced", RESTORE):
        return (RELATED,)
    if kind == "deletion" and every:
        return DEPENDENCES
    return (UNRELATED, RELATED) if every else ((UNRELATED, RELATED)[number % 2],)
