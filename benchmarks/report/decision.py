"""The first screen of the page of benchmarks: five numbers to decide by, each with its fidelity and its bar.

A bar is what the field claims or what the project set itself. What misses its bar says why, and what was never measured
stands below. It reads results, and knows no benchmark.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from acmserve.bench.agent.result_table import Report
from acmserve.bench.calibrate.choice import MAX_LOSS
from acmserve.bench.harness.markdown_text import MET, MISSED, NOT_MEASURED, points, strong, table
from acmserve.bench.micro.step_instructions import share_told
from acmserve.bench.repairs.recorded import recorded_row
from acmserve.bench.repairs.rule import has_rule_of_today
from acmserve.bench.repairs.summary import MIX
from acmserve.bench.report.ledger import LedgerRow, mark_of
from acmserve.bench.report.page_section import Reports
from acmserve.bench.report.screen import fold, waiting
from acmserve.bench.report.screen.never import never_measured
from acmserve.bench.report.sections import edits, loads
from acmserve.bench.report.sections.answers import REPAIRED, SEEDS, answers_by_rule
from acmserve.bench.report.sections.missed import BESIDE, DROPPED, PAIRED, beside_lines

_HEADS = ("", "fidelity", "number", "beside it", "bar")


@dataclass(frozen=True, slots=True)
class DecisionNumber:
    """`value` is held against the bar, None where what the bar asks for was not measured.

    `text` and `beside` are what people read. `why` stands where the bar is missed. `optional` files are read where they
    are there.
    """

    question: str
    fidelity: str
    files: Sequence[str]
    value: Callable[[Reports], float | None]
    text: Callable[[Reports], str]
    beside: Callable[[Reports], str]
    bar: str | Callable[[Reports], str]
    is_met: Callable[[float], bool]
    why: str | Callable[[Reports], str]
    optional: Sequence[str] = ()

    def verdict(self, reports: Reports) -> str:
        """One of three words."""
        value = self.value(reports)
        return NOT_MEASURED if value is None else MET if self.is_met(value) else MISSED

    def bar_told(self, reports: Reports) -> str:
        """The bar, with what it was held against where a result tells that."""
        return self.bar if isinstance(self.bar, str) else self.bar(reports)

    def reason(self, reports: Reports) -> str:
        """Why it is missed."""
        return self.why if isinstance(self.why, str) else self.why(reports)

    def files_of(self, reports: Reports) -> list[str]:
        """What it was made of."""
        return [*self.files, *(name for name in self.optional if name in reports)]


def _mix(reports: Reports, way: str) -> Report:
    return recorded_row(reports["repairs"], MIX, way)


def _lost(reports: Reports) -> str:
    """Of echoes alone first. Right answers can be lost and wrong ones won, both where something moved."""
    reuse = _mix(reports, "reuse")
    told = f"`reuse` {points(reuse['right_beside_exact'], reuse['right_beside_exact_interval'])}"
    rules = {REPAIRED[alone]: found for alone, found in answers_by_rule(reports[name] for name in SEEDS).items()}
    moved = ", ".join(f"lost {found.lost}, won {found.won} ({rule})" for rule, found in rules.items())
    return f"{told}. On other tasks `auto` {moved}"


def _auto(reports: Reports) -> str:
    row = _mix(reports, "auto")
    rule = "" if has_rule_of_today(reports["repairs"]) else " (an older rule)"
    return f"{points(row['right_beside_exact'], row['right_beside_exact_interval'])} points{rule}"


def _auto_missed(reports: Reports) -> str:
    row = _mix(reports, "auto")
    mean, (low, high) = row["right_beside_exact"], row["right_beside_exact_interval"]
    if mean < -MAX_LOSS:
        return f"the mean itself is {points(mean)} points."
    width = f"{100 * (high - low):.1f}"
    return f"{row['num_cases']} cases leave an interval of {width} points around a mean of {points(mean)}."


def _step(reports: Reports) -> float | None:
    """By the interval's worse end. None for files of older runs: one count has no interval, so it decides nothing."""
    ends = reports["step-instructions"].get("share_intervals", {}).get("acmserve")
    return None if ends is None else float(ends[1])


