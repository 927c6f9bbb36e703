"""The report of `bench repairs` as people read it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from acmserve.bench.harness.options import red_gate
from acmserve.bench.repairs.cases import ROLES
from acmserve.bench.repairs.summary import ANY
from acmserve.bench.tasks.floor import FLOOR


def as_table(report: Mapping[str, Any]) -> list[str]:
    """Nothing but the reasons when the gate is red."""
    if red := red_gate(report):
        return red
    lines = [f"{report['model']}, {report['num_cases']} {report['seeds']} cases, rule {report['rule']}"]
    if report["refusal"]:
        lines.append(f"the engine moves no KV of this model ({report['refusal']}), so every way is exact")
    for what, key in (("sizes", "at_floor"), ("kinds of question", "kinds_at_floor")):
        out = ", ".join(f"{name} ({100 * right:.0f} %)" for name, right in report[key].items())
        lines.append(f"{what} that exact answers less than {100 * FLOOR:.0f} % of, and that are out: {out or 'none'}")
    for task in dict.fromkeys(row["task"] for row in report["summary"]):
        lines += ["", *_task(task, [row for row in report["summary"] if row["task"] == task])]
    lines += ["", *_harm(report["harm"]), *_control(report["control"])]
    lines += [
        "",
        "KL(exact || served) of the first token of the answer, in nats. In brackets 95 % intervals over cases.",
    ]
    return [*lines, "gate green: receipts add up, one cache for all questions of a way, the control is caught"]


def _task(task: str, rows: Sequence[Mapping[str, Any]]) -> list[str]:
    every = [row for row in rows if row["role"] == ANY]
    head = f"{task} ({every[0]['num_cases']} cases, {every[0]['num_questions']} questions)"
    lines = [
        f"{head:<44}{'moved':>7}{'KL':>23}" + "".join(f"{role:>12}" for role in ROLES) + f"{'right':>7}{'vs exact':>20}"
    ]
    for row in every:
        by_role = {other["role"]: other["kl"] for other in rows if other["way"] == row["way"]}
        kl = f"{row['kl']:.3f}{between(row['kl_interval'], 1, 3)}"
        beside = f"{100 * row['right_beside_exact']:+.1f}{between(row['right_beside_exact_interval'], 100, 1)}"
        cells = f"{_percent(row['moved_share']):>7}{kl:>23}" + "".join(f"{by_role[role]:>12.3f}" for role in ROLES)
        lines.append(f"  {row['way']:<42}{cells}{_percent(row['right']):>7}{beside:>20}")
    return lines


def _harm(harm: Mapping[str, Any]) -> list[str]:
    told = [
        f"{harm[f'num_{unit}s_harmed']} of {harm[f'num_{unit}s']} {unit}s (at most {harm[f'worst_{unit}_nats']:+.3f})"
        for unit in ("edit", "question")
    ]
    return [f"auto is worse than reuse by more than 0.1 nats in {' and in '.join(told)}"]


def _control(control: Mapping[str, Any]) -> list[str]:
    told = ", ".join(
        f"{name} {100 * control[name]:+.1f}{between(control[f'{name}_interval'], 100, 1)}"
        for name in ("asked", "later", "flattered")
    )
    return [f"the control beside reuse, in points: {told}"]


def _percent(share: float) -> str:
    return f"{100 * share:.0f} %"


def between(interval: Sequence[float] | None, times: float, digits: int) -> str:
    """An interval in brackets, or nothing where there is none."""
    return "" if interval is None else f" [{times * interval[0]:.{digits}f}, {times * interval[1]:.{digits}f}]"
