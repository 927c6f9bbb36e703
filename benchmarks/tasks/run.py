"""Serves the cases of `bench tasks` in every way, and tells what was chosen, what was said and what was moved.

    1  history                      the full context, read once for each case
    2  history, one session a way   found in the cache. Now every session has KV that it could move
    3  folded prompt + question     in each of these sessions, and the full context + question in the first one
    4  folded prompt + question     exact, in the first session

All requests of a case share a cache salt, so the context is prefilled once. What is exact comes last: a way that moves
would find it in the cache, and keep it instead of moving. Each question is a request of its own right behind the fold,
so none depends on another. A few cases go together, because small models spend their time on steps, not on tokens.

Failures are collected, not raised, so that a report names all of them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np

from acmserve.bench.harness.engine import Ask, EngineReply, LocalEngine
from acmserve.bench.harness.run_log import counted
from acmserve.bench.tasks.cases import half_of
from acmserve.bench.tasks.generators.case import CaseQuestion, TaskCase
from acmserve.bench.tasks.prompt import AskedTokens, CaseTokens, Tokens, tokenize_cases
from acmserve.plan.auto import AUTO_REPAIR, Features, choose_fidelity, measure
from acmserve.plan.planner import DEFAULT_MIN_MOVE_TOKENS, plan_edit
from acmserve.plan.repair import grain_of
from acmserve.plan.source import ServedSequence

MIN_MOVED_SHARE = 0.9
CASES_TOGETHER = 4
FULL, EXACT, REUSE, AUTO = "full", "exact", "reuse", "auto"
REFUSALS = ("model:", "kv cache:", "positions:")
_COUNTS = ("kept_tokens", "moved_tokens", "computed_tokens")


@dataclass(frozen=True, slots=True)
class TaskVariant:
    """One way to serve a case. `acm` are parameters of the session beside the fidelity."""

    name: str
    title: str
    fidelity: str = "exact"
    acm: Mapping[str, Any] = field(default_factory=dict)
    must_move: bool = False

    @property
    def moves(self) -> bool:
        return self.fidelity != "exact"


TOKEN_EXACT = TaskVariant(
    "repair-echoes",
    "fold, repair echoes",
    "repair",
    {"repair": asdict(AUTO_REPAIR) | {"rest_tokens": grain_of().rest_tokens}},
)
REPAIRS = (
    TaskVariant("repair-128", "fold, repair 128", "repair", {"repair": {"head_tokens": 128}}),
    TaskVariant("repair-256", "fold, repair 256", "repair", {"repair": {"head_tokens": 256}}),
    TOKEN_EXACT,
)
VARIANTS = (
    TaskVariant(FULL, "full context"),
    TaskVariant(EXACT, "fold, exact"),
    TaskVariant(REUSE, "fold, reuse", "reuse", must_move=True),
    *REPAIRS,
    TaskVariant(AUTO, "fold, auto", "auto"),
)


@dataclass
class TasksOutcome:
    """JSON-ready records of cases, what turned the gate red, and why the model's KV is not moved, where it is not."""

    records: list[dict[str, Any]] = field(default_factory=list)
    failures: list[str] = field(default_factory=list)
    refusal: str | None = None
    num_dropped_choices: int = 0


@dataclass(frozen=True, slots=True)
class _Prepared:
    """A case, its tokens, and the answers in each way as they come, one for each question."""

    case: TaskCase
    tokens: CaseTokens
    replies: dict[str, list[EngineReply]] = field(default_factory=dict)

    def prompt(self, variant: TaskVariant) -> Tokens:
        """The context of a way, without question."""
        return self.tokens.full if variant.name == FULL else self.tokens.folded

    def history(self, session: str) -> Ask:
        """The request that reads the full context in a session."""
        return Ask(self.tokens.full, self.case.name, self._session(session))

    def asks(self, variant: TaskVariant) -> list[Ask]:
        """One request for each question."""
        return [
            Ask(
                self.prompt(variant) + asked.tokens,
                self.case.name,
                self._session(variant.name if variant.moves else FULL),
                variant.fidelity,
                max_tokens=question.max_tokens,
                acm=variant.acm,
                candidates=tuple(asked.first_tokens.values()),
            )
            for question, asked in zip(self.case.questions, self.tokens.asked, strict=True)
        ]

    def _session(self, name: str) -> str:
        return f"{self.case.name} {name}"


def run_cases(
    engine: LocalEngine,
    cases: Sequence[TaskCase],
    outcome: TasksOutcome,
    variants: Sequence[TaskVariant] = VARIANTS,
    say: Callable[[str], None] = lambda line: None,
) -> None:
    """Serve every case in every way and add what came of it to `outcome`."""
    tokenized = tokenize_cases(cases, engine.tokenizer)
    for first in range(0, len(cases), CASES_TOGETHER):
        group = [_Prepared(one.case, one.tokens) for one in tokenized[first:][:CASES_TOGETHER]]
        say(counted(first + 1, len(cases), f"{len(group)} cases"))
        movers = [variant for variant in variants if variant.moves]
        engine.ask_all([one.history(FULL) for one in group])
        engine.ask_all([one.history(variant.name) for one in group for variant in movers])
        _ask(engine, group, [variant for variant in variants if variant.moves or variant.name == FULL])
        _ask(engine, group, [variant for variant in variants if not variant.moves and variant.name != FULL])
        for one in group:
            for variant in variants:
                _check(one, variant, outcome)
            outcome.num_dropped_choices += sum(len(asked.dropped) for asked in one.tokens.asked)
            record = _record(one, variants)
            check_choice(record, outcome)
            outcome.records.append(record)


