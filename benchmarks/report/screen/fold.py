"""The first number of the first screen: the turn after a fold, on each kind of processor that it was recorded on.

    edit-cpu        a processor without matrix units
    edit-cpu-amx    one with them, where stock prefills several times faster. It is told once it was recorded

The bar is met where each recorded kind meets it, and names these kinds. Whether others meet it is not known.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from acmserve.bench.agent.result_table import Report
from acmserve.bench.edit.table import at_defaults, cell_of, times_sooner, times_sooner_at_worst
from acmserve.bench.edit.times import APPEND, AUTO, DEFAULTS, EXACT, REUSE, STOCK
from acmserve.bench.harness.machine import cpu_of
from acmserve.bench.harness.markdown_text import ratio, seconds
from acmserve.bench.report.page_section import Reports
from acmserve.bench.report.sections import loads
from acmserve.bench.report.sections.edits import KINDS_OF_PROCESSORS, WITH_AMX
from acmserve.bench.report.sections.missed import MOST_APPENDS_AT_FOLD

LEAST_SOONER = 20


def least_reached(reports: Reports) -> float:
    """The share of the bar that is reached, by the worse of its two halves on the worst processor."""
    return min(_reached(report) for report in _recorded(reports).values())


def told(reports: Reports) -> str:
    """What was measured. Of several kinds of processors each is named."""
    found = _recorded(reports)
    if len(found) == 1:
        return _fold(*found.values())
    return ". ".join(f"On {cpu_of(report['machine'])} {_fold(report)}" for report in found.values())


def beside(reports: Reports) -> str:
    """Other ways, and stock, in seconds. Of several kinds of processors at vLLM's defaults alone: a cell is small."""
    found = _recorded(reports)
    if len(found) > 1:
        ways = {KINDS_OF_PROCESSORS[name]: _ways(report, at_defaults) for name, report in found.items()}
        return ". ".join(f"{kind[0].upper()}{kind[1:]}: {one}" for kind, one in ways.items())
    (report,) = found.values()
    reuse = seconds(_medians(report)[REUSE], 2)
    return f"{_ways(report, at_defaults)}. In float32 and eager `reuse` {reuse}, {_ways(report, str)}"


def bar_told(reports: Reports) -> str:
    """At the one length that was timed, and on which kinds of processors."""
    found = _recorded(reports)
    (length,) = {cell_of(report, "fold")["context_tokens"] for report in found.values()}
    kinds = " and ".join(KINDS_OF_PROCESSORS[name] for name in found)
    return f"{MOST_APPENDS_AT_FOLD} appends, {LEAST_SOONER} times sooner, at {length:,} tokens, {kinds}"


def missed(reports: Reports) -> str:
    """On which kinds of processors it is missed, and why there."""
    kinds = [KINDS_OF_PROCESSORS[name] for name, report in _recorded(reports).items() if _reached(report) < 1]
    why = ", where stock prefills several times faster" if kinds == [KINDS_OF_PROCESSORS[WITH_AMX]] else ""
    return f"missed on a processor {' and on one '.join(kinds)}{why}."


def _recorded(reports: Reports) -> dict[str, Report]:
    return {name: reports[name] for name in KINDS_OF_PROCESSORS if name in reports}


def _over_append(report: Report) -> float:
    return 1 / times_sooner(report, at_defaults(REUSE), at_defaults(APPEND))


def _sooner(report: Report) -> float:
    """Like with like, both at vLLM's own defaults. By the 90th percentile of each side's repetitions."""
    return times_sooner_at_worst(report, at_defaults(REUSE), DEFAULTS)


def _reached(report: Report) -> float:
    return min(MOST_APPENDS_AT_FOLD / _over_append(report), _sooner(report) / LEAST_SOONER)


def _fold(report: Report) -> str:
    return (
        f"{seconds(_medians(report)[at_defaults(REUSE)], 2)}, {ratio(_over_append(report))} plain appends, "
        f"{_sooner(report):.1f} times sooner than stock by p90{loads.rests_on(report)}"
    )


def _ways(report: Report, name_of: Callable[[str], str]) -> str:
    ways = ((EXACT, "`exact`"), (AUTO, "`auto`"), (STOCK, "stock vLLM"))
    return ", ".join(f"{name} {seconds(_medians(report)[name_of(series)])}" for series, name in ways)


def _medians(report: Report) -> Mapping[str, float]:
    medians: Mapping[str, float] = cell_of(report, "fold")["medians"]
    return medians
