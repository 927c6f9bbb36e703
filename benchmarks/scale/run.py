"""Measures one cell of `bench scale`. In each repetition its series follow each other closely:

    reuse    the context, untimed, then the edit, timed. Every round with tokens of its own
    append   right behind each of them, a plain append of as many new tokens in the same session: the floor
    auto     the edit under `auto`, in a session that has read the same context, with tokens of its own
    exact    the edit under `exact`, in a session that has read the same context
    stock    the text in front of the edit, untimed, then the edited prompt, in an engine without acmserve
    defaults the same in one that nobody tuned: vLLM's own precision, and compiled
    ...@defaults  the first three with acmserve in an engine that nobody tuned either

A stock engine finds nothing behind an edit, so it does not have to read what stands there. The order of what follows
the appends is drawn anew in each repetition.

The gate of a cell is that of `bench edit`. Receipts add up, and `reuse` kept or moved nine tenths of the text behind
the edit. `exact` answers as stock does, with 32 tokens and their log-probabilities. A cell without the engines in
float32 has no such answers, and its receipts alone are judged. Where only tokens are counted, the model has one layer.
There KV knows nothing but its token and position, so moved KV has to answer as stock does, too.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from acmserve.bench.agent.estimates import bootstrap_interval, nearest_rank
from acmserve.bench.edit.gate import check_control, why_not_reused
from acmserve.bench.edit.kinds import KindEdit
from acmserve.bench.edit.times import APPEND, AT_DEFAULTS, AUTO, DEFAULTS, EXACT, REUSE, STOCK, CellTimes
from acmserve.bench.harness.engine import Ask
from acmserve.bench.harness.engine_process import EngineProcess
from acmserve.bench.harness.options import as_gate
from acmserve.bench.provenance.drawn_order import draw_order
from acmserve.bench.scale.cells import ScaleCell

_MOVING = (REUSE, APPEND, AUTO)
SERIES = (*_MOVING, EXACT, STOCK, *(series + AT_DEFAULTS for series in _MOVING), DEFAULTS)


@dataclass(frozen=True, slots=True)
class ScaleEngines:
    """Who is asked: ours and stock at the same flags, and both at vLLM's own. None is not asked."""

    ours: EngineProcess | None
    stock: EngineProcess | None
    defaults: EngineProcess | None = None
    ours_at_defaults: EngineProcess | None = None


@dataclass
class ScaleTimes(CellTimes):
    """One cell, and what was measured of it in how many repetitions that were whole."""

    cell: ScaleCell
    num_repetitions: int = 0


def run_repetition(
    engines: ScaleEngines,
    times: ScaleTimes,
    rounds: Sequence[KindEdit],
    key: str,
    *,
    auto: KindEdit | None = None,
    salt: str = "",
    is_slow_timed: bool = True,
) -> None:
    """All series of one cell, once. What is read under one `salt` is computed once, the default is the `key`.

    Without `auto`, an edit of its own, it has no series. Not `is_slow_timed`: what computes everything is asked where
    the gate needs its answers, and has no times.
    """
    edit, salt = rounds[0], salt or key
    times.num_front, times.num_behind = edit.num_front, edit.num_behind
    needs_answers = not times.answers and engines.ours is not None and engines.stock is not None
    if engines.ours is not None:
        engines.ours.ask(Ask(edit.turns[0], salt, f"{key} {EXACT}", EXACT))
    for end, ours in (("", engines.ours), (AT_DEFAULTS, engines.ours_at_defaults)):
        if ours is not None:
            for number, one in enumerate(rounds):
                _reuse_and_append(ours, times, one, salt, f"{key} {number}", end)
    steps = _computing_steps(engines, times, edit, key, salt, is_slow_timed, needs_answers)
    if auto is not None:
        steps |= _auto_steps(engines, times, auto, key, salt)
    for name in draw_order(tuple(steps), key):
        steps[name]()
    if needs_answers:
        assert engines.ours is not None
        assert engines.stock is not None
        sessions = {EXACT: f"{key} {EXACT}", REUSE: f"{key} 0"}
        asks = {fidelity: Ask(edit.prompt, salt, session, fidelity) for fidelity, session in sessions.items()}
        times.compare(engines.ours, asks, engines.stock, salt)


