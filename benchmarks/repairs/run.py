"""Serves the cases of `bench repairs`: one repaired cache for each way, asked several questions.

    1  history                           the full context, read once for each case, then by a session of each way
    2  folded prompt + question          in each session: this is what repairs
    3  folded prompt + other questions   in the same sessions, so of the same cache
    4  all of them                       exact, last: a way that moves would find it in the cache and keep it

Each request keeps the logits of its first token, so the distance to exact is over the whole vocabulary. Failures are
collected, not raised, so that a report names all of them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np

from acmserve.bench.fidelity.score import distance
from acmserve.bench.harness.engine import Ask, EngineReply, LocalEngine
from acmserve.bench.harness.run_log import counted
from acmserve.bench.models.forced_model import take
from acmserve.bench.repairs.cases import roles_of
from acmserve.bench.repairs.ways import EXACT, WAYS, Way
from acmserve.bench.tasks.generators.case import TaskCase
from acmserve.bench.tasks.prompt import CaseTokens, TokenizedCase, Tokens
from acmserve.bench.tasks.run import MIN_MOVED_SHARE, REFUSALS, TasksOutcome, check_choice, num_movable
from acmserve.plan.auto import measure
from acmserve.plan.planner import plan_edit
from acmserve.plan.repair import grain_of
from acmserve.plan.source import ServedSequence

CASES_TOGETHER, MAX_TOGETHER = 4, 16
"""Cases of a group, and cases times ways of it. With more, the pool drops the end of a cache before it was asked."""
_COUNTS = ("kept_tokens", "moved_tokens", "computed_tokens")


@dataclass(frozen=True, slots=True)
class _Served:
    """A case, its tokens, and the replies of each way, one for each question."""

    case: TaskCase
    tokens: CaseTokens
    replies: dict[str, list[EngineReply]] = field(default_factory=dict)

    def ask(self, way: Way, number: int) -> Ask:
        """The request of one question."""
        question = self.tokens.asked[number]
        return Ask(
            self.prompt(number),
            self.case.name,
            self.session(way),
            way.fidelity,
            acm=way.parameters(self.tokens),
            extra_args={"forced_id": self.key(way, number), "forced": [next(iter(question.first_tokens.values()))]},
            ignore_eos=True,
        )

    def prompt(self, number: int) -> Tokens:
        return self.tokens.folded + self.tokens.asked[number].tokens

    def session(self, way: Way) -> str:
        return f"{self.case.name} {way.name}"

    def key(self, way: Way, number: int) -> str:
        return f"{self.case.name} {way.name} {number}"


def run_cases(
    engine: LocalEngine,
    cases: Sequence[TokenizedCase],
    outcome: TasksOutcome,
    ways: Sequence[Way] = WAYS,
    say: Callable[[str], None] = lambda line: None,
) -> None:
    """Serve every case in every way and add what came of it to `outcome`."""
    movers = [way for way in ways if way.moves]
    together = max(1, min(CASES_TOGETHER, MAX_TOGETHER // len(ways)))
    for first in range(0, len(cases), together):
        group = [_Served(one.case, one.tokens) for one in cases[first:][:together]]
        say(counted(first + 1, len(cases), f"{len(group)} cases"))
        engine.ask_all([Ask(one.tokens.full, one.case.name) for one in group])
        engine.ask_all([Ask(one.tokens.full, one.case.name, one.session(way)) for one in group for way in movers])
        for some in (movers, [EXACT]):
            for is_first in (True, False):
                _ask(engine, group, some, is_first)
        for one in group:
            _check(one, ways, outcome)
            record = _record(one, ways)
            check_choice(record, outcome)
            outcome.records.append(record)


def _ask(engine: LocalEngine, group: Sequence[_Served], ways: Sequence[Way], is_first: bool) -> None:
    """The first question of each case, or all others, which find the cache that it left."""
    asks = [
        (one, way, number)
        for one in group
        for way in ways
        for number in (range(1) if is_first else range(1, len(one.case.questions)))
    ]
    replies = engine.ask_all([one.ask(way, number) for one, way, number in asks])
    for (one, way, _), reply in zip(asks, replies, strict=True):
        one.replies.setdefault(way.name, []).append(reply)


def _check(one: _Served, ways: Sequence[Way], outcome: TasksOutcome) -> None:
    for way in ways:
        for number, reply in enumerate(one.replies[way.name]):
            where = f"{one.case.name}, {way.name}, question {number + 1}"
            if reply.receipt is None:
                outcome.failures.append(f"{where}: no receipt came back")
                continue
            kept, moved, computed = (reply.receipt[key] for key in _COUNTS)
            if kept + moved + computed != len(one.prompt(number)):
                outcome.failures.append(f"{where}: {kept}, {moved}, {computed} do not sum to {len(one.prompt(number))}")
            reason = reply.receipt["fallback_reason"] or ""
            if way.moves and reason.startswith(REFUSALS):
                outcome.refusal = reason
            if not way.moves and moved:
                outcome.failures.append(f"{where}: {moved} tokens were moved under exact")
            if number and way.moves and (moved or kept < len(one.tokens.folded)):
                outcome.failures.append(f"{where}: {kept} of {len(one.tokens.folded)} tokens kept: another cache")
            movable = num_movable(one.tokens)
            must_move = way.must_move and not number and not outcome.refusal
            if must_move and moved < MIN_MOVED_SHARE * movable:
                outcome.failures.append(f"{where}: moved {moved} of {movable} tokens ({reason})")


def _record(one: _Served, ways: Sequence[Way]) -> dict[str, Any]:
    case, tokens = one.case, one.tokens
    prompt = np.array(one.prompt(0), dtype=np.int32)
    sources = [ServedSequence(np.array(tokens.full, dtype=np.int32), 1, ())]
    numbers = range(len(case.questions))
    exact = [take(one.key(EXACT, number)) for number in numbers]
    rows = {}
    for way in ways:
        logits = exact if way == EXACT else [take(one.key(way, number)) for number in numbers]
        receipt = one.replies[way.name][0].receipt or {}
        rows[way.name] = {
            "kl": [round(distance(e, served).mean_kl, 6) for e, served in zip(exact, logits, strict=True)],
            "right": [
                float(_choice(row[0], asked.first_tokens) == question.gold)
                for row, asked, question in zip(logits, tokens.asked, case.questions, strict=True)
            ],
            **{key: receipt.get(key) for key in (*_COUNTS, "fallback_reason", "chosen", "reason")},
            "num_moves": len(receipt.get("moves") or ()),
        }
    return {
        "case": case.name,
        "task": case.task,
        "setting": case.setting,
        "seed": case.seed,
        "roles": list(roles_of(case)),
        "folded_tokens": tokens.num_folded,
        "suffix_tokens": tokens.num_suffix,
        "features": asdict(
            measure(
                plan_edit(prompt, sources, allow_moves=True, min_move_tokens=grain_of().piece_tokens), prompt, sources
            ).features
        ),
        "variants": rows,
    }


def _choice(logits: Any, first_tokens: dict[str, int]) -> str:
    """The likeliest choice, and of equally likely ones the first in the order of the alphabet."""
    return max(sorted(first_tokens), key=lambda choice: float(logits[first_tokens[choice]]))
