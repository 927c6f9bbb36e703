"""Sections about whole conversations: context tools, budgets, traces and context maps."""

from __future__ import annotations

from collections.abc import Iterator

from acmserve.bench.report.markdown_text import count, ratio, seconds, share
from acmserve.bench.report.page_section import PageSection, PageTable, Report, Reports

_SERVERS = {
    "reuse": "acmserve, `reuse`",
    "exact": "acmserve, `exact`",
    "stock": "vLLM with prefix caching",
    "llamacpp": "llama.cpp with `--cache-reuse`",
    "noprefix": "vLLM with its cache switched off",
}
_COMMITS = {
    "at once": "eight in one completion",
    "now": "one a step, `acm.commit: now`",
    "cheapest": "one a step, `acm.commit: cheapest`",
}
_TRACE_POLICIES = {"cwl": "CWL in batches", "recency@1": "oldest first, whenever it is full"}


def _trace(reports: Reports) -> Iterator[list[str]]:
    rows = {(row["policy"], row["server"]): row for row in reports["trace"]["rows"]}
    for policy, title in _TRACE_POLICIES.items():
        for server, name in _SERVERS.items():
            row = rows[policy, server]
            after = seconds(row["first_token_seconds_after_edit"]["p50"])
            rate = ratio(row["turns_per_second"]["median"])
            yield [title, name, rate, count(row["computed_tokens"]), str(row["num_edits"]), after]


def _sculptor(reports: Reports) -> Iterator[list[str]]:
    for row in reports["sculptor"]["rows"]:
        tokens = [count(row[name]) for name in ("tokens_before", "tokens_after", "computed_tokens", "uncached_tokens")]
        answer = row["seconds_to_answer"]
        yield [row["workload"], f"`{row['fidelity']}`", *tokens, seconds(sum(answer) / len(answer))]


def _commits(reports: Reports) -> Iterator[list[str]]:
    rows = {row["way"]: row for row in reports["commits"]["rows"]}
    for way, title in _COMMITS.items():
        row = rows[way]
        steps, follow_up, together = (
            sum(row["step_computed_tokens"]),
            row["next_turn_computed_tokens"],
            row["computed_tokens"],
        )
        beside = ratio(together / rows["at once"]["computed_tokens"])
        yield [title, str(row["num_steps"]), count(steps), count(follow_up), count(together), beside]


def computed_with_summaries(run: Report) -> int:
    """Tokens that one run of `bench budget` computed, the prompts and texts of its summaries included."""
    return int(run["total_computed_tokens"]) + summary_tokens(run)


def summary_tokens(run: Report) -> int:
    """Tokens that were computed and written for summaries in one run of `bench budget`."""
    return int(run["summary_computed_tokens"] + run["summary_completion_tokens"])


def _budget(reports: Reports) -> Iterator[list[str]]:
    runs = reports["budget"]["runs"]
    base = computed_with_summaries(runs[0])
    for run in runs:
        computed = computed_with_summaries(run)
        more = "" if run is runs[0] else share(computed / base - 1)
        summaries = count(summary_tokens(run))
        cells = [count(run["max_prompt_tokens"]), str(run["num_evictions"]), count(computed), summaries, more]
        yield [run["title"], *cells]


def _map(reports: Reports) -> Iterator[list[str]]:
    for run in reports["map"]["runs"]:
        tokens = [count(run[name]) for name in ("total_prompt_tokens", "total_computed_tokens", "total_moved_tokens")]
        updates = count(run["update_prompt_tokens"] + run["update_completion_tokens"])
        yield [run["title"], str(run["num_iterations"]), *tokens, updates]


AGENTS = (
    PageSection(
        "Whole conversations",
        "How many turns a second does a server answer when an agent's client edits under a budget of 6,000 tokens?",
        "acmserve bench trace --policies cwl,recency@1 --against exact,reuse,stock,noprefix,llamacpp --turns 12 "
        "--repetitions 1",
        "All turns answered. No prompt above the budget. Receipts add up. `exact` sampled stock's tokens.",
        ("trace",),
        (
            PageTable(
                (
                    "policy of the client",
                    "server",
                    "turns a second",
                    "tokens computed",
                    "edits",
                    "first token after an edit, median",
                ),
                _trace,
            ),
        ),
        (
            "12 turns, one repetition, and one eviction under CWL: read differences of a few per cent as none.",
            "The evicting turn under CWL brought many new tokens itself, so a move saves little there.",
            "llama.cpp ran with `--cache-ram 0` on the 4-bit file, the others in float32.",
        ),
        "trace.png",
    ),
    PageSection(
        "Context tools",
        "What do the tools of the Sculptor paper save, and what do they cost?",
        "acmserve bench sculptor",
        "Searches computed only what they appended. Folds moved the text behind them in one piece. Receipts add up.",
        ("sculptor",),
        (
            PageTable(
                (
                    "conversation",
                    "fidelity",
                    "context before",
                    "after",
                    "computed",
                    "with the cache switched off",
                    "first token after the edit",
                ),
                _sculptor,
            ),
        ),
        (
            "A switched-off cache is no baseline that anybody would use. A column of stock prefix caching is missing.",
            "The model's words are scripted. `reuse` stands there for its cost only, not for its answers.",
        ),
        "sculptor.png",
    ),
    PageSection(
        "Edits that wait",
        "What do the eight folds of PI-LLM cost, by when they take effect?",
        "acmserve bench commits",
        "All ways made the same folds. Those that wait cost at most a fifth more than all at once. Receipts add up.",
        ("commits",),
        (
            PageTable(
                ("folds", "steps", "computed by the steps", "by the next turn", "together", "beside all at once"),
                _commits,
            ),
        ),
        (
            "Tokens under `exact`. The first step, which reads the text, is left out. The next turn has what waited.",
            "A random model of one layer has the tokenizer of the bundled one. Nothing is timed.",
        ),
    ),
    PageSection(
        "Budgets",
        "How many tokens does a budget cost over a conversation of 212 turns?",
        "acmserve bench budget",
        "No prompt above the budget. No call without its result. Receipts add up. One trace for all runs.",
        ("budget",),
        (
            PageTable(
                (
                    "run",
                    "largest prompt",
                    "evictions",
                    "tokens computed",
                    "of these for summaries",
                    "more than without a budget",
                ),
                _budget,
            ),
        ),
        (
            "Summaries are asked for behind the conversation itself. Their column has what was computed and sampled.",
            "So the row of compaction counts sampled tokens, too. The other rows count none.",
            "A tiny model with SmolLM2's tokenizer, its words scripted: only tokens are measured.",
        ),
        "budget.png",
    ),
    PageSection(
        "Context maps",
        "What does a context map save over sixteen questions about one corpus, and what do its updates cost?",
        "acmserve bench map",
        "Receipts add up. Every answer of the scripted agent is right.",
        ("map",),
        (PageTable(("run", "iterations", "prompt tokens", "computed", "moved", "read and written by updates"), _map),),
        ("Agent, Distiller and Cartographer are scripted: tokens are measured, not wits.",),
        "map.png",
    ),
)
