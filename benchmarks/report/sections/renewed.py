"""A recorded result with what today's statistics make of its records: a page shows that, and not what its file has.

    rounds, cases, sessions of a file --renewed--> its summary anew, in the place of the recorded one

Decision: no file of results is edited. Where the unit of an interval was wrong, its records are still right. A result
that a gate of today calls red is none.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from acmserve.bench.agent.result_table import Report
from acmserve.bench.harness.options import as_gate
from acmserve.bench.learner.gate import find_failures
from acmserve.bench.precompute.foreground import wave_ratio
from acmserve.bench.precompute.table import judge_report
from acmserve.bench.speculation.table import sum_up


def _judged_again(report: Report) -> dict[str, Any]:
    return judge_report(report["rounds"]) if report.get("rounds") else {}


def _compared_again(report: Report) -> dict[str, Any]:
    return {"wave_ratio": wave_ratio(report["modes"])} if report.get("modes") else {}


def _summed_again(report: Report) -> dict[str, Any]:
    return sum_up(report["cases"]) if report.get("cases") else {}


def _gated_again(report: Report) -> dict[str, Any]:
    return {"gate": as_gate(find_failures(report["rows"]))} if report.get("rows") else {}


_SUMMARIES: Mapping[str, Callable[[Report], dict[str, Any]]] = {
    "precompute-paired": _judged_again,
    "precompute-paired-clear": _judged_again,
    "precompute-paired-thoughts": _judged_again,
    "precompute-foreground": _compared_again,
    "learner": _gated_again,
    "speculation": _summed_again,
}


def renewed(name: str, report: Report) -> Report:
    """The report of a file of that name, without `.json`."""
    made = _SUMMARIES.get(name)
    return report if made is None else {**report, **made(report)}
