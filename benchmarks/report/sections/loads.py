"""Sections about several sessions beside stock vLLM, in turns and in sessions that arrive by chance.

Each stands on the page once its load was run.
"""

from __future__ import annotations

from acmserve.bench.harness.markdown_text import interval, ratio
from acmserve.bench.report.page_section import PageSection, Reports, page_table
from acmserve.bench.trace.table import SERVERS, WAITS

_GROUP = "Several sessions, and sessions that arrive by chance, at vLLM's own defaults"
_FLAGS = "--against exact,reuse,stock"
_LOADS = {
    "trace-4": ("Four sessions at a time", "--concurrency 4 --policies recency@1 --turns 12"),
    "trace-16": ("Sixteen sessions at a time", "--concurrency 16 --policies recency@1 --turns 5"),
    "trace-open": ("Sessions that arrive by chance", "--concurrency 8 --arrivals 3 --policies recency@1 --turns 12"),
}


def _section(name: str, title: str, load: str) -> PageSection:
    def answer(reports: Reports) -> str:
        rows = {row["server"]: row for row in reports[name]["rows"]}
        found = [rows[server]["rate_beside_stock"] for server in ("reuse", "exact")]
        reuse, exact = (f"{ratio(one['ratio'])}{interval(one['interval'])}" for one in found)
        return f"`reuse` answers {reuse} times as many turns a second as stock vLLM, and `exact` {exact} times."

    def edits(reports: Reports) -> str:
        row = reports[name]["rows"][0]
        return (
            f"Of {row['num_turns']} turns {row['num_edits']} edit. Answers have {reports[name]['max_tokens']} tokens."
        )

    return PageSection(
        title,
        "How many turns a second does a server answer, where a quarter to a third of them edit?",
        f"acmserve bench trace --at-defaults {load} {_FLAGS}",
        "All turns answered. No prompt above the budget. Receipts add up.",
        (name,),
        (page_table(SERVERS, name), page_table(WAITS, name)),
        (edits, "In bfloat16 stock is not always the same as itself. So answers that differ are counted alone."),
        is_optional=True,
        answer=answer,
        group=_GROUP,
    )


LOADS = tuple(_section(name, *about) for name, about in _LOADS.items())
