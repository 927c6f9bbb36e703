"""One repetition of `acmserve bench edit`: two engines take turns, times are kept, and every answer is checked.

    append            a plain append of as many new tokens on the same engine: the floor of the fold
    fold              under `reuse`
    append, 2 markers a plain append of as many new tokens as the two holes need: their floor
    two holes         under `reuse`
                      these four follow each other in every round
    fold, exact       the same prompt under `exact`, in the same session: KV that was moved must not answer it
    fold, stock       the same prompt in the engine without acmserve

A history is always read right before its edit, untimed, by a session of its own; from the second round on its KV is
found in the cache. Failures are collected, not raised, so that a report names all of them.
"""

from __future__ import annotations

import statistics
from dataclasses import dataclass, field
from typing import Any

from acmserve.bench.edit.cases import EditCase, Repetition, Round, Tokens
from acmserve.bench.harness.engine import Ask, EngineReply
from acmserve.bench.harness.engine_process import EngineProcess

APPEND, FOLD, TWO_HOLES = "append", "fold, reuse", "two holes, reuse"
EXACT, STOCK = "fold, exact", "fold, stock engine"
APPEND_TWO = "append, 2 markers"
CASES = (APPEND, FOLD, APPEND_TWO, TWO_HOLES, EXACT, STOCK)
MIN_MOVED_SHARE = 0.9


@dataclass
class EditMeasurement:
    """Seconds to first token by case, in order of repetition; the last receipt of each; what turned the gate red."""

    seconds: dict[str, list[float]] = field(default_factory=lambda: {case: [] for case in CASES})
    receipts: dict[str, dict[str, Any]] = field(default_factory=dict)
    failures: list[str] = field(default_factory=list)
    num_reuse_agrees: int = 0
    first_tokens: list[Tokens] = field(default_factory=list)

    def median(self, case: str) -> float:
        """Median seconds to first token."""
        return statistics.median(self.seconds[case])


def run_repetition(ours: EngineProcess, stock: EngineProcess, plan: Repetition, measured: EditMeasurement) -> None:
    """Ask for every case of `plan` and add the outcome to `measured`."""
    for number, cases in enumerate(plan.rounds):
        _run_round(ours, plan, cases, number, measured)
    fold = plan.rounds[0].fold
    exact = _timed(ours, _session_ask(plan, fold.prompt, FOLD, 0, "exact"), EXACT, measured)
    stock.ask(Ask(fold.history, salt=plan.key))
    expected = _timed(stock, Ask(fold.prompt, salt=plan.key), STOCK, measured)
    if exact.token_ids != expected.token_ids:
        measured.failures.append(
            f"{plan.key}: after the fold exact gave token {exact.token_ids}, the stock engine {expected.token_ids}"
        )
    measured.num_reuse_agrees += measured.first_tokens[-len(plan.rounds)] == expected.token_ids


def _run_round(ours: EngineProcess, plan: Repetition, cases: Round, number: int, measured: EditMeasurement) -> None:
    _history_then_edit(ours, plan, cases.append, APPEND, number, "exact", measured)
    fold = _history_then_edit(ours, plan, cases.fold, FOLD, number, "reuse", measured)
    _timed(ours, _session_ask(plan, cases.append_two.prompt, APPEND, number, "exact"), APPEND_TWO, measured)
    two_holes = _history_then_edit(ours, plan, cases.two_holes, TWO_HOLES, number, "reuse", measured)
    _check_moved(FOLD, fold, plan, measured)
    _check_moved(TWO_HOLES, two_holes, plan, measured)
    measured.first_tokens.append(fold.token_ids)


def _history_then_edit(
    engine: EngineProcess,
    plan: Repetition,
    case: EditCase,
    name: str,
    number: int,
    fidelity: str,
    measured: EditMeasurement,
) -> EngineReply:
    engine.ask(_session_ask(plan, case.history, name, number, fidelity))
    return _timed(engine, _session_ask(plan, case.prompt, name, number, fidelity), name, measured)


def _session_ask(plan: Repetition, tokens: Tokens, name: str, number: int, fidelity: str) -> Ask:
    session_id = f"{plan.key} {name} {number}"
    return Ask(tokens, salt=f"{plan.key} {name}", session_id=session_id, fidelity=fidelity)


def _timed(engine: EngineProcess, ask: Ask, name: str, measured: EditMeasurement) -> EngineReply:
    reply = engine.ask(ask)
    measured.seconds[name].append(reply.first_token_s)
    if ask.session_id is not None:
        _check_receipt(name, ask, reply, measured)
    return reply


def _check_receipt(name: str, ask: Ask, reply: EngineReply, measured: EditMeasurement) -> None:
    if reply.receipt is None:
        measured.failures.append(f"{ask.salt}: no receipt came back")
        return
    measured.receipts[name] = reply.receipt
    counts = tuple(reply.receipt[key] for key in ("kept_tokens", "moved_tokens", "computed_tokens"))
    if sum(counts) != len(ask.token_ids):
        measured.failures.append(f"{ask.salt}: kept, moved, computed {counts} do not sum to {len(ask.token_ids)}")
    if ask.fidelity == "exact" and counts[1]:
        measured.failures.append(f"{ask.salt}: {counts[1]} tokens were moved under exact")


def _check_moved(name: str, reply: EngineReply, plan: Repetition, measured: EditMeasurement) -> None:
    """A fast first token only counts when the text behind the fold really came along."""
    moved = reply.receipt["moved_tokens"] if reply.receipt else 0
    if moved < MIN_MOVED_SHARE * plan.num_suffix:
        reason = reply.receipt["fallback_reason"] if reply.receipt else "no receipt"
        measured.failures.append(f"{plan.key} {name}: moved {moved} of {plan.num_suffix} tokens ({reason})")
