"""What the courses of `bench ahead` come to: turns behind an eviction, beside plain appends of about the same size."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from acmserve.bench.agent.pause import TOOL_SECONDS
from acmserve.bench.agent.scripted_agent import Trace
from acmserve.bench.budget.run import MAX_TOKENS
from acmserve.bench.harness.options import as_gate, red_gate
from acmserve.bench.models.witnessed_model import Agreement
from acmserve.bench.precompute.append_line import fit_appends
from acmserve.bench.precompute.run import BUDGET, CWL, EDITS, PREDICT, Course

_WIDTH = 16
_HEADS = (
    *(("evictions", 10), ("foreseen", 10), ("ready", 7), ("after an eviction", 20), ("append", 18)),
    *(("/ append", 14), ("new", 14), ("old", 14), ("used", 6)),
)
READY_TOKENS = 16
"""Tokens that a turn may compute beside its new ones and still have found all ready: the ends of messages."""


def as_report(
    model: str, policy: str, trace: Trace, done: Sequence[Course], agreed: Agreement | None, scale: float
) -> dict[str, Any]:
    """JSON-ready; no numbers where something failed."""
    failures = [failure for course in done for failure in course.failures]
    if agreed is not None and agreed.num_different > agreed.num_ties:
        failures.append(
            f"{PREDICT}: {agreed.num_different - agreed.num_ties} of {agreed.num_tokens} tokens are not stock's"
        )
    told = None
    if agreed is not None:
        told = {"num_tokens": agreed.num_tokens, "num_different": agreed.num_different, "num_ties": agreed.num_ties}
    return {
        "gate": as_gate(failures),
        "model": model,
        "policy": policy,
        "max_tokens": MAX_TOKENS,
        "rules": BUDGET if policy == CWL else {"edits": EDITS},
        "tool_seconds": [scale * seconds for seconds in TOOL_SECONDS],
        "trace": {"num_turns": trace.num_turns, "digest": trace.digest},
        "agreement_with_stock": told,
        "courses": [] if failures else [_row(course) for course in done],
    }


def _row(course: Course) -> dict[str, Any]:
    computed, used = course.precompute.get("precomputed_tokens", 0), course.precompute.get("precomputed_used_tokens", 0)
    turns: dict[str, Sequence[Any]] = {
        "seconds": [round(turn.seconds, 4) for turn in course.turns],
        "prompt_tokens": [turn.prompt for turn in course.turns],
        "computed_tokens": [turn.computed for turn in course.turns],
        "precomputed_tokens": [turn.receipt["precomputed_tokens"] for turn in course.turns],
        "evicted_tokens": [turn.evicted for turn in course.turns],
        "rests": [int(rest) for rest in course.rests],
    }
    told = {
        "name": course.name,
        "precompute": course.precompute,
        "precomputed_used_share": used / computed if computed else None,
    }
    return told | judge_turns(turns) | {"turns": turns}


def judge_turns(turns: Mapping[str, Sequence[Any]]) -> dict[str, Any]:
    """Turns behind an eviction, told apart from plain appends, and held against these. JSON in, JSON out.

    Appends are those behind a pause: a later step of a loop follows the one before at once.
    """
    seconds, evicted, computed = turns["seconds"], turns["evicted_tokens"], turns["computed_tokens"]
    numbers = range(1, len(seconds))
    new = [0, *(new_tokens(turns, n) for n in numbers)]
    edited = [n for n in numbers if evicted[n]]
    candidates = [n for n in edited if turns["precomputed_tokens"][n]]
    plain = [n for n in numbers if not evicted[n] and turns["rests"][n]]
    line = fit_appends([new[n] for n in plain], [seconds[n] for n in plain])
    return {
        "num_evictions": len(edited),
        "num_candidates": len(candidates),
        "num_ready": sum(computed[n] <= new[n] + READY_TOKENS for n in candidates),
        "eviction_seconds": _spread([seconds[n] for n in edited]),
        "plain_seconds": _spread([seconds[n] for n in plain]),
        "append_line": None if line is None else asdict(line),
        "eviction_over_append": None
        if line is None
        else _spread([seconds[n] / line.seconds(max(0, new[n])) for n in edited]),
        "eviction_new_tokens": _spread([new[n] for n in edited]),
        "eviction_old_tokens": _spread([max(0, computed[n] - new[n]) for n in edited]),
        "plain_new_tokens": _spread([new[n] for n in plain]),
    }


def new_tokens(turns: Mapping[str, Sequence[Any]], number: int) -> int:
    """Tokens that a turn's prompt has and the one before had not, notes of what was evicted among them."""
    prompts = turns["prompt_tokens"]
    num_new: int = prompts[number] - (prompts[number - 1] - turns["evicted_tokens"][number])
    return num_new


def _spread(values: Sequence[float]) -> dict[str, float] | None:
    """Median and 90th percentile, the nearest rank."""
    if not values:
        return None
    p90 = sorted(values)[math.ceil(0.9 * len(values)) - 1]
    return {"median": round(statistics.median(values), 4), "p90": round(p90, 4)}


def as_table(report: dict[str, Any]) -> list[str]:
    """What people read; nothing but the reasons where something failed."""
    if red := red_gate(report):
        return red
    low, high = report["tool_seconds"]
    lines = [
        f"{report['policy']}, {report['trace']['num_turns']} turns, {low:g} to {high:g} s between them. Median, p90:",
        "",
        " " * _WIDTH + "".join(f"{head:>{width}}" for head, width in _HEADS),
    ]
    lines += [_line(row) for row in report["courses"]]
    agreed = report["agreement_with_stock"]
    differing = (
        f"{agreed['num_different']} of {agreed['num_tokens']:,}, {agreed['num_ties']} of them too near to tell apart"
    )
    return [
        *lines,
        "",
        "Seconds to the first token. / append: over what a plain append of as many tokens takes (a line).",
        "ready: foreseen, and computed in time but for what the turn brings.",
        "new, old: tokens that the turn brings, and that it computes again. used: of the tokens computed ahead; a plan",
        "that is still kept at the end counts as unused.",
        f"Tokens that would have been others than the stock engine's: {differing}.",
    ]


def _line(row: dict[str, Any]) -> str:
    used = row["precomputed_used_share"]
    cells = [
        str(row["num_evictions"]),
        str(row["num_candidates"]),
        str(row["num_ready"]),
        _pair(row["eviction_seconds"], ".2f", " s"),
        _pair(row["plain_seconds"], ".2f", " s"),
        _pair(row["eviction_over_append"], ".2f", "x"),
        _pair(row["eviction_new_tokens"], ",.0f"),
        _pair(row["eviction_old_tokens"], ",.0f"),
        "-" if used is None else f"{used:.0%}",
    ]
    widths = (width for _, width in _HEADS)
    return f"{row['name']:<{_WIDTH}}" + "".join(f"{cell:>{width}}" for cell, width in zip(cells, widths, strict=True))


def _pair(spread: dict[str, float] | None, form: str, unit: str = "") -> str:
    return "-" if spread is None else f"{spread['median']:{form}}{unit}, {spread['p90']:{form}}{unit}"
