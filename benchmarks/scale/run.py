"""Measures one cell of `bench scale`. In each repetition its series follow each other closely:

    reuse    the context, untimed, then the edit, timed. Every round with tokens of its own
    append   right behind each of them, a plain append of as many new tokens in the same session: the floor
    exact    the edit under `exact`, in a session that has read the same context
    stock    the text in front of the edit, untimed, then the edited prompt, in an engine without acmserve
    defaults the same in one that nobody tuned: vLLM's own precision, and compiled

A stock engine finds nothing behind an edit, so it does not have to read what stands there. The order of the last three
is drawn anew in each repetition.

The gate of a cell is that of `bench edit`: receipts add up, `reuse` kept or moved nine tenths of the text behind the
edit, and `exact` answers as stock does, with 32 tokens and their log-probabilities. Where only tokens are counted, the
model has one layer. There KV knows nothing but its token and position, so moved KV has to answer as stock does, too.
"""

from __future__ import annotations

import random
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from acmserve.bench.agent.estimates import bootstrap_interval, nearest_rank
from acmserve.bench.edit.gate import check_control, why_not_reused
from acmserve.bench.edit.kinds import KindEdit
from acmserve.bench.edit.times import APPEND, DEFAULTS, EXACT, REUSE, STOCK, CellTimes
from acmserve.bench.harness.engine import Ask
from acmserve.bench.harness.engine_process import EngineProcess
from acmserve.bench.harness.options import as_gate
from acmserve.bench.scale.cells import ScaleCell

SERIES = (REUSE, APPEND, EXACT, STOCK, DEFAULTS)


@dataclass(frozen=True, slots=True)
class ScaleEngines:
    """Who is asked. `defaults` is None where only tokens are counted."""

    ours: EngineProcess
    stock: EngineProcess
    defaults: EngineProcess | None


@dataclass
class ScaleTimes(CellTimes):
    """One cell, and what was measured of it."""

    cell: ScaleCell


def run_repetition(engines: ScaleEngines, times: ScaleTimes, rounds: Sequence[KindEdit], key: str) -> None:
    """All series of one cell, once."""
    edit = rounds[0]
    times.num_front, times.num_behind = edit.num_front, edit.num_behind
    engines.ours.ask(Ask(edit.turns[0], key, f"{key} {EXACT}", EXACT))
    for number, one in enumerate(rounds):
        _reuse_and_append(engines.ours, times, one, key, f"{key} {number}")
    slow = [EXACT, STOCK, *([DEFAULTS] if engines.defaults else [])]
    random.Random(key).shuffle(slow)
    for name in slow:
        engine = {EXACT: engines.ours, STOCK: engines.stock, DEFAULTS: engines.defaults}[name]
        assert engine is not None
        if name == EXACT:
            times.ask(engine, Ask(edit.prompt, key, f"{key} {EXACT}", EXACT), name)
        else:
            engine.ask(Ask(edit.prompt[: edit.num_front], key))
            times.ask(engine, Ask(edit.prompt, key), name)
    if not times.answers:
        sessions = {EXACT: f"{key} {EXACT}", REUSE: f"{key} 0"}
        asks = {fidelity: Ask(edit.prompt, key, session, fidelity) for fidelity, session in sessions.items()}
        times.compare(engines.ours, asks, engines.stock, key)


def _reuse_and_append(ours: EngineProcess, times: ScaleTimes, edit: KindEdit, key: str, session: str) -> None:
    read, edited, append = (Ask(tokens, key, session, REUSE) for tokens in (edit.turns[0], edit.prompt, edit.append))
    ours.ask(read)
    receipt = times.ask(ours, edited, REUSE).receipt
    times.failures += why_not_reused(receipt, edit.num_front, edit.num_behind) if receipt else []
    times.ask(ours, append, APPEND)


def as_report(measured: Sequence[ScaleTimes], *, is_timed: bool) -> dict[str, Any]:
    """JSON-ready. A red cell has no times, and none has any where the gate would let moved KV pass for exact."""
    for times in measured if not is_timed else ():
        if times.answers and not times.answers[REUSE].is_same:
            times.failures.append(f"moved KV of one layer answers otherwise than stock: {times.answers[REUSE]}")
    blind = check_control([times.answers[REUSE] for times in measured if times.answers]) if is_timed else []
    failures = [f"{times.cell}: {failure}" for times in measured for failure in times.failures]
    return {
        "gate": as_gate([*failures, *blind]),
        "cells": [_row(times, is_timed=is_timed and not times.failures and not blind) for times in measured],
    }


def _row(times: ScaleTimes, *, is_timed: bool) -> dict[str, Any]:
    cell, row = times.cell, {}
    if is_timed:
        seconds = {name: times.seconds[name] for name in SERIES if times.seconds.get(name)}
        ratios = [edit / append for edit, append in zip(seconds[REUSE], seconds[APPEND], strict=True)]
        row = {
            "seconds_to_first_token": seconds,
            "medians": {name: statistics.median(found) for name, found in seconds.items()},
            "p90": {name: nearest_rank(sorted(seconds[name]), 0.9) for name in (REUSE, APPEND)},
            "appends": statistics.median(ratios),
            "appends_interval": bootstrap_interval(ratios, statistics.median),
        }
    return {
        "context_tokens": cell.context_tokens,
        "front_share": cell.front_share,
        "num_holes": cell.num_holes,
        "front_tokens": times.num_front,
        "behind_tokens": times.num_behind,
        "new_tokens": cell.num_new,
        "receipts": times.receipts,
        "answers": {name: found.as_dict() for name, found in times.answers.items()},
        **row,
    }
