"""Sections about whole conversations: context tools, budgets, traces and context maps."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence

from acmserve.bench.agent.result_table import Report
from acmserve.bench.budget.costs import COMPACTION, COSTS
from acmserve.bench.budget.main import TREATMENTS
from acmserve.bench.harness.llama_cpp import OWN_DEFAULTS
from acmserve.bench.map.main import WAYS
from acmserve.bench.report.page_section import PageSection, Reports, page_table
from acmserve.bench.report.sections.loads import pauses_told
from acmserve.bench.sculptor.commits import FOLDS
from acmserve.bench.sculptor.main import CONVERSATIONS
from acmserve.bench.sweep.cwl_claims import budget_claims, prices_told, range_told, summary_sizes, sweep_costs
from acmserve.bench.trace.table import COUNTS, REPEATS, SERVERS, SESSIONS, WAITS

_REPLAYED = "Whole conversations, recorded agents, and a full pool"
_GROUP = "What tools, waiting edits, budgets and maps compute, in tokens"
HYBRID_RESULTS = {"budget-windows": "windows", "budget-recurrent": "recurrent state"}
"""Results of `bench budget --model`, and what such a model has."""
SWEPT = ("sweep", "sweep-real")


def _rates(reports: Reports) -> str:
    rates = {(row["policy"], row["server"]): row["turns_per_second"]["median"] for row in reports["trace"]["rows"]}
    (rare, often), stock = ([rates[policy, name] for policy in ("cwl", "recency@1")] for name in ("reuse", "stock"))
    return (
        f"With rare edits `reuse` answers {rare:.2f} turns a second and stock vLLM {stock[0]:.2f}. "
        f"With more of them it is {often:.2f} and {stock[1]:.2f}."
    )


def _replayed(reports: Reports) -> str:
    """Files of older runs say no repetitions. They had one."""
    report = reports["trace"]
    row = next(row for row in report["rows"] if row["policy"] == "cwl")
    counts = (("turn", row["num_turns"]), ("repetition", report.get("repetitions", 1)), ("edit", row["num_edits"]))
    told = ", ".join(f"{number} {what}{'s' * (number != 1)}" for what, number in counts)
    few = "" if "repetitions" in report else " Read differences of a few per cent as none."
    return f"{told} under CWL.{few}{pauses_told(report)}"


def _peers(reports: Reports) -> str:
    """Older runs had no server at its own defaults, and switched the store of the other one off."""
    has_store = any(row["server"] == OWN_DEFAULTS.name for row in reports["trace"]["rows"])
    store = "had its store in host memory" if has_store else "ran with `--cache-ram 0`"
    return f"llama.cpp {store} on the 4-bit file, the others in float32."


def _real(reports: Reports) -> str:
    """Over all policies, of all turns and of those that edit."""
    rows = reports["trace-real"]["rows"]
    whole, edited = (
        {
            server: sum(_computed_in(row, only_edited=only) for row in rows if row["server"] == server)
            for server in names
        }
        for only, names in ((False, ("stock", "exact", "auto", "reuse")), (True, ("stock", "reuse")))
    )
    return (
        f"Under four policies stock vLLM computes {whole['stock']:,} tokens, `exact` {whole['exact']:,}, "
        f"{_auto(whole['auto'])}and `reuse` {whole['reuse']:,}, which is "
        f"{whole['stock'] / whole['reuse']:.2f} times fewer than stock. In the turns that edit it is "
        f"{edited['reuse']:,} instead of {edited['stock']:,}. Most tokens are new, whatever a cache does."
    )


def _computed_in(row: Report, *, only_edited: bool) -> int:
    pairs = (pair for one in row["turns"] for pair in zip(one["computed_tokens"], one["is_edited"], strict=True))
    return sum(computed for computed, is_edited in pairs if is_edited or not only_edited)


def _pool(reports: Reports) -> str:
    report = reports["trace-pool"]
    stock, exact, auto, reuse = (
        sum(row["computed_tokens"] for row in report["rows"] if row["server"] == server)
        for server in ("stock", "exact", "auto", "reuse")
    )
    return (
        f"With room for {report['pool_tokens']:,} tokens stock vLLM computes {stock:,} tokens, `exact` {exact:,}, "
        f"{_auto(auto)}and `reuse` {reuse:,}."
    )


def _auto(computed: int) -> str:
    """Files of older runs have no `auto`, so its sum is 0."""
    return f"`auto` {computed:,}, " if computed else ""


def _fallbacks(name: str) -> Callable[[Reports], str]:
    """Of one file: the reasons of its receipts."""

    def told(reports: Reports) -> str:
        rows = [row for row in reports[name]["rows"] if row["server"] == "reuse"]
        found: Counter[str] = sum((Counter(row["fallbacks"]) for row in rows), Counter())
        reasons = ", ".join(f"`{reason}` {num}" for reason, num in found.most_common())
        num_turns = sum(row["num_turns"] for row in rows)
        return f"Turns of {num_turns} in which `reuse` moved less than it could: {reasons or 'none'}."

    return told


def _waited(reports: Reports) -> str:
    now, cheapest = (_of(reports["commits"]["rows"], "way", way)["computed_tokens"] for way in ("now", "cheapest"))
    return f"One a step, they compute {now:,} tokens where each takes effect at once, and {cheapest:,} where they wait."


def _budget(reports: Reports) -> str:
    rows = {row["name"]: row for row in reports["budget"]["runs"]}
    none, batched, recency = (rows[name]["total_computed_tokens"] for name in ("uncapped", "cwl-batched", "recency"))
    return (
        f"Without a budget {none:,} tokens are computed. Under `exact` it is {batched:,} with CWL in batches and "
        f"{recency:,} with oldest first. {budget_claims(reports['budget'])}"
    )


def _summaries_written(reports: Reports) -> str:
    """How long the summaries are, which decides what they cost."""
    row = _of(reports["budget"]["runs"], "name", COMPACTION)
    mean = row["summary_completion_tokens"] / row["num_summaries"]
    return f"A summary has {mean:,.0f} tokens on average, of other text: no model has summarized anything."


def _why_compaction_differs(reports: Reports) -> str:
    """Why long sessions say another thing of compaction, and at which prices both do."""
    report = reports["budget"]
    swept = [one for name in SWEPT for size in summary_sizes(reports[name]) for one in sweep_costs(reports[name], size)]
    prompts, summaries = (
        _of(report["runs"], "name", name)["total_prompt_tokens"] for name in ("cwl-batched", COMPACTION)
    )
    return (
        "In long sessions of [tasks](#many-tasks-in-one-session) and [agents](#real-agents-in-one-session) CWL costs "
        f"{range_told(swept)} than a summary. "
        "Beside that summary only the first and the last step stay. "
        f"Here one leaves as much as CWL: all prompts have {summaries:,} tokens, and {prompts:,} with CWL. "
        f"{prices_told(report)}"
    )


def _hybrid(reports: Reports) -> str:
    """Each row beside the run without boundaries, evicting in its own way, and batches beside one at a time, too."""
    told = []
    for name, kind in HYBRID_RESULTS.items():
        kept, without = (_computed(reports[name], f"cwl-single{end}") for end in ("", "-without"))
        moves, batches = (_computed(reports[name], f"cwl-{end}") for end in ("single-moves", "moves"))
        told.append(
            f"With {kind} it is {kept:,} tokens, and {without:,} without boundaries. With moves it is {moves:,}, "
            f"{without / moves:.2f} times fewer. Batches with moves compute {batches:,} tokens. That is "
            f"{without / batches:.2f} times fewer than one at a time without boundaries, and "
            f"{times_fewer(reports[name]):.2f} times fewer than batches without."
        )
    return (
        f"Evictions one at a time compute {_computed(reports['budget'], 'cwl-single'):,} tokens on full attention. "
        f"{' '.join(told)} The goal was five times fewer than stock, whether that evicts one at a time or in batches. "
        "Under `exact` what stands behind an edit is computed on any model."
    )


def times_fewer(report: Report) -> float:
    """How many times fewer tokens batches with moves compute than batches without boundaries: like with like."""
    return _computed(report, "cwl-batched-without") / _computed(report, "cwl-moves")


def _computed(report: Report, name: str) -> int:
    return int(_of(report["runs"], "name", name)["total_computed_tokens"])


def _map(reports: Reports) -> str:
    runs = reports["map"]["runs"]
    without, with_map = _of(runs, "name", "none-exact"), _of(runs, "name", "exact")
    updates = with_map["update_prompt_tokens"] + with_map["update_completion_tokens"]
    return (
        f"Under `exact` the agent computes {with_map['total_computed_tokens']:,} tokens instead of "
        f"{without['total_computed_tokens']:,}. The updates read and write {updates:,}, "
        "more than that saves."
    )


def _of(rows: Sequence[Report], key: str, name: str) -> Report:
    """The row of that name."""
    (row,) = (row for row in rows if row[key] == name)
    return row


AGENTS = (
    PageSection(
        "Whole conversations",
        "How many turns a second does a server answer when an agent's client edits under a budget of 6,000 tokens?",
        "acmserve bench trace --policies cwl,recency@1 --turns 12 --against exact,reuse,stock,llamacpp,"
        "llamacpp@defaults",
        "All turns answered. No prompt above the budget. Receipts add up. `exact` sampled stock's tokens.",
        ("trace",),
        (page_table(SERVERS, "trace"), page_table(WAITS, "trace")),
        (
            _replayed,
            "The evicting turn under CWL brought many new tokens itself, so a move saves little there.",
            _peers,
        ),
        answer=_rates,
        group=_REPLAYED,
    ),
    PageSection(
        "Real agents",
        "Which tokens does a server compute, when eight recorded agents edit at half of their length?",
        "acmserve bench trace --model tiny --traces agentperf --policies clear_tool_uses,cwl,recency,compaction "
        "--turns 0 --against exact,auto,reuse,stock --answer-tokens 4 --repetitions 1",
        "As above, with a random model of one layer.",
        ("trace-real",),
        (page_table(COUNTS, "trace-real"), page_table(SESSIONS, "trace-real"), page_table(REPEATS, "trace-real")),
        (
            "The conversations are those of the PyPI package agentperf-local, in full text. None of it is here.",
            "A budget allows half of what a conversation grows by, or its longest step and a summary.",
            "An eviction in batches leaves three tenths of that growth.",
            "Three of the agents end each prompt in a message that the next one leaves out. That is no edit here.",
            "Agents that mark no episodes: those of CWL are inferred. Of a summary the words are made up.",
            _fallbacks("trace-real"),
        ),
        is_optional=True,
        group=_REPLAYED,
        answer=_real,
    ),
    PageSection(
        "A full pool",
        "What does a server compute, where four sessions leave little room for KV that nobody shows any more?",
        "acmserve bench trace --model tiny --concurrency 4 --pool-tokens 28000 --policies clear_tool_uses,cwl,recency "
        "--against exact,auto,reuse,stock --answer-tokens 4 --repetitions 1",
        "As above, with a random model of one layer.",
        ("trace-pool",),
        (page_table(COUNTS, "trace-pool"), page_table(REPEATS, "trace-pool")),
        ("Each session shows at most 6,000 tokens, and all four run at a time.", _fallbacks("trace-pool")),
        is_optional=True,
        group=_REPLAYED,
        answer=_pool,
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
        answer="A fold leaves a shorter context, and computes what stands behind it once.",
        group=_GROUP,
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
        answer=_waited,
        group=_GROUP,
    ),
    PageSection(
        "Budgets",
        "How many tokens does a budget cost over a conversation of 212 turns?",
        "acmserve bench budget",
        "No prompt above the budget. No call without its result. Receipts add up. One trace for all runs. "
        "Compaction computes less than 80 % more than no budget, and each summary at most 200 tokens.",
        ("budget", *SWEPT),
        (page_table(TREATMENTS, "budget"), page_table(COSTS, "budget")),
        (
            "Summaries are asked for behind the conversation itself. Their column has what was computed and sampled.",
            "So the row of compaction counts sampled tokens, too. The other rows count none.",
            _summaries_written,
            _why_compaction_differs,
            "A tiny model with SmolLM2's tokenizer, its words scripted: only tokens are measured.",
        ),
        answer=_budget,
        group=_GROUP,
    ),
    PageSection(
        "Budgets on hybrid models",
        "What do boundaries keep on models with windows or recurrent state, over the same conversation?",
        "acmserve bench budget --model tiny-windows",
        "Runs with boundaries and without have the same prompts. None computes more with them.",
        ("budget", *HYBRID_RESULTS),
        tuple(page_table(TREATMENTS, name, caption=f"A model with {kind}:") for name, kind in HYBRID_RESULTS.items()),
        ("vLLM keeps the end of each prompt, and whole turns are evicted. So many evictions begin where it kept.",),
        answer=_hybrid,
        is_optional=True,
        group=_GROUP,
    ),
    PageSection(
        "Context maps",
        "What does a context map save over sixteen questions about one corpus, and what do its updates cost?",
        "acmserve bench map",
        "Receipts add up. Every answer of the scripted agent is right.",
        ("map",),
        (page_table(WAYS, "map"),),
        ("Agent, Distiller and Cartographer are scripted: tokens are measured, not wits.",),
        answer=_map,
        group=_GROUP,
    ),
)
