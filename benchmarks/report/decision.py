"""The first screen of the page of benchmarks: five numbers to decide by, each with its fidelity and its bar.

A bar is what the field claims or what the project set itself. What misses its bar says why, and what was never measured
stands below. It reads results, and knows no benchmark.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from acmserve.bench.agent.result_table import Report
from acmserve.bench.calibrate.choice import MAX_LOSS
from acmserve.bench.edit.run import AUTO
from acmserve.bench.edit.table import at_defaults, cell_of, p90, times_sooner
from acmserve.bench.edit.times import APPEND, DEFAULTS, EXACT, REUSE, STOCK
from acmserve.bench.harness.markdown_text import interval, points, ratio, seconds, strong, table
from acmserve.bench.precompute.bars import ALL_WAITING, MOST_WAITING
from acmserve.bench.report.ledger import LedgerRow, mark_of
from acmserve.bench.report.page_section import Reports
from acmserve.bench.report.sections.answers import SEEDS, answers_by_rule
from acmserve.bench.report.sections.missed import BESIDE, MOST_APPENDS_AT_FOLD, PAIRED
from acmserve.bench.report.sections.repairs import repairs_row

_LEAST_SOONER = 20
_HEADS = ("", "fidelity", "number", "beside it", "bar")


@dataclass(frozen=True, slots=True)
class DecisionNumber:
    """`value` is held against the bar, `text` and `beside` are what people read. `why` stands where it is missed."""

    question: str
    fidelity: str
    files: Sequence[str]
    value: Callable[[Reports], float]
    text: Callable[[Reports], str]
    beside: Callable[[Reports], str]
    bar: str
    is_met: Callable[[float], bool]
    why: str


def _medians(reports: Reports) -> Mapping[str, float]:
    medians: Mapping[str, float] = cell_of(reports["edit-cpu"], "fold")["medians"]
    return medians


def _over_append(reports: Reports) -> float:
    return 1 / times_sooner(reports["edit-cpu"], at_defaults(REUSE), at_defaults(APPEND))


def _sooner(reports: Reports) -> float:
    """Like with like, both at vLLM's own defaults. By the 90th percentile of each side, as the bar has it."""
    return times_sooner(reports["edit-cpu"], at_defaults(REUSE), DEFAULTS, p90)


def _reached(reports: Reports) -> float:
    """The share of the bar that is reached, by the worse of its two halves."""
    return min(MOST_APPENDS_AT_FOLD / _over_append(reports), _sooner(reports) / _LEAST_SOONER)


def _fold(reports: Reports) -> str:
    median = times_sooner(reports["edit-cpu"], at_defaults(REUSE), DEFAULTS)
    return (
        f"{seconds(_medians(reports)[at_defaults(REUSE)], 2)}, {ratio(_over_append(reports))} plain appends, "
        f"{_sooner(reports):.1f} times sooner than stock by p90, {median:.1f} by the median"
    )


def _fold_beside(reports: Reports) -> str:
    found = _medians(reports)
    ways = ((EXACT, "`exact`"), (AUTO, "`auto`"), (STOCK, "stock vLLM"))
    defaults = ", ".join(f"{name} {seconds(found[at_defaults(series)])}" for series, name in ways)
    flags = ", ".join(f"{name} {seconds(found[series])}" for series, name in ways)
    return f"{defaults}. In float32 and eager `reuse` {seconds(found[REUSE], 2)}, {flags}"


def _mix(reports: Reports, way: str) -> Report:
    return repairs_row(reports["repairs"], "the whole mix", way)


def _lost(reports: Reports) -> str:
    rules = answers_by_rule(reports[name] for name in SEEDS)
    reuse = _mix(reports, "reuse")
    told = [
        f"{'On other tasks `auto`' if is_todays else 'An older rule'} lost {lost} of {questions}, won {won}"
        for is_todays, (_, questions, lost, won) in sorted(rules.items(), reverse=True)
    ]
    return ". ".join([f"`reuse` {points(reuse['right_beside_exact'], reuse['right_beside_exact_interval'])}", *told])


def _auto(reports: Reports) -> str:
    row = _mix(reports, "auto")
    return f"{points(row['right_beside_exact'], row['right_beside_exact_interval'])} points"


def _rate(reports: Reports, policy: str, server: str) -> float:
    rows = [row for row in reports["trace"]["rows"] if (row["policy"], row["server"]) == (policy, server)]
    return float(rows[0]["turns_per_second"]["median"])


def _rates(reports: Reports, server: str) -> Iterator[float]:
    for policy in ("cwl", "recency@1"):
        yield _rate(reports, policy, server) / _rate(reports, policy, "stock")


def _times(reports: Reports, server: str) -> str:
    return " and ".join(ratio(found) for found in _rates(reports, server))


def _waits(reports: Reports) -> Iterator[Report]:
    """The bar of all waiting, of each policy that was run."""
    for name in PAIRED:
        yield next(bar for bar in reports[name]["bars"] if bar["what"] == ALL_WAITING)


