"""The report of `bench tasks` as people read it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from acmserve.bench.harness.options import red_gate
from acmserve.bench.tasks.auto import MAX_LOSS, MIN_MOVED_SHARE
from acmserve.bench.tasks.floor import FLOOR
from acmserve.bench.tasks.summary import ALL

_SHARES = (("score", 9), ("misled", 9), ("moved_share", 8))


def as_table(report: Mapping[str, Any]) -> list[str]:
    """Nothing but the reasons when the gate is red."""
    if red := red_gate(report):
        return red
    lines = [f"{report['model']}, {report['num_cases']} cases, digest {report['digest']}"]
    if report["refusal"]:
        lines.append(f"the engine moves no KV of this model ({report['refusal']}), so every way is exact")
    out = ", ".join(f"{size} ({_percent(right)})" for size, right in report["at_floor"].items())
    lines.append(f"sizes that exact answers less than {_percent(FLOOR)} of, and that are out: {out or 'none'}")
    titles = {variant["name"]: variant["title"] for variant in report["variants"]}
    for task in dict.fromkeys(row["task"] for row in report["summary"]):
        rows = [row for row in report["summary"] if row["task"] == task]
        lines += ["", *_task(task, rows, titles)]
    lines += [
        "",
        "right: the right one of the candidates is the most likely; vs exact: difference, case by case; score: of the",
        "generated answer, by the task's own rule; misled: a stale or hidden value was chosen; moved: part of the",
        "tokens behind the fold whose KV was moved; where moved: vs exact, over the cases in which anything was, and",
        "their number. In brackets 95 % intervals over cases.",
    ]
    if report["auto"] is not None:
        lines += ["", *_auto(report["auto"])]
    return [*lines, "", "gate green: receipts add up, exact moved nothing, reuse moved what it could"]


def _task(task: str, rows: Sequence[Mapping[str, Any]], titles: Mapping[str, str]) -> list[str]:
    title = "all tasks, each alike" if task == ALL else task
    head = f"{title} ({rows[0]['num_cases']} cases, {rows[0]['num_questions']} questions)"
    lines = [f"{head:<38}{'right':>16}{'vs exact':>20}{'score':>9}{'misled':>9}{'moved':>8}{'where moved':>26}"]
    for row in rows:
        right = f"{_percent(row['right'])} {_between(row['right_interval'])}"
        beside = f"{_points(row['right_beside_exact'])} {_between(row['right_beside_exact_interval'])}"
        shares = "".join(f"{_percent(row[key]):>{width}}" for key, width in _SHARES)
        lines.append(f"  {titles[row['variant']]:<34}{right:>18}{beside:>20}{shares}{_where_moved(row):>26}")
    return lines


def _where_moved(row: Mapping[str, Any]) -> str:
    if (difference := row["where_moved_beside_exact"]) is None:
        return ""
    told = f"{_points(difference)} {_between(row['where_moved_beside_exact_interval'])}"
    return f"{told} ({row['num_moved_cases']})"


def _auto(auto: Mapping[str, Any]) -> list[str]:
    lines = [f"auto as it is: {_traded(auto['product'])}"]
    for half, traded in auto.get("product_by_half", {}).items():
        lines.append(f"  on the {half} half: {_traded(traded)}")
    if auto["chosen"] is None:
        return [*lines, "thresholds are not tried: one half of the seeds is missing"]
    chosen = auto["chosen"]
    thresholds = ", ".join(f"{name} {value:g}" for name, value in chosen["thresholds"].items())
    held_out = chosen["held_out"]
    met = held_out["is_good"] and held_out["moved_share"] >= MIN_MOVED_SHARE
    target = f"each task within {100 * MAX_LOSS:.0f} points, {100 * MIN_MOVED_SHARE:.0f} % moved"
    return [
        *lines,
        f"thresholds chosen on the fit half: {thresholds}",
        f"  there: {_traded(chosen['fit'])}",
        f"  on the held-out half: {_traded(held_out)}",
        f"target ({target}) on the held-out half: {'met' if met else 'missed'}",
    ]


def _traded(traded: Mapping[str, Any]) -> str:
    return (
        f"{_percent(traded['moved_share'])} moved, {_points(-traded['loss'])} points beside exact, worst "
        f"{_points(-traded['worst_loss'])} ({traded['worst_task']}); of {traded['num_harmful']} cases that reuse harms "
        f"{traded['num_missed']} missed, {traded['num_needless']} of {traded['num_cases'] - traded['num_harmful']} "
        "others computed needlessly"
    )


def _percent(share: float) -> str:
    return f"{100 * share:.0f} %"


def _points(difference: float) -> str:
    return f"{100 * difference + 0.0:+.1f}"


def _between(interval: Sequence[float] | None) -> str:
    return "" if interval is None else f"[{100 * interval[0]:.0f}, {100 * interval[1]:.0f}]"
