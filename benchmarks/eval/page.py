"""The report of `acmserve eval` as people read it: one page in Markdown, and the same as HTML. Pure."""

from __future__ import annotations

import html
from collections.abc import Mapping, Sequence
from typing import Any

from acmserve.bench.eval.baselines.way_limits import WayLimits
from acmserve.bench.eval.summary import ALL, number_told
from acmserve.bench.eval.table import MAIN_TABLE, REPEATS_TABLE

_STYLE = (
    "body{font-family:system-ui;margin:2em;max-width:90em}table{border-collapse:collapse}"
    "td,th{padding:.2em .6em;border-bottom:1px solid #ccc;text-align:right}"
    "td:first-child,th:first-child{text-align:left}"
)
Cells = Sequence[str]


def as_markdown(report: Mapping[str, Any]) -> str:
    """Head, what was skipped, and for each task a table of scores and one of tokens."""
    lines = ["# Evaluation", "", *(f"- {line}" for line in _head(report)), ""]
    for title, heads, rows in _tables(report):
        lines += [f"## {title}", "", _line(heads), _line(["---"] * len(heads)), *map(_line, rows), ""]
    return "\n".join([*lines, *_NOTES, ""])


def as_html(report: Mapping[str, Any]) -> str:
    """The same page. Everything that was not written here is escaped."""
    parts = ["<!doctype html><meta charset=utf-8><title>Evaluation</title>", f"<style>{_STYLE}</style>"]
    parts += ["<h1>Evaluation</h1><ul>", *(f"<li>{html.escape(line)}</li>" for line in _head(report)), "</ul>"]
    for title, heads, rows in _tables(report):
        parts += [f"<h2>{html.escape(title)}</h2><table>", _html_row("th", heads)]
        parts += [*(_html_row("td", row) for row in rows), "</table>"]
    return "\n".join([*parts, *(f"<p>{html.escape(note)}</p>" for note in _NOTES if note), ""])


_NOTES = (
    (
        "Score: mean of the task's own scorer, with a 95 % interval. Beside: the difference to the baseline of the "
        "way, sample by sample, with a bootstrap interval. Intervals are over contexts: questions about one count "
        "together. Refused: what the server did not take, which scores 0."
    ),
    "",
    (
        "Kept and moved tokens stood in the cache, computed ones did not. From a server without receipts, cached "
        "tokens are told as kept. Reduction: how much smaller the last prompt of a sample is than its first."
    ),
)


def _head(report: Mapping[str, Any]) -> list[str]:
    prices = report["prices"]
    told = ", ".join(f"{name} {prices[name]:g}" for name in ("write", "read", "output"))
    budget = report["budget"]
    size = f"{100 * budget:g} % of what may go" if budget < 1 else f"{budget:,.0f} tokens"
    left = report["num_planned"] - report["num_played"]
    unscored = sum(row.get("num_unscored", 0) for row in report["rows"] if row["task"] != ALL)
    rest = f", of which {left:,} ran out of time" if left else ""
    return [
        f"model: {report['model']}, {'acmserve' if report['has_acm'] else 'a server without acmserve'}",
        f"{report['num_samples']} samples, seed {report['seed']}, run {report['run']}",
        f"{report['num_planned']:,} samples in ways{rest}",
        *([f"not scored: {unscored:,} answers, since their scorer failed. They count as 0"] if unscored else ()),
        f"budget: {size}",
        *WayLimits(**report["limits"]).told(report["ways"]),
        f"prices: {told} times the input price, which is {prices['base']:g} for a million tokens",
        *(f"{way}: {title}" for way, title in report["ways"].items()),
        *(f"skipped: {way}: {reason}" for way, reason in report["skipped"].items()),
    ]


def _tables(report: Mapping[str, Any]) -> list[tuple[str, Cells, list[Cells]]]:
    rows = report["rows"]
    found: list[tuple[str, Cells, list[Cells]]] = []
    for task in dict.fromkeys(row["task"] for row in rows):
        mine = [row for row in rows if row["task"] == task]
        title = "All tasks" if task == ALL else task
        found.append((title, _SCORE_HEADS, [_scores(row) for row in mine]))
        found.append((f"{title}: tokens", _TOKEN_HEADS, [_tokens(row) for row in mine]))
        found += _by_setting(title, [row for row in report["settings"] if row["task"] == task])
    for title, table in (("Main threads", MAIN_TABLE), ("Repeated commands", REPEATS_TABLE)):
        cells: list[Cells] = [[cell.replace("`", "") for cell in row] for row in table.rows(report)]
        if cells:
            found.append((title, table.heads, cells))
    return found


def _by_setting(title: str, rows: Sequence[Mapping[str, Any]]) -> list[tuple[str, Cells, list[Cells]]]:
    """Scores of each way, a column for each setting. Nothing where there is one alone."""
    settings = list(dict.fromkeys(row["setting"] for row in rows))
    if len(settings) < 2:
        return []
    scores = {(row["way"], row["setting"]): row for row in rows}
    ways = dict.fromkeys(row["way"] for row in rows)
    cells: list[Cells] = [[way, *(_score(scores.get((way, setting))) for setting in settings)] for way in ways]
    return [(f"{title}: by setting", ("way", *settings), cells)]


def _score(row: Mapping[str, Any] | None) -> str:
    return "-" if row is None else f"{100 * row['score']:.1f} {_between(row['score_interval'])}"


_SCORE_HEADS = ("way", "n", "refused", "score", "beside", "cost", "seconds", "tool calls", "wrong calls")
_TOKEN_HEADS = (
    "way",
    "requests",
    "prompt",
    "kept",
    "moved",
    "computed",
    "output",
    "updates, summaries",
    "reduction",
    "over budget",
)


def _scores(row: Mapping[str, Any]) -> Cells:
    tools = ", ".join(f"{name} {num}" for name, num in row["tools"].items()) or "-"
    beside = (
        "-" if row["difference"] is None else f"{100 * row['difference']:+.1f} {_between(row['difference_interval'])}"
    )
    return (
        *(row["way"], number_told(row["num_samples"], row.get("num_contexts")), str(row["num_refused"])),
        _score(row),
        *(beside.strip(), f"{row['cost']:.6f}", f"{row['seconds']:.1f}", tools, str(row["num_tool_errors"])),
    )


def _tokens(row: Mapping[str, Any]) -> Cells:
    counts = [f"{row[f'{name}_tokens']:,}" for name in ("prompt", "kept", "moved", "computed", "output")]
    updates = "-" if row["update_tokens"] is None else " + ".join(f"{num:,}" for num in row["update_tokens"])
    less = "-"
    if row["reduction"] is not None:
        less = f"{100 * row['reduction']:.1f} % ({row['first_prompt']:,} to {row['last_prompt']:,})"
    return (row["way"], f"{row['num_requests']:,}", *counts, updates, less, str(row["num_unmet"]))


def _between(interval: Sequence[float] | None) -> str:
    return "" if interval is None else f"[{100 * interval[0]:.0f}, {100 * interval[1]:.0f}]"


def _line(cells: Cells) -> str:
    return f"| {' | '.join(cell.replace('|', '/') for cell in cells)} |"


def _html_row(tag: str, cells: Cells) -> str:
    return f"<tr>{''.join(f'<{tag}>{html.escape(cell)}</{tag}>' for cell in cells)}</tr>"
