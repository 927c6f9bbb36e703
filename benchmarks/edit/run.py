"""Measures kinds of edit: one cell is a kind. In each repetition its series follow each other closely:

    reuse    the turns before the edit, untimed. Then the edit, timed
    append   right behind it, a plain append of as many new tokens in the same session: the floor
             these two follow each other in every round, on markers and messages of its own
    repair   the same turns and the edit under `repair`: the head of each moved piece is computed
    auto     the same under `auto`, which may compute what it does not dare to move
    exact    the same under `exact`
    stock    the same edit in an engine without acmserve, its prefix caching on
    defaults the same in one that nobody tuned: vLLM's own precision, and compiled
    ...@defaults  the first five with acmserve in an engine that nobody tuned either
    llamacpp the same turns and edit in llama.cpp's server at its best, where there is one
    llamacpp@defaults  the same at llama.cpp's own defaults

Each of ours has markers and messages of its own, so that none finds in the cache what another one computed. What all
have read before the edit is the same, so an engine computes it once in a repetition. A deletion has no marker, so there
each fidelity has a cache salt of its own. A stock engine reads what the edited prompt begins with, for it finds nothing
else. Which engine goes first is drawn for each repetition and kind,
and so is the order of the fidelities in it.

The gate of a cell has three parts. `exact` moved nothing and answers as the stock engine does (`gate.py`). Receipts sum
to their prompts. What moves KV kept or moved nine tenths of the text behind the edit, and what `repair` computes of
that text counts, too. A red cell tells no times, the others do. llama.cpp computes in the precision of its GGUF, and
vLLM at its defaults in bfloat16. Their first tokens are compared with nobody's. In bfloat16 a prompt that is computed
in other pieces may give another token, so `exact@defaults` has no gate of answers: they are told. Its receipts have
one.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from acmserve.bench.edit.gate import check_control, num_common, why_not_reused
from acmserve.bench.edit.kinds import UNMARKED, EditSizes, KindEdit, Tokens
from acmserve.bench.edit.times import APPEND, AT_DEFAULTS, AUTO, DEFAULTS, EXACT, REUSE, STOCK, CellTimes
from acmserve.bench.harness.engine import Ask
from acmserve.bench.harness.engine_process import EngineProcess
from acmserve.bench.harness.llama_cpp import BEST, OWN_DEFAULTS, LlamaProcess
from acmserve.bench.harness.options import as_gate
from acmserve.bench.provenance.drawn_order import draw_order

REPAIR = "repair"
LLAMA_WAYS = (BEST, OWN_DEFAULTS)
MOVING = (REUSE, REPAIR)
OURS = (*MOVING, APPEND, AUTO, EXACT)
SERIES = (*OURS, STOCK, DEFAULTS, *(series + AT_DEFAULTS for series in OURS), *(way.name for way in LLAMA_WAYS))
NUM_REUSED = 3
ROUNDS_OF = {REUSE: range(NUM_REUSED), REPAIR: [NUM_REUSED], AUTO: [NUM_REUSED + 1], EXACT: [NUM_REUSED + 2]}
"""Which rounds of a repetition are whose. Those of others answer the edit of `exact`."""
NUM_ROUNDS = NUM_REUSED + 3
RESTORED = "restore"
"""The kind whose moved KV is that of the text as it was read first. It is no control."""


@dataclass
class Cell(CellTimes):
    """One kind of edit, and what was measured of it."""

    kind: str
    num_new: int = 0


@dataclass(frozen=True, slots=True)
class EditEngines:
    """Who is asked: ours and stock, each at the same flags and at vLLM's own, and llama.cpp's where there are some."""

    ours: EngineProcess
    stock: EngineProcess
    ours_at_defaults: EngineProcess
    defaults: EngineProcess
    llamas: Sequence[LlamaProcess] = ()


def run_cell(engines: EditEngines, cell: Cell, rounds: Sequence[KindEdit], key: str) -> None:
    """One repetition of one cell, out of `NUM_ROUNDS` rounds."""
    edit = rounds[ROUNDS_OF[EXACT][0]]
    cell.num_front, cell.num_behind, cell.num_new = edit.num_front, edit.num_behind, edit.num_new
    steps: dict[str, Callable[[], Tokens]] = {
        EXACT: partial(_ask_ours, engines.ours, cell, rounds, key, ""),
        STOCK: partial(_ask_stock, engines.stock, cell, edit, STOCK, key),
        EXACT + AT_DEFAULTS: partial(_ask_ours, engines.ours_at_defaults, cell, rounds, key, AT_DEFAULTS),
        DEFAULTS: partial(_ask_stock, engines.defaults, cell, edit, DEFAULTS, key),
        **{llama.way.name: partial(_ask_llama, llama, cell, edit) for llama in engines.llamas},
    }
    firsts = {name: steps[name]() for name in draw_order(tuple(steps), f"{key} {cell.kind}")}
    if firsts[EXACT] != firsts[STOCK]:
        cell.failures.append(f"exact gave token {firsts[EXACT]}, the stock engine {firsts[STOCK]}")


def compare_cell(engines: EditEngines, cell: Cell, rounds: Sequence[KindEdit], key: str) -> None:
    """Longer answers to what `run_cell` asked, for the gate."""
    asks = {
        fidelity: _ask(rounds[number].prompt, key, number, fidelity, cell.kind)
        for fidelity in (EXACT, REUSE)
        for number in ROUNDS_OF[fidelity][:1]
    }
    cell.compare(engines.ours, asks, engines.stock, key)
    cell.compare(engines.ours_at_defaults, asks, engines.defaults, key, AT_DEFAULTS)


def _ask_ours(ours: EngineProcess, cell: Cell, rounds: Sequence[KindEdit], key: str, end: str) -> Tokens:
    """Each fidelity on its own rounds. The first token after the edit under `exact`."""
    firsts: dict[str, Tokens] = {}
    for fidelity in draw_order((REUSE, REPAIR, AUTO, EXACT), f"{key} {cell.kind}{end}"):
        for number in ROUNDS_OF[fidelity]:
            edit = rounds[number]
            turns = (*edit.turns, edit.prompt, edit.append)
            asked = [_ask(tokens, key, number, fidelity, cell.kind) for tokens in turns]
            firsts[fidelity] = _ask_edit(ours, cell, asked, end)
    return firsts[EXACT]


def _ask(tokens: Tokens, key: str, number: int, fidelity: str, kind: str) -> Ask:
    """A turn of the session of one round."""
    salt = f"{key} {fidelity}" if kind == UNMARKED else key
    return Ask(tokens, salt, f"{key} {number} {fidelity} {kind}", fidelity)


def _ask_edit(ours: EngineProcess, cell: Cell, asked: Sequence[Ask], end: str) -> Tokens:
    """The turns, the edit, and under `reuse` an append. The first token after the edit. `end` ends a series' name."""
    fidelity = asked[-1].fidelity
    for ask in asked[:-2]:
        ours.ask(ask)
    first = cell.ask(ours, asked[-2], fidelity + end).token_ids
    if fidelity in MOVING:
        cell.failures += check_reused(fidelity + end, cell)
    if fidelity == REUSE:
        cell.ask(ours, asked[-1], APPEND + end)
    return first


