"""`bench precompute --answers`: fold, then answer. How right the answer is, and how long it takes, in one table.

    history   [ updates of 12 keys ......... ][ the last round ]        read in every way
    folded    [ marker ][ the last round ]                              computed now in one way: the idle moment
    question  [ marker ][ the last round ][ key: ]                      timed to its first token

PI-LLM's updates are what moved KV serves worst: the kept lines were read while the stale ones stood in front of them.
Precomputed, the fold is exact and need not be waited for. Each way has a cache salt of its own. The ways take turns.
The cache is emptied between cases: precompute never displaces what was just served, so a full pool would leave it no
room. Further questions of a case count for the accuracy only: they find the first one's prompt.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from acmserve.bench.agent.conversation import COUNTS, check_receipt
from acmserve.bench.agent.estimates import bootstrap_interval
from acmserve.bench.agent.result_table import Report, ResultTable
from acmserve.bench.harness.engine import Ask, LocalEngine
from acmserve.bench.harness.markdown_text import interval, milliseconds, share
from acmserve.bench.harness.options import as_gate
from acmserve.bench.tasks.generators.pi_llm import UpdateSizes, make_case
from acmserve.bench.tasks.prompt import CaseTokens, tokenize_case
from acmserve.bench.tasks.run import choice

SIZES = UpdateSizes(12, 24)
_WAYS = ("fold, exact", "fold, exact, precomputed", "fold, reuse")
EXACT, PRECOMPUTED, REUSE = _WAYS


@dataclass(slots=True)
class AnswerWay:
    """How one way did: seconds and receipt of each case's first question. `right`: the share of right answers."""

    name: str
    seconds: list[float] = field(default_factory=list)
    right: list[float] = field(default_factory=list)
    receipts: list[dict[str, Any]] = field(default_factory=list)
    num_questions: int = 0


def measure_answers(engine: LocalEngine, num_cases: int, seed: int, say: Callable[[str], None]) -> dict[str, Any]:
    """Ask `num_cases` cases in every way. JSON-ready, without numbers where something failed."""
    ways = {name: AnswerWay(name) for name in _WAYS}
    failures: list[str] = []
    for number in range(-1, num_cases):
        case = make_case(10_000 * seed + number, SIZES)
        tokens = tokenize_case(case, engine.tokenizer)
        counted = ways if number >= 0 else {name: AnswerWay(name) for name in _WAYS}
        engine.forget()
        say(f"case {number + 1} of {num_cases}" if number >= 0 else "one case that is not counted")
        for name in (_WAYS[(number + turn) % len(_WAYS)] for turn in range(len(_WAYS))):
            failures += _ask(engine, counted[name], case.name, [q.gold for q in case.questions], tokens)
    return {
        "gate": as_gate(failures),
        "sizes": str(SIZES),
        "num_cases": num_cases,
        "ways": [] if failures else [_row(way) for way in ways.values()],
    }


def _ask(engine: LocalEngine, way: AnswerWay, case: str, golds: Sequence[str], tokens: CaseTokens) -> list[str]:
    """One case in one way. What was not as it has to be."""
    name = f"{case} {way.name}"
    engine.ask(Ask(tokens.full, name, name))
    if way.name == PRECOMPUTED:
        engine.ask(Ask(tokens.folded, name, name, acm={"precompute": True}))
    fidelity = "reuse" if way.name == REUSE else "exact"
    replies, right = [], []
    for gold, asked in zip(golds, tokens.asked, strict=True):
        candidates = tuple(asked.first_tokens.values())
        replies.append(engine.ask(Ask(tokens.folded + asked.tokens, name, name, fidelity, candidates=candidates)))
        right.append(choice(replies[-1], asked) == gold)
    receipt = replies[0].receipt or {}
    way.seconds.append(replies[0].first_token_s)
    way.right.append(statistics.fmean(right))
    way.receipts.append(receipt)
    way.num_questions += len(right)
    if failures := check_receipt(receipt, name):
        return failures
    moved, precomputed = receipt["moved_tokens"], receipt["precomputed_tokens"]
    if (moved > 0) is not (way.name == REUSE) or (precomputed > 0) is not (way.name == PRECOMPUTED):
        return [f"{name}: {moved} tokens moved, {precomputed} precomputed"]
    return []


def _row(way: AnswerWay) -> dict[str, Any]:
    def median(count: str) -> float:
        return statistics.median(receipt[count] for receipt in way.receipts)

    return {
        "name": way.name,
        "num_questions": way.num_questions,
        "accuracy": round(statistics.fmean(way.right), 4),
        "accuracy_interval": bootstrap_interval(way.right, statistics.fmean),
        "median_seconds": statistics.median(way.seconds),
        "quartile_seconds": statistics.quantiles(way.seconds, n=4)[::2],
        "median_tokens": {count: median(count) for count in COUNTS},
        "median_precomputed_tokens": median("precomputed_tokens"),
    }


def _answers(report: Report) -> Iterator[list[str]]:
    for way in report["ways"]:
        right = f"{share(way['accuracy'])}{interval(way['accuracy_interval'])}"
        yield [way["name"].replace("ahead", "precomputed"), right, milliseconds(way["median_seconds"])]


ANSWERS = ResultTable(
    ("way", "right", "median first token"),
    _answers,
    "A fold of superseded lines, asked at once (`acmserve bench precompute --answers 60`). "
    "The precomputed context was waited for.",
)
