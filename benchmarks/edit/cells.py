"""Measures every kind of edit at every size and position: `acmserve bench edit --kinds` and `--sweep`.

One cell is a kind of edit in a context of one shape. In each repetition its cases follow each other closely:

    reuse    the turns before the edit, untimed; then the edit, timed
    append   right behind it, a plain append of as many new tokens in the same session: the floor
    repair   the same turns and the same edit under `repair`: the head of each moved piece is computed
    exact    the same under `exact`
    stock    the same prompts in an engine without acmserve, its prefix caching on
    llamacpp the same prompts in llama.cpp's server with --cache-reuse, where there is one

Each of them has a cache salt of its own, so that none finds in the cache what another one computed; the context is
prefilled once for all kinds. Fidelities that move KV are a list: another one is another row of it.

The gate of a cell: `exact` moved nothing and gives the stock engine's first token, receipts sum to their prompts, and
what moves KV kept or moved nine tenths of the text behind the edit (what `repair` computes of it counts, too). A red
cell tells no times, the others do. llama.cpp computes in the precision of its GGUF, so its first token is compared with
nobody's.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import product
from typing import Any

from acmserve.bench.edit.kinds import WITHOUT_POSITION, KindEdit, Shape, Tokens, plan_edits
from acmserve.bench.harness.engine import Ask, EngineReply
from acmserve.bench.harness.engine_process import EngineProcess
from acmserve.bench.harness.llama_cpp import LlamaProcess
from acmserve.bench.harness.options import as_gate

MOVING = ("reuse", "repair")
APPEND, EXACT, STOCK, LLAMA_CPP = "append", "exact", "stock", "llamacpp"
SERIES = (*MOVING, APPEND, EXACT, STOCK, LLAMA_CPP)
MIN_REUSED_SHARE = 0.9
_SERIES_WIDTH = 22
# Acceptance of the project, for a fold: at most so many appends, and so many times faster than stock.
MOST_APPENDS, LEAST_SPEEDUP = 1.25, 8.0


@dataclass
class Cell:
    """Seconds to first token by series, in order of repetition; the last receipt of each; why it is red."""

    kind: str
    shape: Shape
    seconds: dict[str, list[float]] = field(default_factory=lambda: {name: [] for name in SERIES})
    receipts: dict[str, dict[str, Any]] = field(default_factory=dict)
    failures: list[str] = field(default_factory=list)
    num_agreeing: dict[str, int] = field(default_factory=lambda: dict.fromkeys(MOVING, 0))
    num_front: int = 0
    num_behind: int = 0
    num_new: int = 0

    @property
    def series(self) -> list[str]:
        """Those that were measured."""
        return [name for name, seconds in self.seconds.items() if seconds]

    def median(self, series: str) -> float:
        """Median seconds to first token."""
        return statistics.median(self.seconds[series])


def make_cells(kinds: Sequence[str], sizes: Sequence[int], positions: Sequence[str]) -> list[Cell]:
    """Every kind in every shape; kinds without a position only at the first one."""
    return [
        Cell(kind, Shape(size, position))
        for size, position in product(sizes, positions)
        for kind in kinds
        if position == positions[0] or kind not in WITHOUT_POSITION
    ]


def run_cells(
    ours: EngineProcess,
    stock: EngineProcess,
    cells: Sequence[Cell],
    text: Tokens,
    repetitions: Iterable[int],
    say: Callable[[str], None],
    llama: LlamaProcess | None = None,
) -> None:
    """Ask for every cell once in each repetition and add the outcome to it."""
    for number in repetitions:
        for shape, group in _by_shape(cells):
            say(f"repetition {number}: {shape.num_context:,} tokens, edits in the {shape.position}")
            edits = plan_edits(text, number, shape, [cell.kind for cell in group])
            for cell, edit in zip(group, edits, strict=True):
                run_cell(ours, stock, cell, edit, f"{shape.num_context}-{shape.position}-{number}")
                if llama is not None:
                    run_llama(llama, cell, edit)


def _by_shape(cells: Sequence[Cell]) -> Iterator[tuple[Shape, list[Cell]]]:
    for shape in dict.fromkeys(cell.shape for cell in cells):
        yield shape, [cell for cell in cells if cell.shape == shape]


def run_cell(ours: EngineProcess, stock: EngineProcess, cell: Cell, edit: KindEdit, key: str) -> None:
    """One repetition of one cell."""
    cell.num_front, cell.num_behind, cell.num_new = edit.num_front, edit.num_behind, edit.num_new
    first_tokens: dict[str, Tokens] = {}
    for fidelity in (*MOVING, EXACT):
        asked = [
            Ask(tokens, f"{key} {fidelity}", f"{key} {fidelity} {edit.kind}", fidelity)
            for tokens in (*edit.turns, edit.prompt, edit.append)
        ]
        for ask in asked[:-2]:
            ours.ask(ask)
        first_tokens[fidelity] = _timed(ours, asked[-2], fidelity, cell).token_ids
        if fidelity == MOVING[0]:
            _timed(ours, asked[-1], APPEND, cell)
    for tokens in edit.turns:
        stock.ask(Ask(tokens, key))
    expected = _timed(stock, Ask(edit.prompt, key), STOCK, cell).token_ids
    if first_tokens[EXACT] != expected:
        cell.failures.append(f"exact gave token {first_tokens[EXACT]}, the stock engine {expected}")
    for fidelity in MOVING:
        cell.num_agreeing[fidelity] += first_tokens[fidelity] == expected
        cell.failures += check_reused(fidelity, cell)


def run_llama(llama: LlamaProcess, cell: Cell, edit: KindEdit) -> None:
    """The same turns in llama.cpp; what it kept (its shifted chunks are in that) and computed stands as a receipt."""
    for tokens in edit.turns:
        llama.ask(tokens)
    found = llama.ask(edit.prompt)
    cell.seconds[LLAMA_CPP].append(found.first_token_s)
    cell.receipts[LLAMA_CPP] = {"kept_tokens": found.num_kept, "computed_tokens": found.num_computed}


def _timed(engine: EngineProcess, ask: Ask, series: str, cell: Cell) -> EngineReply:
    reply = engine.ask(ask)
    cell.seconds[series].append(reply.first_token_s)
    if ask.session_id is not None:
        cell.failures += check_receipt(series, ask, reply.receipt)
        cell.receipts[series] = reply.receipt or {}
    return reply


def check_receipt(series: str, ask: Ask, receipt: dict[str, Any] | None) -> list[str]:
    """Why a receipt does not fit its request."""
    if receipt is None:
        return [f"{series}: no receipt came back"]
    counts = [receipt[name] for name in ("kept_tokens", "moved_tokens", "computed_tokens")]
    failures = []
    if sum(counts) != len(ask.token_ids):
        failures.append(f"{series}: kept, moved, computed {counts} do not sum to {len(ask.token_ids)}")
    if ask.fidelity == EXACT and counts[1]:
        failures.append(f"{series}: {counts[1]} tokens were moved under exact")
    return failures


def check_reused(fidelity: str, cell: Cell) -> list[str]:
    """A fast first token only counts when the text behind the edit really came along."""
    receipt = cell.receipts.get(fidelity)
    if not receipt:
        return []
    served = receipt["kept_tokens"] + receipt["moved_tokens"] + receipt.get("repaired_tokens", 0)
    reused = served - cell.num_front
    if reused >= MIN_REUSED_SHARE * cell.num_behind:
        return []
    reason = receipt["fallback_reason"]
    return [f"{fidelity}: reused {reused} of the {cell.num_behind} tokens behind the edit ({reason})"]


def as_report(cells: Sequence[Cell]) -> dict[str, Any]:
    """JSON-ready; a cell whose gate is red has no times and no ratios."""
    return {
        "gate": as_gate([f"{_name(cell)}: {failure}" for cell in cells for failure in cell.failures]),
        "series": [name for name in SERIES if any(name in cell.series for cell in cells)],
        "cells": [_row(cell) for cell in cells],
    }


def _row(cell: Cell) -> dict[str, Any]:
    shape, is_red = cell.shape, bool(cell.failures)
    told: dict[str, Any] = {
        "kind": cell.kind,
        "context_tokens": shape.num_context,
        "position": shape.position,
        "front_tokens": cell.num_front,
        "behind_tokens": cell.num_behind,
        "new_tokens": cell.num_new,
        "green": not is_red,
        "receipts": cell.receipts,
        "num_repetitions": len(cell.seconds[STOCK]),
        "first_token_agrees": cell.num_agreeing,
        "seconds_to_first_token": {} if is_red else {name: cell.seconds[name] for name in cell.series},
        "medians": {} if is_red else {name: cell.median(name) for name in cell.series},
        "ratios": {},
    }
    if not is_red:
        for fidelity in MOVING:
            told["ratios"][f"{fidelity} / append"] = cell.median(fidelity) / cell.median(APPEND)
            told["ratios"][f"stock / {fidelity}"] = cell.median(STOCK) / cell.median(fidelity)
    return told


def as_table(report: dict[str, Any]) -> list[str]:
    """Medians with their range for each cell, counts of the first fidelity that moves, and how a fold does."""
    first = MOVING[0]
    heads = report["series"]
    lines: list[str] = []
    for size, position in dict.fromkeys((row["context_tokens"], row["position"]) for row in report["cells"]):
        rows = [row for row in report["cells"] if (row["context_tokens"], row["position"]) == (size, position)]
        place = f"{size:,} tokens of context, edits in the {position}"
        lines += ["", f"{place}; milliseconds to the first token: median (range)"]
        lines.append(
            f"{'':<17}"
            + "".join(f"{head:>{_SERIES_WIDTH}}" for head in heads)
            + f"{'kept':>8}{'moved':>8}{'computed':>10}{'agrees':>9}"
        )
        for row in rows:
            receipt = row["receipts"].get(first) or {}
            counts = "".join(
                f"{receipt.get(f'{name}_tokens', 0):>{width},}"
                for name, width in (("kept", 8), ("moved", 8), ("computed", 10))
            )
            times = "".join(f"{_times(row, head):>{_SERIES_WIDTH}}" for head in heads)
            agrees = f"{row['first_token_agrees'][first]} of {row['num_repetitions']}"
            lines.append(f"{row['kind']:<17}{times}{counts}{agrees:>9}")
        lines += [line for row in rows for line in _llama_line(row)]
    lines.append("")
    if report["gate"]["failures"]:
        lines += ["GATE RED for:", *(f"  {failure}" for failure in report["gate"]["failures"])]
    else:
        lines += [
            "gate green: exact moved nothing and gives the stock engine's first token, receipts add up, and the text",
            "behind each edit was kept or moved. agrees: the first token under reuse equals exact's",
        ]
    return [*lines, *(line for row in report["cells"] for line in _verdict(row))]


def _llama_line(row: dict[str, Any]) -> Iterator[str]:
    """What llama.cpp did with an edit, beside what it could have kept."""
    told = row["receipts"].get(LLAMA_CPP)
    if told is not None:
        old = f"{row['behind_tokens']:,} old tokens behind the edit"
        yield f"llama.cpp, {row['kind']}: kept {told['kept_tokens']:,}, computed {told['computed_tokens']:,} ({old})"


def _times(row: dict[str, Any], series: str) -> str:
    seconds = row["seconds_to_first_token"].get(series)
    if not seconds:
        return "-"
    return f"{1e3 * statistics.median(seconds):.0f} ({1e3 * min(seconds):.0f}-{1e3 * max(seconds):.0f})"


def _verdict(row: dict[str, Any]) -> Iterator[str]:
    """How a fold does; the targets are those of the first fidelity that moves."""
    if row["kind"] != "fold" or not row["green"]:
        return
    for fidelity in MOVING:
        appends, faster = row["ratios"][f"{fidelity} / append"], row["ratios"][f"stock / {fidelity}"]
        few, fast = "", ""
        if fidelity == MOVING[0]:
            few = f" (target {MOST_APPENDS:g}: {'met' if appends <= MOST_APPENDS else 'missed'})"
            fast = f" (target {LEAST_SPEEDUP:g}: {'met' if faster >= LEAST_SPEEDUP else 'missed'})"
        yield (
            f"fold at {row['context_tokens']:,}, {row['position']}: {fidelity} takes {appends:.2f} appends{few}, "
            f"{faster:.1f} times faster than stock{fast}"
        )


def _name(cell: Cell) -> str:
    return f"{cell.kind}, {cell.shape.num_context:,} tokens, {cell.shape.position}"