def _step_beside(reports: Reports) -> str:
    found = reports["step-instructions"]
    stock = f"{found['instructions_a_step']['stock'] / 1e6:.1f} million instructions of stock"
    return f"{stock}, {100 * found['share_beside_stock']['connector']:+.1f} % for vLLM's connector alone"


NUMBERS = (
    DecisionNumber(
        "First token after a fold, at vLLM's own defaults",
        "`reuse`",
        (edits.RESULT,),
        fold.least_reached,
        fold.told,
        fold.beside,
        fold.bar_told,
        lambda value: value >= 1,
        fold.missed,
        optional=(edits.WITH_AMX,),
    ),
    DecisionNumber(
        "Right answers beside `exact`",
        "`auto`",
        ("repairs", *SEEDS),
        lambda reports: _mix(reports, "auto")["right_beside_exact_interval"][0],
        _auto,
        _lost,
        f"whole interval above -{100 * MAX_LOSS:.0f}",
        lambda value: value >= -MAX_LOSS,
        _auto_missed,
    ),
    DecisionNumber(
        "Turns a second over stock vLLM, both in float32 and eager",
        "`reuse`",
        (loads.SINGLE,),
        loads.least_rate,
        loads.rate_line,
        loads.beside_line,
        f"{loads.LEAST_TIMES} with {' and '.join(map(str, loads.NUM_SESSIONS.values()))} sessions",
        lambda value: value >= loads.LEAST_TIMES,
        loads.missed_line,
        optional=tuple(loads.NUM_SESSIONS),
    ),
    DecisionNumber(
        "All waiting with precompute, beside without",
        "`exact`",
        PAIRED,
        waiting.over_bars,
        waiting.told,
        waiting.beside,
        waiting.bar_told(),
        lambda value: value <= 1,
        waiting.missed,
        optional=(DROPPED,),
    ),
    DecisionNumber(
        "Scheduler half of a decode step, no sessions, beside stock",
        "none",
        ("step-instructions",),
        _step,
        lambda reports: share_told(reports["step-instructions"], "acmserve"),
        _step_beside,
        "+1 % by the interval's end",
        lambda value: value <= 0.01,
        "vLLM calls every KV connector in each step, and that alone is most of it.",
    ),
)


def first_screen(reports: Reports, rows: Mapping[str, LedgerRow]) -> list[str]:
    """The table of five, why bars are missed, those beside the five too, and what nobody measured."""
    cells = [_cells(number, reports) for number in NUMBERS]
    missed = [number for number in NUMBERS if number.verdict(reports) == MISSED]
    num_open = sum(number.verdict(reports) == NOT_MEASURED for number in NUMBERS)
    stale = [mark_of(rows[name] for name in number.files_of(reports)) for number in NUMBERS]
    current = [number.question for number, mark in zip(NUMBERS, stale, strict=True) if not mark]
    beside = [one for one in BESIDE if all(name in reports for name in one.files)]
    files = [*(number.files_of(reports) for number in NUMBERS), *(one.files for one in beside)]
    mark = mark_of(rows[name] for some in files for name in some)
    if mark and current:
        mark += f" Of today's code: {'; '.join(current)}."
    not_measured = f", {_are(num_open)} not measured" if num_open else ""
    return [
        table(_HEADS, cells),
        "",
        strong(f"Of {len(NUMBERS)} bars {_are(len(missed))} missed{not_measured}."),
        *([mark] if mark else []),
        "",
        *(f"- {number.question}: {number.reason(reports)}" for number in missed),
        "",
        "Bars beside the five:",
        "",
        *(f"- {told}" for told in beside_lines(reports)),
        "",
        f"**Never measured:** {' '.join(never_measured(reports, rows))}",
        "",
    ]


def _are(num: int) -> str:
    """`1 is`, `2 are`."""
    return f"{num} {'is' if num == 1 else 'are'}"


def _cells(number: DecisionNumber, reports: Reports) -> list[str]:
    verdict = number.verdict(reports)
    told = verdict if verdict == MET else f"**{verdict}**"
    bar = f"{number.bar_told(reports)}: {told}"
    return [number.question, number.fidelity, number.text(reports), number.beside(reports), bar]
