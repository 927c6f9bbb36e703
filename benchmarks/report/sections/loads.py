"""Sections about several sessions beside stock vLLM, in turns and in sessions that arrive by chance.

Each stands on the page once its load was run. What `auto` computes there is counted apart, on a model of one layer.
"""

from __future__ import annotations

from acmserve.bench.agent.result_table import Report
from acmserve.bench.harness.markdown_text import interval, ratio
from acmserve.bench.report.page_section import PageSection, Reports, page_table
from acmserve.bench.trace.table import AUTO_COUNTS, SERVERS, WAITS

_GROUP = "Several sessions, and sessions that arrive by chance, at vLLM's own defaults"
_LOADS = {
    "trace-4": (
        "Four sessions at a time",
        "--concurrency 4 --policies recency@1 --turns 12 --against exact,auto,reuse,stock",
    ),
    "trace-16": (
        "Sixteen sessions at a time",
        "--concurrency 16 --policies recency@1 --turns 5 --against exact,reuse,stock",
    ),
    "trace-open": (
        "Sessions that arrive by chance",
        "--concurrency 8 --arrivals 3 --policies recency@1 --turns 12 --against exact,reuse,stock",
    ),
}
_MOST_COMPUTED = 1.15
"""The bar of `auto`: tokens computed over those that are new in the conversation."""


def _section(name: str, title: str, load: str) -> PageSection:
    def answer(reports: Reports) -> str:
        rows = {row["server"]: row for row in reports[name]["rows"]}
        auto = f"`auto` {_rate(rows['auto'])} times, " if "auto" in rows else ""
        return (
            f"`reuse` answers {_rate(rows['reuse'])} times as many turns a second as stock vLLM, {auto}"
            f"and `exact` {_rate(rows['exact'])} times."
        )

    def edits(reports: Reports) -> str:
        row = reports[name]["rows"][0]
        return (
            f"Of {row['num_turns']} turns {row['num_edits']} edit. Answers have {reports[name]['max_tokens']} tokens."
        )

    return PageSection(
        title,
        "How many turns a second does a server answer, where a quarter to a third of them edit?",
        f"acmserve bench trace --at-defaults {load}",
        "All turns answered. No prompt above the budget. Receipts add up.",
        (name,),
        (page_table(SERVERS, name), page_table(WAITS, name)),
        (edits, "In bfloat16 stock is not always the same as itself. So answers that differ are counted alone."),
        is_optional=True,
        answer=answer,
        group=_GROUP,
    )


def _rate(row: Report) -> str:
    """Turns a second beside stock, with the interval."""
    return f"{ratio(row['rate_beside_stock']['ratio'])}{interval(row['rate_beside_stock']['interval'])}"


def _computed(reports: Reports) -> str:
    """Without an edit `exact` computes what is new, and nothing else."""
    computed = {(row["policy"], row["server"]): row["computed_tokens"] for row in reports["trace-auto"]["rows"]}
    new = computed["none", "exact"]
    told = [
        f"{ratio(computed[policy, 'auto'] / new)} times as many {how}, where stock computes "
        f"{ratio(computed[policy, 'stock'] / new)}"
        for policy, how in (("clear_tool_uses", "with clearing"), ("recency@1", "with a third of the turns edited"))
    ]
    return f"Of {new:,} tokens that are new `auto` computes {told[0]}. It is {told[1]}. The bar is {_MOST_COMPUTED}."


_AUTO = PageSection(
    "What `auto` computes",
    "How many tokens does `auto` compute beyond those that are new, with four sessions at a time?",
    "acmserve bench trace --model tiny --concurrency 4 --policies none,clear_tool_uses,recency@1 "
    "--against exact,auto,reuse,stock --answer-tokens 4 --repetitions 1",
    "All turns answered. No prompt above the budget. Receipts add up.",
    ("trace-auto",),
    (page_table(AUTO_COUNTS, "trace-auto"),),
    ("Echoes are found in token ids, so a random model of one layer counts the same.",),
    is_optional=True,
    answer=_computed,
    group=_GROUP,
)
LOADS = (*(_section(name, *about) for name, about in _LOADS.items()), _AUTO)
