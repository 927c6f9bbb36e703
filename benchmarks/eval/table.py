"""The tables of `bench eval`: what each task can show, right answers by task and way, and what each way costs.

Whoever decides reads the first. It says in which tasks the model can lose answers at all, and how ways differ there.
"""

from __future__ import annotations

from collections.abc import Iterator

from acmserve.bench.agent.result_table import Report, ResultTable
from acmserve.bench.eval.summary import number_told
from acmserve.bench.eval.task_evidence import (
    NOTHING,
    READS,
    WHOLE,
    WayDifference,
    best_of,
    compare_ways,
    computed_beside_baseline,
    cost_beside_baseline,
    differences_of,
    rows_of_all,
    shown_by_task,
    within_budget,
    worst_of,
)
from acmserve.bench.eval.tasks.registry import DEFAULT_TASKS, find_task
from acmserve.bench.eval.ways import BY_TOOLS
from acmserve.bench.harness.markdown_text import interval, points

_NONE = "-"


def _evidence(report: Report) -> Iterator[list[str]]:
    """A row for each task: what the whole context gets right, and the ways that differ most from it."""
    scores = {(row["task"], row["way"]): row for row in report["rows"]}
    for task, shown in shown_by_task(report["rows"]).items():
        mine = [row for row in report["rows"] if row["task"] == task]
        best = None if shown == NOTHING else best_of(within_budget(differences_of(mine), mine), least=0.0)
        whole = [score_cell(scores.get((task, way))) for way in (WHOLE, READS)]
        guess = f"{100 * find_task(task).guess:.0f}"
        yield [f"`{task}`", guess, *whole, shown, told(best), told(worst_of(compare_ways(mine), most=0.0))]


def told(one: WayDifference | None) -> str:
    """A way with its difference in points."""
    return _NONE if one is None else f"`{one.way}` {points(one.difference, one.interval)}"


def _cells_by_task(report: Report) -> Iterator[list[str]]:
    """A row for each way, a column for each task."""
    found = {(row["way"], row["task"]): row for row in report["rows"]}
    shown = shown_by_task(report["rows"])
    yield ["can show", *(shown.get(task, _NONE) for task in DEFAULT_TASKS)]
    for way in report["ways"]:
        yield [f"`{way}`", *(score_cell(found.get((way, task))) for task in DEFAULT_TASKS)]


def _cells_by_way(report: Report) -> Iterator[list[str]]:
    """Tokens are means of a sample, since ways play different numbers of them."""
    rows = report["rows"]
    losing = {one.way: one for one in compare_ways(rows)}
    for row in rows_of_all(rows):
        way, num, lost = row["way"], row["num_samples"], losing.get(row["way"])
        beside = _NONE if row["difference"] is None else points(row["difference"], row["difference_interval"])
        amounts = (row["prompt_tokens"], row["computed_tokens"], row["output_tokens"], sum(row["update_tokens"] or ()))
        times = (computed_beside_baseline(rows, way), cost_beside_baseline(rows, way))
        yield [
            *(f"`{way}`", _number(row), f"{100 * row['score']:.1f}{interval(row['score_interval'], 100, 1)}", beside),
            _NONE if lost is None else f"{points(lost.difference, lost.interval)}, n {_number_of(lost)}",
            *(f"{amount / num:,.0f}" for amount in amounts),
            *(_NONE if time is None else f"{time:.2f}" for time in times),
            f"{row['num_unmet']} of {num}" if row["num_unmet"] else "0",
        ]


def _amounts_by_way(report: Report) -> Iterator[list[str]]:
    """A row for each way, in means of a sample."""
    for row in rows_of_all(report["rows"]):
        num = row["num_samples"]
        counts = [row[f"{name}_tokens"] / num for name in ("prompt", "kept", "moved", "computed", "output")]
        base = report["prices"]["base"]
        money = f"{1e6 * row['cost'] / base / num:,.0f}" if base else _NONE
        yield [f"`{row['way']}`", *(f"{mean:,.0f}" for mean in counts), f"{row['seconds'] / num:.1f}", money]


