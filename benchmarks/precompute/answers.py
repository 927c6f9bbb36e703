"""`acmserve bench ahead --answers`: fold, then answer. How right the answer is, and how long it takes, in one table.

    history   [ updates of 12 keys ......... ][ the last round ]        read in every way
    folded    [ marker ][ the last round ]                              computed now in one way: the idle moment
    question  [ marker ][ the last round ][ key: ]                      timed to its first token

PI-LLM's updates are what moved KV serves worst: the kept lines were read while the stale ones stood in front of them.
Computed ahead, the fold is exact and need not be waited for. Each way has a cache salt of its own, so none profits from
another; the ways take turns. The cache is emptied between cases: work ahead never displaces what was just served, and a
pool full of other cases would leave it no room. Further questions of a case count for the accuracy only: they find the
first one's prompt.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from acmserve.bench.harness.engine import Ask, LocalEngine, Reply
from acmserve.bench.harness.options import as_gate, red_gate
from acmserve.bench.tasks.generators.pi_llm import Sizes, make_case
from acmserve.bench.tasks.prompt import CaseTokens, tokenize_case
from acmserve.bench.tasks.run import choice
from acmserve.bench.tasks.summary import share_interval

SIZES = Sizes(12, 24)
_WAYS = ("fold, exact", "fold, exact, ahead", "fold, reuse")
EXACT, PRECOMPUTE, REUSE = _WAYS
_COUNTS = ("kept_tokens", "moved_tokens", "computed_tokens")


@dataclass(slots=True)
class Way:
    """How one way did. `seconds` to the first token of each case's first question; `right`: its share of right ones."""

    name: str
    seconds: list[float] = field(default_factory=list)
    right: list[float] = field(default_factory=list)
    counts: list[tuple[int, int, int]] = field(default_factory=list)
    num_questions: int = 0
    num_precomputed: list[int] = field(default_factory=list)


def measure(engine: LocalEngine, num_cases: int, seed: int, say: Callable[[str], None]) -> dict[str, Any]:
    """Ask `num_cases` cases in every way; JSON-ready, without numbers where something failed."""
    ways = {name: Way(name) for name in _WAYS}
    failures: list[str] = []
    for number in range(-1, num_cases):
        case = make_case(10_000 * seed + number, SIZES)
        tokens = tokenize_case(case, engine.tokenizer)
        counted = ways if number >= 0 else {name: Way(name) for name in _WAYS}
        engine.forget()
        say(f"case {number + 1} of {num_cases}" if number >= 0 else "one case that is not counted")
        for name in (_WAYS[(number + turn) % len(_WAYS)] for turn in range(len(_WAYS))):
            failures += _ask(engine, counted[name], case.name, [q.gold for q in case.questions], tokens)
    return {
        "gate": as_gate(failures),
        "sizes": str(SIZES),
        "num_cases": num_cases,
        "ways": [] if failures else [_row(way, seed) for way in ways.values()],
    }


def _ask(engine: LocalEngine, way: Way, case: str, golds: Sequence[str], tokens: CaseTokens) -> list[str]:
    """One case in one way; what was not as it has to be."""
    name = f"{case} {way.name}"
    failures = []
    engine.ask(Ask(tokens.full, name, name))
    if way.name == PRECOMPUTE:
        engine.ask(Ask(tokens.folded, name, name, acm={"precompute": True}))
    fidelity = "reuse" if way.name == REUSE else "exact"
    right = []
    for index, (gold, asked) in enumerate(zip(golds, tokens.asked, strict=True)):
        candidates = tuple(asked.first_tokens.values())
        reply = engine.ask(Ask(tokens.folded + asked.tokens, name, name, fidelity, candidates=candidates))
        right.append(choice(reply, asked) == gold)
        if index == 0:
            way.seconds.append(reply.first_token_s)
            failures += _count(reply, way, name, len(tokens.folded) + len(asked.tokens))
    way.right.append(statistics.fmean(right))
    way.num_questions += len(right)
    return failures


def _count(reply: Reply, way: Way, name: str, num_tokens: int) -> list[str]:
    """Add the receipt of a first question to its way."""
    receipt = reply.receipt
    if receipt is None:
        return [f"{name}: no receipt came back"]
    kept, moved, computed = (receipt[key] for key in _COUNTS)
    way.counts.append((kept, moved, computed))
    way.num_precomputed.append(receipt["precomputed_tokens"])
    failures = []
    if kept + moved + computed != num_tokens:
        failures.append(f"{name}: kept, moved, computed {kept, moved, computed} do not sum to {num_tokens}")
    if (moved > 0) is not (way.name == REUSE) or (receipt["precomputed_tokens"] > 0) is not (way.name == PRECOMPUTE):
        failures.append(f"{name}: {moved} tokens moved, {receipt['precomputed_tokens']} computed ahead")
    return failures


def _row(way: Way, seed: int) -> dict[str, Any]:
    return {
        "name": way.name,
        "num_questions": way.num_questions,
        "accuracy": round(statistics.fmean(way.right), 4),
        "accuracy_interval": share_interval(way.right, seed),
        "median_seconds": statistics.median(way.seconds),
        "quartile_seconds": statistics.quantiles(way.seconds, n=4)[::2],
        "median_tokens": dict(zip(_COUNTS, map(statistics.median, zip(*way.counts, strict=True)), strict=True)),
        "median_precomputed_tokens": statistics.median(way.num_precomputed),
    }


def as_table(report: dict[str, Any]) -> list[str]:
    """What people read; nothing but the reasons where something failed."""
    if red := red_gate(report):
        return red
    lines = [
        f"{report['num_cases']} cases of PI-LLM ({report['sizes']}: keys x updates - rounds kept), 95 % intervals:",
        "",
    ]
    lines.append(f"{'':<20}{'right':>24}{'first token (quartiles)':>34}{'computed':>10}{'ahead':>8}")
    for row in report["ways"]:
        low, high = row["accuracy_interval"]
        first, third = row["quartile_seconds"]
        right = f"{row['accuracy']:.0%} [{low:.0%}, {high:.0%}]"
        seconds = f"{row['median_seconds'] * 1e3:.0f} ms ({first * 1e3:.0f} to {third * 1e3:.0f})"
        computed = row["median_tokens"]["computed_tokens"]
        lines.append(
            f"{row['name']:<20}{right:>24}{seconds:>34}{computed:>10,.0f}{row['median_precomputed_tokens']:>8,.0f}"
        )
    return lines
