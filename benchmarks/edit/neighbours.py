"""What other running requests notice of an edit: `acmserve bench edit --neighbours`.

A request without session streams its answer; meanwhile the turn after a fold arrives in the same engine:

    neighbour   t t t t t t t t t - t t t t t t ...       a gap for each token from the arrival on
    arrives                      ^ nobody, or the turn after an edit: append, reuse, exact, stock

A move and the little that is computed beside it fit into one step; a prefill takes as many steps as it has chunks, and
each of them is a gap for everybody else. Gaps of all repetitions go together: their median, 99th percentile and
longest. `nobody` is the same stream with no arrival, on both engines, so that the noise of the machine is seen.

The gate is that of the kinds: receipts, the stock engine's first token under `exact`, a suffix that was moved. And
every stream has said all of its tokens.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

from acmserve.bench.edit.cells import APPEND, EXACT, MOVING, STOCK, Cell, check_receipt, check_reused
from acmserve.bench.edit.kinds import Shape, Tokens, plan_edits
from acmserve.bench.harness.engine import Ask, Meeting, Met
from acmserve.bench.harness.engine_process import EngineProcess
from acmserve.bench.harness.options import as_gate, red_gate

NOBODY, NOBODY_STOCK = "nobody", "nobody, stock engine"
_STREAM_TOKENS, _STREAM_PROMPT, _NUM_BEFORE = 48, 200, 8
_NUM_GAPS = _STREAM_TOKENS - _NUM_BEFORE


@dataclass
class Neighbours:
    """Seconds between a neighbour's tokens by who arrived, all repetitions together; why they may not be told."""

    shape: Shape
    gaps_s: dict[str, list[float]] = field(default_factory=dict)
    failures: list[str] = field(default_factory=list)
    chunk_tokens: int = 0


def run_neighbours(
    ours: EngineProcess,
    stock: EngineProcess,
    measured: Neighbours,
    text: Tokens,
    repetitions: Iterable[int],
    say: Callable[[str], None],
) -> None:
    """One stream beside nobody and beside each arrival, on both engines, in each repetition."""
    for number in repetitions:
        say(f"repetition {number}: a neighbour streams while an edit arrives")
        _run_once(ours, stock, measured, text, number)


def _run_once(ours: EngineProcess, stock: EngineProcess, measured: Neighbours, text: Tokens, number: int) -> None:
    (edit,) = plan_edits(text, number, measured.shape, ["fold"])
    cell = Cell("fold", measured.shape, num_front=edit.num_front, num_behind=edit.num_behind)
    _meet(ours, measured, NOBODY, None, text)
    _meet(stock, measured, NOBODY_STOCK, None, text)
    first_tokens: dict[str, Tokens] = {}
    for fidelity in (*MOVING, EXACT):
        salt = f"neighbours {number} {fidelity}"
        asked = [Ask(tokens, salt, salt, fidelity) for tokens in (*edit.turns, edit.prompt, edit.append)]
        for ask in asked[:-2]:
            ours.ask(ask)
        for name, ask in zip((fidelity, APPEND), asked[-2:], strict=True):
            if name == APPEND and fidelity != MOVING[0]:
                continue
            reply = _meet(ours, measured, name, ask, text).reply
            assert reply is not None
            cell.receipts[name] = reply.receipt or {}
            cell.failures += check_receipt(name, ask, reply.receipt)
            first_tokens[name] = reply.token_ids
        cell.failures += check_reused(fidelity, cell) if fidelity in MOVING else []
    for tokens in edit.turns:
        stock.ask(Ask(tokens, f"neighbours {number}"))
    reply = _meet(stock, measured, STOCK, Ask(edit.prompt, f"neighbours {number}"), text).reply
    assert reply is not None
    if reply.token_ids != first_tokens[EXACT]:
        cell.failures.append(f"exact gave token {first_tokens[EXACT]}, the stock engine {reply.token_ids}")
    measured.failures += [f"repetition {number}, {failure}" for failure in cell.failures]


def _meet(engine: EngineProcess, measured: Neighbours, name: str, arriving: Ask | None, text: Tokens) -> Met:
    stream = Ask(text[-_STREAM_PROMPT:], "neighbour", max_tokens=_STREAM_TOKENS, ignore_eos=True)
    met = engine.meet(Meeting(stream, arriving, _NUM_BEFORE))
    if len(met.gaps_s) != _NUM_GAPS:
        measured.failures.append(f"{name}: the neighbour had {len(met.gaps_s)} gaps, {_NUM_GAPS} were expected")
    measured.gaps_s.setdefault(name, []).extend(met.gaps_s)
    measured.chunk_tokens = met.chunk_tokens
    return met


def as_report(measured: Neighbours) -> dict[str, Any]:
    """JSON-ready; no times when the gate is red."""
    return {
        "gate": as_gate(measured.failures),
        "context_tokens": measured.shape.num_context,
        "position": measured.shape.position,
        "chunk_tokens": measured.chunk_tokens,
        "gaps": {} if measured.failures else {name: spread(gaps) for name, gaps in measured.gaps_s.items()},
        "gaps_seconds": {} if measured.failures else measured.gaps_s,
    }


def spread(gaps: list[float]) -> dict[str, float]:
    """Milliseconds: median, 99th percentile (nearest rank), longest."""
    p99 = sorted(gaps)[math.ceil(0.99 * len(gaps)) - 1]
    return {
        "median_ms": round(1e3 * statistics.median(gaps), 1),
        "p99_ms": round(1e3 * p99, 1),
        "longest_ms": round(1e3 * max(gaps), 1),
    }


def as_table(report: dict[str, Any]) -> list[str]:
    """What people read; nothing but the reasons when the gate is red."""
    if red := red_gate(report):
        return red
    num = len(next(iter(report["gaps_seconds"].values())))
    lines = [
        "",
        f"{num} gaps between a neighbour's tokens while a fold at {report['context_tokens']:,} tokens arrives",
        f"{'':<24}{'median':>12}{'p99':>12}{'longest':>12}",
    ]
    for name, gaps in report["gaps"].items():
        cells = "".join(f"{gaps[key]:>9,.0f} ms" for key in ("median_ms", "p99_ms", "longest_ms"))
        lines.append(f"{name:<24}{cells}")
    chunk = report["chunk_tokens"]
    return [
        *lines,
        "",
        f"gate green; the engine computes at most {chunk:,} tokens in a step, so a prefill is cut there",
    ]