def _ask(engine: LocalEngine, group: Sequence[_Prepared], variants: Sequence[TaskVariant]) -> None:
    replies = iter(engine.ask_all([ask for one in group for variant in variants for ask in one.asks(variant)]))
    for one in group:
        for variant in variants:
            one.replies[variant.name] = [next(replies) for _ in one.case.questions]


def _check(one: _Prepared, variant: TaskVariant, outcome: TasksOutcome) -> None:
    where = f"{one.case.name}, {variant.title}"
    for reply, asked in zip(one.replies[variant.name], one.tokens.asked, strict=True):
        if reply.receipt is None:
            outcome.failures.append(f"{where}: no receipt came back")
            return
        counts = tuple(reply.receipt[key] for key in _COUNTS)
        num_tokens = len(one.prompt(variant)) + len(asked.tokens)
        if sum(counts) != num_tokens:
            outcome.failures.append(f"{where}: kept, moved, computed {counts} do not sum to {num_tokens}")
        if not variant.moves and counts[1]:
            outcome.failures.append(f"{where}: {counts[1]} tokens were moved under exact")
    receipt = one.replies[variant.name][0].receipt or {}
    if variant.moves and (receipt["fallback_reason"] or "").startswith(REFUSALS):
        outcome.refusal = receipt["fallback_reason"]
    movable = num_movable(one.tokens)
    if variant.must_move and not outcome.refusal and receipt["moved_tokens"] < MIN_MOVED_SHARE * movable:
        moved, reason = receipt["moved_tokens"], receipt["fallback_reason"]
        outcome.failures.append(f"{where}: moved {moved} of {movable} tokens ({reason})")


def check_choice(record: Mapping[str, Any], outcome: TasksOutcome) -> None:
    """What `auto` chose in the engine is what its rule says of the features that are recorded."""
    told = record["variants"].get(AUTO, {}).get("chosen")
    expected = choose_fidelity(Features(**record["features"]))
    if told is not None and not outcome.refusal and told != expected.fidelity:
        outcome.failures.append(
            f"{record['case']}: auto chose {told}, the rule {expected.fidelity} ({expected.reason})"
        )


def num_movable(tokens: CaseTokens) -> int:
    """Suffix tokens in pieces that are long enough to be moved."""
    return sum(end - start for start, end in tokens.suffix_spans if end - start >= DEFAULT_MIN_MOVE_TOKENS)


def _record(one: _Prepared, variants: Sequence[TaskVariant]) -> dict[str, Any]:
    case, tokens = one.case, one.tokens
    prompt = np.array(tokens.folded + tokens.asked[0].tokens, dtype=np.int32)
    sources = [ServedSequence(np.array(tokens.full, dtype=np.int32), 1, ())]
    features = measure(
        plan_edit(prompt, sources, allow_moves=True, min_move_tokens=grain_of().piece_tokens), prompt, sources
    ).features
    return {
        "case": case.name,
        "task": case.task,
        "setting": case.setting,
        "half": half_of(case),
        "full_tokens": len(tokens.full),
        "folded_tokens": tokens.num_folded,
        "suffix_tokens": tokens.num_suffix,
        "features": asdict(features),
        "variants": {variant.name: _row(one, variant) for variant in variants},
    }


def _row(one: _Prepared, variant: TaskVariant) -> dict[str, Any]:
    replies = one.replies[variant.name]
    receipt = replies[0].receipt or {}
    questions = one.case.questions
    choices = [choice(reply, asked) for reply, asked in zip(replies, one.tokens.asked, strict=True)]
    row: dict[str, Any] = {
        "choices": choices,
        "right": [float(chosen == q.gold) for chosen, q in zip(choices, questions, strict=True)],
        "misled": [float(chosen in q.distractors) for chosen, q in zip(choices, questions, strict=True)],
        "score": [_score(reply, question) for reply, question in zip(replies, questions, strict=True)],
    }
    row |= {key: receipt.get(key) for key in (*_COUNTS, "repaired_tokens", "fallback_reason")}
    if variant.name == AUTO:
        row |= {key: receipt.get(key) for key in ("chosen", "reason")}
    return row


def choice(reply: EngineReply, asked: AskedTokens) -> str:
    """The most likely choice, and of equally likely ones the first in the order of the alphabet."""
    return max(sorted(asked.first_tokens), key=lambda choice: reply.first_logprobs[asked.first_tokens[choice]])


def _score(reply: EngineReply, question: CaseQuestion) -> float:
    return round(question.score(reply.text), 4)