def _computing_steps(
    engines: ScaleEngines,
    times: ScaleTimes,
    edit: KindEdit,
    key: str,
    salt: str,
    is_timed: bool,
    needs_answers: bool,
) -> dict[str, Callable[[], object]]:
    """What computes everything behind an edit: with times, or for the gate alone."""
    steps: dict[str, Callable[[], object]] = {}
    if engines.ours is not None and (is_timed or needs_answers):
        ask = Ask(edit.prompt, salt, f"{key} {EXACT}", EXACT)
        steps[EXACT] = partial(times.ask, engines.ours, ask, EXACT, is_timed=is_timed)
    if engines.stock is not None and (is_timed or needs_answers):
        steps[STOCK] = partial(_ask_stock, engines.stock, times, edit, salt, STOCK, is_timed)
    if engines.defaults is not None and is_timed:
        steps[DEFAULTS] = partial(_ask_stock, engines.defaults, times, edit, salt, DEFAULTS, is_timed)
    return steps


def _auto_steps(
    engines: ScaleEngines, times: ScaleTimes, edit: KindEdit, key: str, salt: str
) -> dict[str, Callable[[], object]]:
    return {
        AUTO + end: partial(_ask_auto, ours, times, edit, salt, f"{key} {AUTO}", AUTO + end)
        for end, ours in (("", engines.ours), (AT_DEFAULTS, engines.ours_at_defaults))
        if ours is not None
    }


def _reuse_and_append(
    ours: EngineProcess, times: ScaleTimes, edit: KindEdit, salt: str, session: str, end: str
) -> None:
    read, edited, append = (Ask(tokens, salt, session, REUSE) for tokens in (edit.turns[0], edit.prompt, edit.append))
    ours.ask(read)
    receipt = times.ask(ours, edited, REUSE + end).receipt
    found = why_not_reused(receipt, edit.num_front, edit.num_behind) if receipt else []
    times.failures += [f"{REUSE}{end}: {failure}" if end else failure for failure in found]
    times.ask(ours, append, APPEND + end)


def _ask_auto(ours: EngineProcess, times: ScaleTimes, edit: KindEdit, salt: str, session: str, series: str) -> None:
    ours.ask(Ask(edit.turns[0], salt, session, AUTO))
    times.ask(ours, Ask(edit.prompt, salt, session, AUTO), series)


def _ask_stock(stock: EngineProcess, times: ScaleTimes, edit: KindEdit, salt: str, series: str, is_timed: bool) -> None:
    stock.ask(Ask(edit.prompt[: edit.num_front], salt))
    times.ask(stock, Ask(edit.prompt, salt), series, is_timed=is_timed)


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
        row = {
            "seconds_to_first_token": seconds,
            "medians": {name: statistics.median(found) for name, found in seconds.items()},
            **({"num_repetitions": times.num_repetitions} if times.num_repetitions else {}),
            **(_over_appends(seconds, "") if REUSE in seconds else {}),
            **({DEFAULTS: _over_appends(seconds, AT_DEFAULTS)} if REUSE + AT_DEFAULTS in seconds else {}),
        }
    return {
        "context_tokens": cell.context_tokens,
        "front_share": cell.front_share,
        "num_holes": cell.num_holes,
        "front_tokens": times.num_front,
        "behind_tokens": times.num_behind,
        "new_tokens": cell.num_new,
        **times.receipt_fields(),
        "answers": {name: found.as_dict() for name, found in times.answers.items()},
        **row,
    }


def _over_appends(seconds: Mapping[str, Sequence[float]], end: str) -> dict[str, Any]:
    """How many appends an edit takes, each beside the one behind it."""
    ratios = [edit / append for edit, append in zip(seconds[REUSE + end], seconds[APPEND + end], strict=True)]
    return {
        "p90": {name: nearest_rank(sorted(seconds[name + end]), 0.9) for name in (REUSE, APPEND)},
        "appends": statistics.median(ratios),
        "appends_interval": bootstrap_interval(ratios, statistics.median),
    }
