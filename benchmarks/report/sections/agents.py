"""Sections about whole conversations: context tools, budgets, traces and context maps."""

from __future__ import annotations

from acmserve.bench.budget.costs import COSTS
from acmserve.bench.budget.main import TREATMENTS
from acmserve.bench.map.main import WAYS
from acmserve.bench.report.page_section import PageSection, page_table
from acmserve.bench.sculptor.commits import FOLDS
from acmserve.bench.sculptor.main import CONVERSATIONS
from acmserve.bench.trace.table import SERVERS

AGENTS = (
    PageSection(
        "Whole conversations",
        "How many turns a second does a server answer when an agent's client edits under a budget of 6,000 tokens?",
        "acmserve bench trace --policies cwl,recency@1 --against exact,reuse,stock,noprefix,llamacpp --turns 12 "
        "--repetitions 1",
        "All turns answered. No prompt above the budget. Receipts add up. `exact` sampled stock's tokens.",
        ("trace",),
        (page_table(SERVERS, "trace"),),
        (
            "12 turns, one repetition, and one eviction under CWL: read differences of a few per cent as none.",
            "The evicting turn under CWL brought many new tokens itself, so a move saves little there.",
            "llama.cpp ran with `--cache-ram 0` on the 4-bit file, the others in float32.",
        ),
    ),
    PageSection(
        "Context tools",
        "What do the tools of the Sculptor paper save, and what do they cost?",
        "acmserve bench sculptor",
        "Searches computed only what they appended. Folds moved the text behind them in one piece. Receipts add up.",
        ("sculptor",),
        (page_table(CONVERSATIONS, "sculptor"),),
        (
            "A switched-off cache is no baseline that anybody would use. A column of stock prefix caching is missing.",
            "The model's words are scripted. `reuse` stands there for its cost only, not for its answers.",
        ),
    ),
    PageSection(
        "Edits that wait",
        "What do the eight folds of PI-LLM cost, by when they take effect?",
        "acmserve bench commits",
        "All ways made the same folds. Those that wait cost at most a fifth more than all at once. Receipts add up.",
        ("commits",),
        (page_table(FOLDS, "commits"),),
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
        (page_table(TREATMENTS, "budget"), page_table(COSTS, "budget")),
        (
            "Summaries are asked for behind the conversation itself. Their column has what was computed and sampled.",
            "So the row of compaction counts sampled tokens, too. The other rows count none.",
            "A tiny model with SmolLM2's tokenizer, its words scripted: only tokens are measured.",
            "CWL's paper tells 20 to 70 % less than its baseline, and 23 % less than compaction.",
        ),
    ),
    PageSection(
        "Context maps",
        "What does a context map save over sixteen questions about one corpus, and what do its updates cost?",
        "acmserve bench map",
        "Receipts add up. Every answer of the scripted agent is right.",
        ("map",),
        (page_table(WAYS, "map"),),
        ("Agent, Distiller and Cartographer are scripted: tokens are measured, not wits.",),
    ),
)
