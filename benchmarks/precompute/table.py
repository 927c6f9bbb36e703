"""The report of `bench precompute`: JSON-ready, and the table that people read."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from acmserve.bench.agent.conversation import MAX_TOKENS, ConversationRun
from acmserve.bench.agent.pause import TOOL_SECONDS
from acmserve.bench.agent.scripted_agent import Trace
from acmserve.bench.agent.text_table import text_table
from acmserve.bench.harness.options import as_gate, red_gate
from acmserve.bench.models.witnessed_model import Agreement
from acmserve.bench.precompute.runs import BUDGET, CWL, EDITS, EXACT, PREDICT
from acmserve.bench.precompute.turn_statistics import compare_ordinary_turns, judge_turns

_COLUMNS = ("seconds", "prompt_tokens", "computed_tokens", "precomputed_tokens", "evicted_tokens", "follows_pause")
_HEADS = (
    "",
    "evictions",
    "candidates",
    "ready",
    "after an eviction",
    "append",
    "/ append",
    "new",
    "old",
    "used",
    "all",
)


def as_report(
    model: str, policy: str, trace: Trace, runs: Sequence[ConversationRun], agreed: Agreement | None
) -> dict[str, Any]:
    """JSON-ready. No numbers where something failed."""
    failures = [failure for run in runs for failure in run.failures]
    if agreed is not None and agreed.num_different > agreed.num_ties:
        wrong = agreed.num_different - agreed.num_ties
        failures.append(f"{PREDICT}: {wrong} of {agreed.num_tokens} tokens are not stock's")
    rows = [] if failures else [_row(run) for run in runs]
    return {
        "gate": as_gate(failures),
        "model": model,
        "policy": policy,
        "max_tokens": MAX_TOKENS,
        "rules": BUDGET if policy == CWL else {"edits": EDITS},
        "tool_seconds": list(TOOL_SECONDS),
        "trace": {"num_turns": trace.num_turns, "digest": trace.digest},
        "agreement_with_stock": None if agreed is None else asdict(agreed),
        "ordinary_turns": ordinary_turns(rows),
        "runs": rows,
    }


def _row(run: ConversationRun) -> dict[str, Any]:
    computed = run.counters.get("precomputed_tokens", 0)
    columns = run.columns()
    turns = {name: columns[name] for name in _COLUMNS}
    head = {
        "name": run.name,
        "counters": run.counters,
        "precomputed_used_share": run.counters["precomputed_used_tokens"] / computed if computed else None,
    }
    return head | judge_turns(turns) | {"turns": turns}


def ordinary_turns(rows: Sequence[Mapping[str, Any]]) -> dict[str, Any] | None:
    """What precompute costs turns that bring nothing but an append: `predict` over `exact`, turn by turn."""
    turns = {row["name"]: row["turns"] for row in rows}
    return compare_ordinary_turns(turns[PREDICT], turns[EXACT]) if {PREDICT, EXACT} <= set(turns) else None


def as_table(report: dict[str, Any]) -> list[str]:
    """What people read. Nothing but the reasons where something failed."""
    if red := red_gate(report):
        return red
    low, high = report["tool_seconds"]
    agreed, ordinary = report["agreement_with_stock"], report["ordinary_turns"]
    cost = "Ordinary turns: no two to compare."
    if ordinary is not None:
        cost = (
            f"Ordinary turns (plain appends behind a pause), {PREDICT} over {EXACT}: {ordinary['median_ratio']:.3f} "
            f"times the seconds (median, 95 %: {ordinary['interval'][0]:.3f} to {ordinary['interval'][1]:.3f}, "
            f"{ordinary['num_turns']} turns)."
        )
    return [
        f"{report['policy']}, {report['trace']['num_turns']} turns, {low:g} to {high:g} s between them. Median, p90:",
        "",
        *text_table(_HEADS, [_cells(row) for row in report["runs"]]),
        "",
        cost,
        "Seconds to the first token; all: summed up over all turns. / append: over a plain append of as many tokens.",
        "candidates: evictions of which something was computed before. ready: all but what the turn brings.",
        "new, old: tokens that the turn brings, and that it computes again. used: of the precomputed tokens; a plan",
        "that is still kept at the end counts as unused.",
        f"Of {agreed['num_tokens']:,} tokens {agreed['num_different']} would have been others than the stock engine's,",
        f"{agreed['num_ties']} of them too near to tell apart.",
    ]


def _cells(row: Mapping[str, Any]) -> list[str]:
    used = row["precomputed_used_share"]
    return [
        row["name"],
        *(str(row[name]) for name in ("num_evictions", "num_candidates", "num_ready")),
        _pair(row["eviction_seconds"], ".2f", " s"),
        _pair(row["plain_seconds"], ".2f", " s"),
        _pair(row["eviction_over_append"], ".2f", "x"),
        _pair(row["eviction_new_tokens"], ",.0f"),
        _pair(row["eviction_old_tokens"], ",.0f"),
        "-" if used is None else f"{used:.0%}",
        f"{row['total_seconds']:.1f} s",
    ]


def _pair(spread: Mapping[str, float] | None, form: str, unit: str = "") -> str:
    return "-" if spread is None else f"{spread['median']:{form}}{unit}, {spread['p90']:{form}}{unit}"
