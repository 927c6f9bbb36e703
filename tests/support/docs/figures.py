"""Every measured figure of README, docs and changelog: the page, the figure as it stands there, file, key, format.

A key is a path into the JSON file (`cells/0/medians/exact`), or a function of its content where a figure is derived.
A figure of the code (a default in seconds) has no file, and a function without arguments.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache
from typing import Any

from acmserve.bench.calibrate.choice import MAX_FAMILY_KL, MAX_LOSS
from acmserve.bench.edit.table import times_sooner
from acmserve.bench.harness.markdown_text import interval, points, ratio
from acmserve.bench.precompute.runs import PREDICT
from acmserve.bench.repairs.recorded import recorded_row
from acmserve.bench.repairs.summary import HARM_NATS, MAX_KL, MIX
from acmserve.bench.report.sections.answers import answers_by_rule
from acmserve.bench.report.sections.renewed import renewed
from acmserve.bench.tasks.moved_answers import MovedAnswers
from acmserve.bench.tasks.summary import ALL
from acmserve.bench.tasks.summary import recorded_row as recorded_task_row
from acmserve.engine.config import EngineConfig
from acmserve.plan.auto import DEFAULT_THRESHOLDS
from tests.support.docs.figures_of_evaluation import extreme_way, kinds_of_ways, num_within, ways_compute
from tests.support.docs.figures_of_records import (
    IN_MEDIAN,
    computed_of_chain,
    families_too_far,
    moved_of_mix,
    of_chain,
    of_whole_draft,
    range_accepted,
    reuse_on_unrelated_text,
    seconds_saved,
    seconds_spent,
    share_that_was,
)
from tests.support.docs.pages import GENERATED, LEDGER, ROOT, page_names, prose_of

README, CHANGELOG, FIDELITY = "README.md", "CHANGELOG.md", "docs/fidelity.md"
PRECOMPUTE = "docs/guides/precompute.md"
COMPATIBILITY = "docs/compatibility.md"
_UNIT = r"(?:ms|µs|s|%|nats|points?|times|seconds?|milliseconds?|GB/s)"
_MEASURED = re.compile(
    rf"(?<![\w.,/-])[-+]?\d[\d,]*(?:\.\d+)?(?: (?:to|of|and) [-+]?\d[\d,]*(?:\.\d+)?)?\s{_UNIT}(?![\w/])"
    r"|\[[-+]?\d+(?:\.\d+)?, [-+]?\d+(?:\.\d+)?\]|\d%"
)
_TASKS = ("tasks", "tasks-seed2", "tasks-seed3")


@dataclass(frozen=True, slots=True)
class Figure:
    """`pages` have `text`, the `form.format` of what `key` finds in `file`. `file` is "" for a figure of the code."""

    text: str
    file: str
    key: str | Callable[..., Any]
    form: str
    pages: tuple[str, ...]


def _right_beside_exact(row: Any) -> str:
    return points(row["right_beside_exact"], row["right_beside_exact_interval"])


def _beside_exact(variant: str) -> Callable[[Any], str]:
    return lambda report: _right_beside_exact(recorded_task_row(report, ALL, variant))


def _held_out(way: str) -> Callable[[Any], str]:
    return lambda report: _right_beside_exact(recorded_row(report, MIX, way))


def _other_answers(report: Any) -> str:
    sessions = report["stages"]["sessions"]
    return f"{sessions['answers_other_than_stock']} of {sessions['answers_compared_with_stock']}"


def _not_right(report: Any) -> int:
    return int(report["built"] - report["right"])


def _bar(number: int) -> Callable[[Any], str]:
    def found(report: Any) -> str:
        bar = report["bars"][number]
        return f"{ratio(bar['value'])}{interval(bar['interval'])}"

    return found


def _waited_with(prompt: str) -> Callable[[Any], str]:
    """All waiting of turns that had the same prompt with precompute and without, or another one."""

    def found(report: Any) -> str:
        part = report["waiting_by_prompt"][prompt]
        return f"{ratio(part['value'])}{interval(part['interval'])}"

    return found


def _other_prompts(report: Any) -> str:
    num_same, num_other = (report["waiting_by_prompt"][name]["num_turns"] for name in ("same", "other"))
    return f"{num_other} of {num_same + num_other}"


def _over_exact(report: Any) -> str:
    return interval(report["kinds"][0]["over_exact"]["interval"]).strip()


def _delayed(report: Any) -> float:
    """Seconds that others waited for background steps, in all rounds."""
    runs = [one["runs"] for one in report["rounds"]]
    return float(sum(run[PREDICT]["counters"]["precompute_delay_seconds"] for run in runs))


def _behind_chain(way: str, what: str) -> Callable[[Any], float]:
    return lambda report: next(float(row[what]) for row in report["ways"] if row["name"] == way)


def _p99(mode: str, choose: Callable[[list[float]], float]) -> Callable[[Any], float]:
    return lambda report: choose(report["modes"][mode]["p99_seconds_by_round"])


def _furthest_apart(report: Any) -> int:
    """Tokens between what was told of an evicted prompt and what was served, with any template."""
    return max(counts["largest_difference_tokens"] for counts in report["templates"].values())


def _sooner(series: str, stock: str) -> Callable[[Any], float]:
    return lambda report: times_sooner(report, series, stock)


def _answers(field: str, *, echoes_alone: bool) -> Callable[[Any], Any]:
    """Of `auto`, over all files of one rule together."""
    return lambda _: getattr(answers_by_rule(read_result(name) for name in _TASKS)[echoes_alone], field)


def _folds_moved(_: Any) -> str:
    found = _answers_with_echoes_alone()
    return f"{found.num_moved_cases} of {found.num_cases}"


def _computed_exactly(_: Any) -> str:
    found = _answers_with_echoes_alone()
    return f"{found.num_exact} of {found.num_questions}"


def _answers_with_echoes_alone() -> MovedAnswers:
    return answers_by_rule(read_result(name) for name in _TASKS)[True]


FIGURES = (
    Figure("53 that can be built here", "audit", "built", "{} that can be built here", (COMPATIBILITY,)),
    Figure("49 are judged right", "audit", "right", "{} are judged right", (COMPATIBILITY,)),
    Figure("other 4 are", "audit", _not_right, "other {} are", (COMPATIBILITY,)),
    Figure("34 times", "edit-cpu", _sooner("reuse@defaults", "defaults"), "{:.0f} times", (README,)),
    Figure("4.9 s", "edit-cpu", "cells/0/medians/defaults", "{:.1f} s", (README,)),
    Figure("4.8 s", "edit-cpu", "cells/0/medians/exact@defaults", "{:.1f} s", (README,)),
    Figure("2.0 s", "edit-cpu", "cells/0/medians/auto@defaults", "{:.1f} s", (README,)),
    Figure("0.28 s", "edit-cpu", "cells/0/medians/repair@defaults", "{:.2f} s", (README,)),
    Figure("0.15 s", "edit-cpu", "cells/0/medians/reuse@defaults", "{:.2f} s", (README,)),
    Figure("7.2 s", "edit-cpu", "cells/0/medians/stock", "{:.1f} s", (README,)),
    Figure("6.3 s", "edit-cpu", "cells/0/medians/exact", "{:.1f} s", (README,)),
    Figure("2.6 s", "edit-cpu", "cells/0/medians/auto", "{:.1f} s", (README,)),
    Figure("0.40 s", "edit-cpu", "cells/0/medians/repair", "{:.2f} s", (README,)),
    Figure("0.20 s", "edit-cpu", "cells/0/medians/reuse", "{:.2f} s", (README,)),
    Figure("219 s", "first-receipt", "first_receipt_seconds", "{:.0f} s", (README,)),
    Figure("98 s", "first-receipt", "seconds/packages", "{:.0f} s", (README,)),
    Figure("16 s", "first-receipt", "seconds/build", "{:.0f} s", (README,)),
    Figure("23 s", "first-receipt", "seconds/model", "{:.0f} s", (README,)),
    Figure("20 s", "first-receipt", "seconds/engine", "{:.0f} s", (README,)),
    Figure("61 s", "first-receipt", "seconds/receipt", "{:.0f} s", (README,)),
    Figure("298 of 738 answers", "gpu", _other_answers, "{} answers", (README,)),
    Figure("moves 45 %", "repairs", moved_of_mix, "moves {:.0f} %", (README,)),
    Figure("+0.8 [-0.6, 2.3]", "repairs", _held_out("auto"), "{}", (README,)),
    Figure("0 of 10 families", "repairs", families_too_far, "{} families", (README,)),
    Figure("-10.7 [-16.2, -5.7]", "repairs", _held_out("reuse"), "{}", (README,)),
    Figure("-3.8 [-7.8, 0.1]", "tasks", _beside_exact("reuse"), "{}", (README,)),
    Figure("+2.3 [-0.6, 5.4]", "tasks", _beside_exact("repair-128"), "{}", (README,)),
    Figure("+1.8 [-0.5, 4.2]", "tasks", _beside_exact("auto"), "{}", (README,)),
    Figure("lost 11 of 173", "tasks", _answers("lost", echoes_alone=False), "lost {}", (FIDELITY, CHANGELOG)),
    Figure("won 18 of 139", "tasks", _answers("won", echoes_alone=False), "won {}", (FIDELITY, CHANGELOG)),
    Figure("lost 0 of 24", "tasks-seed3", _answers("lost", echoes_alone=True), "lost {}", (README, FIDELITY)),
    Figure("won 4 of 20", "tasks-seed3", _answers("won", echoes_alone=True), "won {}", (README, FIDELITY)),
    Figure("17 of 70 folds", "tasks-seed3", _folds_moved, "{} folds", (FIDELITY,)),
    Figure("138 of 182 answers", "tasks-seed3", _computed_exactly, "{} answers", (FIDELITY,)),
    Figure("-2.0 [-4.6, 0.4]", "eval", extreme_way(0), "{}", (README,)),
    Figure("-0.9 [-3.1, 1.3]", "eval", extreme_way(1), "{}", (README,)),
    Figure("worst of 4 budgets that differ", "eval", kinds_of_ways, "worst of {}", (README,)),
    Figure("best of the 3 that stayed", "eval", num_within, "best of the {} that stayed", (README,)),
    Figure("0.86 and 0.66 times", "eval", ways_compute, "{}", (README,)),
    Figure("1.17", "speculation", "kinds/0/over_exact/median", "{:.2f}", (FIDELITY,)),
    Figure("[1.05, 1.20]", "speculation", _over_exact, "{}", (FIDELITY,)),
    Figure("4 were accepted in the median", "speculation", "kinds/0/accepted/median", IN_MEDIAN, (FIDELITY,)),
    Figure("from 0 to 50", "speculation", range_accepted(0), "from {}", (FIDELITY,)),
    Figure(
        "it was 5 in the median", "speculation", "kinds/1/accepted/median", "it was {:g} in the median", (FIDELITY,)
    ),
    Figure("from 3 to 6", "speculation", range_accepted(1), "from {}", (FIDELITY,)),
    Figure("17.3 s", "speculation", of_whole_draft("drafted"), "{:.1f} s", (FIDELITY,)),
    Figure("16.5 s", "speculation", of_whole_draft("exact"), "{:.1f} s", (FIDELITY,)),
    Figure("0.058 nats", "repairs", reuse_on_unrelated_text, "{:.3f} nats", (FIDELITY,)),
    Figure("0.38 nats", "repairs-thoughts", of_chain("reuse", "kl"), "{:.2f} nats", (FIDELITY,)),
    Figure(
        "18 points", "repairs-thoughts", of_chain("reuse", "right_beside_exact", -100), "{:.0f} points", (FIDELITY,)
    ),
    Figure("0.28 nats", "repairs-thoughts", of_chain("last two pieces", "kl"), "{:.2f} nats", (FIDELITY,)),
    Figure("15 %", "repairs-thoughts", computed_of_chain, "{:.0f} %", (FIDELITY,)),
    Figure("0.98 [0.95, 1.01] times", "precompute-paired", _bar(0), "{} times", (PRECOMPUTE,)),
    Figure("0.93 [0.87, 1.00] times", "precompute-paired", _bar(1), "{} times", (PRECOMPUTE,)),
    Figure("0.84 [0.79, 0.89] times", "precompute-paired", _bar(2), "{} times", (PRECOMPUTE,)),
    Figure("0.90 [0.82, 1.00] times", "precompute-paired", _waited_with("same"), "{} times", (PRECOMPUTE,)),
    Figure("0.80 [0.69, 0.90] times", "precompute-paired", _waited_with("other"), "{} times", (PRECOMPUTE,)),
    Figure("110 of 212 turns", "precompute-paired", _other_prompts, "{} turns", (PRECOMPUTE,)),
    Figure("0.86 times", "precompute-paired", "waiting_bound", "{:.2f} times", (PRECOMPUTE,)),
    Figure("0.99 [0.96, 1.02] times", "precompute-paired-clear", _bar(0), "{} times", (PRECOMPUTE,)),
    Figure("0.99 [0.95, 1.03] times", "precompute-paired-clear", _bar(1), "{} times", (README, PRECOMPUTE, CHANGELOG)),
    Figure("0.82 [0.80, 0.85] times", "precompute-paired-clear", _bar(2), "{} times", (README, PRECOMPUTE, CHANGELOG)),
    Figure("0.78 times", "precompute-paired-clear", "waiting_bound", "{:.2f} times", (PRECOMPUTE,)),
    Figure("0.02 s", "precompute-paired-clear", _delayed, "{:.2f} s", (PRECOMPUTE,)),
    Figure("87.4 s", "precompute-paired-clear", seconds_spent, "{:.1f} s", (PRECOMPUTE,)),
    Figure("41.5 s", "precompute-paired-clear", seconds_saved, "{:.1f} s", (PRECOMPUTE,)),
    Figure("29.3 s", "precompute-paired", seconds_spent, "{:.1f} s", (PRECOMPUTE,)),
    Figure("33.1 s", "precompute-paired", seconds_saved, "{:.1f} s", (PRECOMPUTE,)),
    Figure("53 %", "precompute-paired-clear", share_that_was("used"), "{:.0f} %", (PRECOMPUTE,)),
    Figure("21 %", "precompute-paired-clear", share_that_was("wasted"), "{:.0f} %", (PRECOMPUTE,)),
    Figure("27 %", "precompute-paired-clear", share_that_was("held"), "{:.0f} %", (PRECOMPUTE,)),
    Figure("2 %", "", lambda: 100 * EngineConfig().precompute_delay_share, "{:.0f} %", (PRECOMPUTE,)),
    Figure(
        "0.92 times", "precompute-thoughts", _behind_chain(PREDICT, "appends"), "{:.2f} times", (PRECOMPUTE, CHANGELOG)
    ),
    Figure("0.11 s", "precompute-thoughts", _behind_chain(PREDICT, "median_seconds"), "{:.2f} s", (PRECOMPUTE,)),
    Figure("1.28 times", "precompute-thoughts", _behind_chain("reuse", "appends"), "{:.2f} times", (PRECOMPUTE,)),
    Figure("0.16 s", "precompute-thoughts", _behind_chain("reuse", "median_seconds"), "{:.2f} s", (PRECOMPUTE,)),
    Figure("35.45 times", "precompute-thoughts", _behind_chain("exact", "appends"), "{:.2f} times", (PRECOMPUTE,)),
    Figure("4.66 s", "precompute-thoughts", _behind_chain("exact", "median_seconds"), "{:.2f} s", (PRECOMPUTE,)),
    Figure("12.96 times", "precompute-thoughts", _behind_chain("stock", "appends"), "{:.2f} times", (PRECOMPUTE,)),
    Figure(
        "4.73 s", "precompute-thoughts", _behind_chain("stock", "median_seconds"), "{:.2f} s", (PRECOMPUTE, CHANGELOG)
    ),
    Figure("10,008 turns", "templates", "totals/turns", "{:,} turns", (COMPATIBILITY,)),
    Figure("3,819 evictions", "templates", "totals/evictions", "{:,} evictions", (COMPATIBILITY,)),
    Figure(
        "256 evictions", "templates", "totals/evictions_with_an_image_never_served", "{} evictions", (COMPATIBILITY,)
    ),
    Figure("at most 1 token", "templates", _furthest_apart, "at most {} token", (COMPATIBILITY,)),
    Figure("0.33 s", "precompute-foreground", _p99("predict", min), "{:.2f} s", (CHANGELOG,)),
    Figure("1.18 s", "precompute-foreground", _p99("predict", max), "{:.2f} s", (CHANGELOG,)),
    Figure("0.45 s", "precompute-foreground", _p99("off", min), "{:.2f} s", (CHANGELOG,)),
    Figure("0.74 s", "precompute-foreground", _p99("off", max), "{:.2f} s", (CHANGELOG,)),
    Figure("90 %", "", lambda: 100 * DEFAULT_THRESHOLDS.max_anew_share, "{:.0f} %", (FIDELITY,)),
    Figure("10 %", "", lambda: 100 * DEFAULT_THRESHOLDS.min_echoed_share, "{:.0f} %", (FIDELITY,)),
    Figure("35 %", "", lambda: 100 * DEFAULT_THRESHOLDS.min_wide_echoed_share, "{:.0f} %", (FIDELITY,)),
    Figure("1.5 times", "", lambda: DEFAULT_THRESHOLDS.max_plain_ratio, "{:.1f} times", (FIDELITY,)),
    Figure("12 times", "", lambda: DEFAULT_THRESHOLDS.max_removed_ratio, "{:.0f} times", (FIDELITY,)),
    Figure("3 times", "", lambda: DEFAULT_THRESHOLDS.max_inserted_ratio, "{:.0f} times", (FIDELITY,)),
    Figure("0.04 nats", "", lambda: MAX_KL, "{} nats", (FIDELITY,)),
    Figure("0.1 nats", "", lambda: MAX_FAMILY_KL, "{} nats", (FIDELITY,)),
    Figure("more than 0.1 nats", "", lambda: HARM_NATS, "more than {} nats", (FIDELITY,)),
    Figure("2 points", "", lambda: 100 * MAX_LOSS, "{:.0f} points", (FIDELITY,)),
    Figure("0.2 s", "", lambda: EngineConfig().precompute_chunk_s, "{:g} s", (PRECOMPUTE,)),
    Figure("60 s", "", lambda: EngineConfig().precompute_min_age_s, "{:g} s", (PRECOMPUTE,)),
)


@cache
def read_result(name: str) -> Any:
    return json.loads((ROOT / f"benchmarks/results/{name}.json").read_text(encoding="utf-8"))


def value_of(figure: Figure) -> str:
    """The figure as its file has it now."""
    if not callable(figure.key):
        value = renewed(figure.file, read_result(figure.file))
        for step in figure.key.split("/"):
            value = value[int(step)] if isinstance(value, list) else value[step]
    else:
        value = figure.key(renewed(figure.file, read_result(figure.file))) if figure.file else figure.key()
    return figure.form.format(value)


def unlisted(name: str, page: str) -> list[str]:
    """Figures of a page that no row above stands for."""
    prose = re.sub(r"[ \t]+", " ", prose_of(page).replace("\n", " "))
    for figure in sorted(FIGURES, key=lambda figure: -len(figure.text)):
        if name in figure.pages:
            prose = re.sub(rf"(?<![\d.,]){re.escape(figure.text)}(?![\d]|[.,]\d)", "", prose)
    return [found[0] for found in _MEASURED.finditer(prose)]


def checked_pages() -> Iterator[str]:
    """All pages but the generated ones, which tests of their own compare with their generators."""
    return (name for name in page_names() if name not in {GENERATED, LEDGER})