def _ask_stock(engine: EngineProcess, cell: Cell, edit: KindEdit, series: str, key: str) -> Tokens:
    """What the turns have in common with the edit, and the edit, without a session. The first token after it."""
    for tokens in edit.turns:
        engine.ask(Ask(tokens[: num_common(tokens, edit.prompt)], key))
    return cell.ask(engine, Ask(edit.prompt, key), series).token_ids


def _ask_llama(llama: LlamaProcess, cell: Cell, edit: KindEdit) -> Tokens:
    """The same turns in llama.cpp. What it kept (its shifted chunks are in that) and computed stands as a receipt."""
    for tokens in edit.turns:
        llama.ask(tokens)
    found = llama.ask(edit.prompt)
    cell.seconds[llama.way.name].append(found.first_token_s)
    cell.keep_receipt(llama.way.name, {"kept_tokens": found.num_kept, "computed_tokens": found.num_computed})
    return found.token_ids


def check_reused(series: str, cell: Cell) -> list[str]:
    """A fast first token only counts when the text behind the edit really came along."""
    receipt = cell.receipts.get(series)
    failures = why_not_reused(receipt, cell.num_front, cell.num_behind) if receipt else []
    return [f"{series}: {failure}" for failure in failures]


def as_report(cells: Sequence[Cell], sizes: EditSizes) -> dict[str, Any]:
    """JSON-ready. A cell whose gate is red has no times. Neither has any where the gate would let moved KV pass."""
    blind = check_control([cell.answers[REUSE] for cell in cells if cell.answers and cell.kind != RESTORED])
    return {
        "sizes": {name: getattr(sizes, name) for name in ("prefix", "folded", "suffix", "marker", "new")},
        "gate": as_gate([*(f"{cell.kind}: {failure}" for cell in cells for failure in cell.failures), *blind]),
        "cells": [_row(cell, sizes, is_red=bool(cell.failures or blind)) for cell in cells],
    }


def _row(cell: Cell, sizes: EditSizes, *, is_red: bool) -> dict[str, Any]:
    seconds = {} if is_red else {name: cell.seconds[name] for name in SERIES if cell.seconds.get(name)}
    return {
        "kind": cell.kind,
        "context_tokens": sizes.context,
        "front_tokens": cell.num_front,
        "behind_tokens": cell.num_behind,
        "new_tokens": cell.num_new,
        "green": not is_red,
        **cell.receipt_fields(),
        "num_repetitions": len(cell.seconds[STOCK]),
        "answers": {name: found.as_dict() for name, found in cell.answers.items()},
        "seconds_to_first_token": seconds,
        "medians": {name: statistics.median(times) for name, times in seconds.items()},
    }
