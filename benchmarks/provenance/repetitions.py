"""How often a timed result was repeated, and whether other work was noted meanwhile: what its page says where it lacks.

Benchmarks keep the number beside their rows, in cells or in stages. Rounds count where no repetitions are told, and the
recorded command where neither is. A file from before any was recorded is told as that, and is not refused. Neither are
committed files of earlier runs that have fewer, each by its name.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

from acmserve.bench.provenance.measured import LEAST_REPETITIONS

_NAMES = (("repetitions", "num_repetitions"), ("rounds", "num_rounds"))
OLDER_WITH_FEWER = {"edit-kinds": 2, "gpu": 3, "trace": 1}
"""Committed files of earlier runs, and how many repetitions each has. Their sections say so, and no new file may."""
_ASKED = re.compile(r"--repetitions[ =](\d+)\b")


def find_repetitions(report: Mapping[str, Any]) -> list[int]:
    """Every number of repetitions in a report, the least one first. [] where it tells none."""
    for names in _NAMES:
        if found := sorted(
            {part[name] for part in objects_in(report) for name in names if type(part.get(name)) is int}
        ):
            return found
    asked = _ASKED.search((report.get("machine") or {}).get("command") or "")
    return [int(asked[1])] if asked else []


def too_few_line(report: Mapping[str, Any], least: int = LEAST_REPETITIONS) -> str:
    """Why times of this report are no result, wherever it keeps the number. "" where it has enough or tells none."""
    found = find_repetitions(report)
    return f"its {found[0]} repetitions are too few, times need {least}" if found and found[0] < least else ""


def few_told(*reports: Mapping[str, Any]) -> str:
    """`1 repetition`, for what a figure of timed results rests on. "" where none is known to have too few."""
    least = min((one for report in reports for one in find_repetitions(report)), default=LEAST_REPETITIONS)
    return "" if least >= LEAST_REPETITIONS else f"{least} repetition{'s' * (least != 1)}"


def shortfall_line(report: Mapping[str, Any]) -> str:
    """A line for people where a timed result has few repetitions, or does not tell these or its machine's other work.

    "" where nothing is lacking.
    """
    found = find_repetitions(report)
    is_noted = (report.get("use") or {}).get("other_share") is not None
    if is_noted and found and found[0] >= LEAST_REPETITIONS:
        return ""
    times = " to ".join(str(num) for num in dict.fromkeys((found[0], found[-1]))) if found else ""
    told = f"{times} repetition{'s' * (times != '1')}." if found else "Repetitions were not recorded."
    return told if is_noted else f"{told} Other work on the machine was not recorded."


def objects_in(report: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    """All objects of a report, itself included, in no order."""
    waiting: list[Any] = [report]
    while waiting:
        part = waiting.pop()
        if isinstance(part, Mapping):
            yield part
            waiting += part.values()
        elif isinstance(part, list):
            waiting += part