def _tools_by_way(report: Report) -> Iterator[list[str]]:
    """A row for each way in which the model edits by itself: Figures 3 and 6 of the Sculptor paper."""
    for row in rows_of_all(report["rows"]):
        if row["way"] in BY_TOOLS:
            called = ", ".join(f"`{name}` {num:,}" for name, num in row["tools"].items()) or "none"
            less = ["no call"] * 3
            if row["reduction"] is not None and row["tools"]:
                less = [f"{row['first_prompt']:,}", f"{row['last_prompt']:,}", f"{100 * row['reduction']:.1f} %"]
            yield [f"`{row['way']}`", str(row["num_samples"]), called, f"{row['num_tool_errors']:,}", *less]


def _repeats_by_way(report: Report) -> Iterator[list[str]]:
    """A row for each way that has a shell. Older reports tell none."""
    for row in rows_of_all(report["rows"]):
        if "repeats" in row:
            yield [f"`{row['way']}`", str(row["num_samples"]), *(f"{num:,}" for num in row["repeats"].values())]


def _main_threads(report: Report) -> Iterator[list[str]]:
    """A row for the way with branches. Older reports tell none."""
    for row in rows_of_all(report["rows"]):
        if (main := row.get("main_thread")) is None:
            continue
        num, above, limit = row["num_samples"], main["num_unfolded"], main["context_limit"]
        share = _NONE if above is None else f"{100 * above / num:.0f} %"
        told = _NONE if limit is None else f"{limit:,}"
        yield [f"`{row['way']}`", str(num), f"{main['longest_prompt']:,}", told, share]


def score_cell(row: Report | None) -> str:
    """Right answers in per cent, with their interval and how many samples there were."""
    if row is None:
        return _NONE
    return f"{100 * row['score']:.0f}{interval(row['score_interval'], 100, 0)}, n {_number(row)}"


def _number(row: Report) -> str:
    return number_told(row["num_samples"], row.get("num_contexts"))


def _number_of(one: WayDifference) -> str:
    return number_told(one.num_samples, one.num_contexts)


TASK_EVIDENCE = ResultTable(
    ("task", "a guess, %", "whole context, %", "as results of tools, %", "can show", "best way", "worst way"),
    _evidence,
    "What each task can show on this model, and the ways that differ most from the whole context, in points. "
    "No way can lose where the interval of the whole context goes below 5 %, or below a guess. "
    "One that was over its budget in most samples of a task is not its best.",
)
TASK_TABLE = ResultTable(
    ("way", *DEFAULT_TASKS),
    _cells_by_task,
    "Right answers in per cent with 95 % intervals, and the number of samples. A way that does not apply has none.",
)
WAY_TABLE = ResultTable(
    (
        *("way", "n", "right, %", "beside its baseline, points", "the same where it can lose"),
        *("prompt", "computed", "output", "updates, summaries", "computed, times", "cost, times", "over budget"),
    ),
    _cells_by_way,
    "All tasks that a way plays, in means of a sample. Points and times are beside the baseline on the same tasks. "
    "That is `baseline`, or `reads` for budgets.",
)
AMOUNT_TABLE = ResultTable(
    ("way", "prompt", "kept", "moved", "computed", "output", "seconds waited", "cost, in plain input tokens"),
    _amounts_by_way,
    "Tokens, time and money in means of a sample, over all tasks that a way plays. Seconds are those that requests "
    "waited. Many wait side by side, so seconds do not compare machines. The cost has updates and summaries in it.",
)
TOOLS_TABLE = ResultTable(
    ("way", "n", "calls of tools", "wrong or unreadable", "first prompt", "last prompt", "reduction"),
    _tools_by_way,
    "What the model called by itself, and how much smaller its last prompt is than its first, in means of a sample. "
    "A reduction below zero is a prompt that grew: calls and their results weigh more than what they fold.",
)
REPEATS_TABLE = ResultTable(
    (
        *("way", "tasks", "commands", "repeats, output still shown", "of them elsewhere"),
        *("re-explorations, output taken out", "of them elsewhere"),
    ),
    _repeats_by_way,
    "Commands of an agent in a shell that repeat an earlier one of its conversation. Elsewhere: one that earlier tasks "
    "alone have given, in folders of their own. Files may have changed between the two.",
)
MAIN_TABLE = ResultTable(
    ("way", "n", "longest prompt of a main thread", "context", "above half of it"),
    _main_threads,
    "Samples whose main thread went above half of the context, which training in Context-Folding punishes.",
)
TABLES = (TASK_EVIDENCE, TASK_TABLE, WAY_TABLE, AMOUNT_TABLE, TOOLS_TABLE, MAIN_TABLE, REPEATS_TABLE)