def _waiting(reports: Reports) -> str:
    return " and ".join(
        f"{_change(bar['value'])} [{', '.join(_change(end) for end in bar['interval'])}]" for bar in _waits(reports)
    )


def _ordinary(reports: Reports) -> str:
    median, together = (" and ".join(_told(reports[name]["bars"][number]) for name in PAIRED) for number in range(2))
    bounds = " and ".join(_change(reports[name]["waiting_bound"]) for name in PAIRED)
    turns = f"ordinary turns {median} times in the median, {together} together"
    return f"Under CWL and with clearing {turns}. Were each edited turn an append, {bounds}"


def _told(bar: Report) -> str:
    return f"{ratio(bar['value'])}{interval(bar['interval'])}"


def _change(over: float) -> str:
    return f"{100 * (over - 1):+.0f} %"


def _step(reports: Reports) -> float:
    return float(reports["step-instructions"]["share_beside_stock"]["acmserve"])


def _step_beside(reports: Reports) -> str:
    found = reports["step-instructions"]
    stock = f"{found['instructions_a_step']['stock'] / 1e6:.1f} million instructions of stock"
    return f"{stock}, {100 * found['share_beside_stock']['connector']:+.1f} % for vLLM's connector alone"


NUMBERS = (
    DecisionNumber(
        "First token after a fold, at vLLM's own defaults",
        "`reuse`",
        ("edit-cpu",),
        _reached,
        _fold,
        _fold_beside,
        f"{MOST_APPENDS_AT_FOLD} appends, {_LEAST_SOONER} times sooner",
        lambda value: value >= 1,
        "stock prefills several times faster on a processor with matrix units.",
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
        "no loss in the mean, but 128 cases leave a wide interval.",
    ),
    DecisionNumber(
        "Turns a second over stock vLLM",
        "`reuse`",
        ("trace",),
        lambda reports: min(_rates(reports, "reuse")),
        lambda reports: f"{_times(reports, 'reuse')} times (edits rare, often)",
        lambda reports: f"`exact` {_times(reports, 'exact')} times",
        "2, where a third edit",
        lambda value: value >= 2,
        "with one edit in 12 turns, most tokens are new.",
    ),
    DecisionNumber(
        "All waiting with precompute, beside without",
        "`exact`",
        PAIRED,
        lambda reports: max(float(bar["value"]) for bar in _waits(reports)),
        _waiting,
        _ordinary,
        "-20 %, others 1.03",
        lambda value: value <= MOST_WAITING,
        "edited turns take hardly more than appends under CWL. With clearing too few of their tokens were ready.",
    ),
    DecisionNumber(
        "A step without sessions, beside stock",
        "none",
        ("step-instructions",),
        _step,
        lambda reports: f"{100 * _step(reports):+.1f} %",
        _step_beside,
        "+1 %",
        lambda value: value <= 0.01,
        "vLLM calls every KV connector in each step, and that alone is most of it.",
    ),
)
NEVER = (
    ("gpu", "Moves on a GPU: `make gpu` measures them, and no card has run it."),
    ("", "A fold at vLLM's own defaults on a processor with matrix units, where stock prefills faster."),
    ("scale", "Times at contexts above 20,000 tokens on a CPU."),
    ("trace-4", "Four sessions at a time on a CPU, beside stock."),
    ("trace-16", "Sixteen of them."),
    ("trace-open", "Sessions that arrive by chance, which is open-loop load."),
    ("", "Times of real agents, of which tokens are counted."),
    ("memory", "Host memory beside stock."),
    ("llama", "llama.cpp with its store of prompts in host memory, which is on by default."),
)
"""What nobody measured, as long as there is no result of that name."""


def first_screen(reports: Reports, rows: Mapping[str, LedgerRow]) -> list[str]:
    """The table of five, why bars are missed, those beside the five too, and what nobody measured."""
    cells = [_cells(number, reports) for number in NUMBERS]
    missed = [number for number in NUMBERS if not number.is_met(number.value(reports))]
    stale = [mark_of(rows[name] for name in number.files) for number in NUMBERS]
    current = [number.question for number, mark in zip(NUMBERS, stale, strict=True) if not mark]
    beside = [one for one in BESIDE if all(name in reports for name in one.files)]
    files = [number.files for number in NUMBERS] + [one.files for one in beside]
    mark = mark_of(rows[name] for some in files for name in some)
    if mark and current:
        mark += f" Of today's code: {'; '.join(current)}."
    return [
        table(_HEADS, cells),
        "",
        *([mark, ""] if mark else []),
        strong(f"{len(missed)} of {len(NUMBERS)} bars are missed."),
        "",
        *(f"- {number.question}: {number.why}" for number in missed),
        "",
        "Bars beside the five:",
        "",
        *(f"- {told}" for one in beside if (told := one.told(reports))),
        "",
        f"**Never measured:** {' '.join(text for name, text in NEVER if name not in rows)}",
        "",
    ]


def _cells(number: DecisionNumber, reports: Reports) -> list[str]:
    met = "met" if number.is_met(number.value(reports)) else "**missed**"
    return [number.question, number.fidelity, number.text(reports), number.beside(reports), f"{number.bar}: {met}"]
