"""The report of `bench precompute`: JSON-ready, and the tables that people read."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from typing import Any

from acmserve.bench.agent.conversation import MAX_TOKENS, ConversationRun
from acmserve.bench.agent.pause import TOOL_SECONDS, describe_waits
from acmserve.bench.agent.result_table import Report, ResultTable
from acmserve.bench.agent.scripted_agent import Trace
from acmserve.bench.harness.markdown_text import MET, MISSED, count, interval, milliseconds, ratio, seconds, share
from acmserve.bench.harness.options import as_gate
from acmserve.bench.models.witness import Agreement
from acmserve.bench.precompute.bars import judge_rounds, waiting_bound, waiting_by_prompt
from acmserve.bench.precompute.runs import BUDGET, CWL, EDITS, EXACT, PREDICT, REUSE, STOCK, conditions_of
from acmserve.bench.precompute.turn_statistics import compare_ordinary_turns, judge_turns
from acmserve.bench.provenance.machine_use import joined_use

_COLUMNS = ("seconds", "prompt_tokens", "computed_tokens", "precomputed_tokens", "evicted_tokens", "follows_pause")
_PROMPTS = {"same": "the same prompt", "other": "another prompt"}
TITLES = {
    PREDICT: "`exact`, precompute `predict`",
    EXACT: "`exact`",
    "auto": "`auto`",
    REUSE: "`reuse`",
    STOCK: "stock vLLM",
}


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
        "pauses": describe_waits(TOOL_SECONDS),
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


def as_rounds_report(about: Mapping[str, Any], rounds: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """JSON-ready. No numbers where a round failed. A run that was gone on with has the use of all its rounds."""
    failures = [failure for one in rounds for failure in one["failures"]]
    uses = [one["use"] for one in rounds if "use" in one]
    return {
        "gate": as_gate(failures),
        "rounds_of": dict(about),
        **conditions_of(about["policy"]),
        **judge_report([] if failures else rounds),
        "rounds": [] if failures else list(rounds),
        **({"use": joined_use(uses)} if uses else {}),
    }


def judge_report(rounds: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """What rounds come to, JSON-ready. A recorded result is judged anew by it. Nothing of no round."""
    if not rounds:
        return {"bars": [], "waiting_bound": None, "waiting_by_prompt": {}}
    bars = [bar.as_dict() for bar in judge_rounds(rounds)]
    return {"bars": bars, "waiting_bound": waiting_bound(rounds), "waiting_by_prompt": waiting_by_prompt(rounds)}


def spent_and_saved(rounds: Sequence[Mapping[str, Any]]) -> tuple[float, float]:
    """Seconds that the engine worked ahead, and seconds that all waiting was shorter, of these rounds together."""
    spent = sum(one["runs"][PREDICT]["counters"].get("precomputed_seconds", 0.0) for one in rounds)
    on, off = (_waited(rounds, name) for name in (PREDICT, EXACT))
    return spent, off - on


def precomputed_counts(rounds: Sequence[Mapping[str, Any]]) -> dict[str, float | None]:
    """What became of precomputed tokens, of these rounds together. None where a count is missing in one of them.

    `left` are some of the wasted ones. `held` are neither used nor wasted: they are still in the cache at the end.
    """
    counters = [one["runs"][PREDICT]["counters"] for one in rounds]

    def counted(name: str) -> float | None:
        counts = [counter.get(f"precomputed_{name}tokens") for counter in counters]
        return None if None in counts else math.fsum(counts)

    computed, used, wasted = (counted(name) for name in ("", "used_", "wasted_"))
    held = None if computed is None or used is None or wasted is None else computed - used - wasted
    return {"computed": computed, "used": used, "wasted": wasted, "left": counted("left_"), "held": held}


def _waited(rounds: Sequence[Mapping[str, Any]], name: str) -> float:
    return math.fsum(math.fsum(one["runs"][name]["turns"]["seconds"]) for one in rounds)


def _bars(report: Report) -> Iterator[list[str]]:
    for bar in report["bars"]:
        value = "" if bar["value"] is None else f"{ratio(bar['value'])}{interval(bar['interval'])}"
        met = MET if bar["is_met"] else MISSED if bar["num_turns"] else "no such turn"
        yield [f"`{report['rounds_of']['policy']}`", bar["what"], str(bar["num_turns"]), value, ratio(bar["bar"]), met]
    for name, found in report["waiting_by_prompt"].items():
        if found["num_turns"]:
            what = f"all waiting, turns with {_PROMPTS[name]}"
            value = f"{ratio(found['value'])}{interval(found['interval'])}"
            yield [f"`{report['rounds_of']['policy']}`", what, str(found["num_turns"]), value, "", "a part"]
    if report["waiting_bound"] is not None:
        what = "all waiting, were each edited turn an append"
        yield [f"`{report['rounds_of']['policy']}`", what, "", ratio(report["waiting_bound"]), "", "the bound"]


def _rounds(report: Report) -> Iterator[list[str]]:
    """Each round, and all of them together."""
    rounds = report["rounds"]
    for some in ([one] for one in rounds):
        first = "with" if some[0]["order"][0] == PREDICT else "without"
        yield _round_cells(report, str(some[0]["number"]), first, some)
    yield _round_cells(report, "all", "", rounds)


def _round_cells(report: Report, number: str, first: str, rounds: Sequence[Mapping[str, Any]]) -> list[str]:
    edits = sum(bool(evicted) for one in rounds for evicted in one["runs"][PREDICT]["turns"]["evicted_tokens"])
    tokens = ["" if num is None else f"{num:,.0f}" for num in precomputed_counts(rounds).values()]
    times = (*spent_and_saved(rounds), *(_waited(rounds, name) for name in (PREDICT, EXACT)))
    return [f"`{report['rounds_of']['policy']}`", number, first, str(edits), *tokens, *map(seconds, times)]


def _evictions(report: Report) -> Iterator[list[str]]:
    for run in report["runs"]:
        over, new = run["eviction_over_append"], run["eviction_new_tokens"]
        cells = [count(new["median"]), ratio(over["median"]), ratio(over["p90"])] if over and new else ["", "", ""]
        total = seconds(sum(run["turns"]["seconds"]))
        yield [f"`{report['policy']}`", TITLES[run["name"]], str(run["num_evictions"]), *cells, total]


def _ordinary(report: Report) -> Iterator[list[str]]:
    if turns := report["ordinary_turns"]:
        median = f"{ratio(turns['median_ratio'])}{interval(turns['interval'])}"
        cells = [str(turns["num_turns"]), median, share(turns["slower_share"])]
        yield [f"`{report['policy']}`", *cells, milliseconds(turns["mean_extra_seconds"])]


def _agreement(report: Report) -> Iterator[list[str]]:
    if agreed := report["agreement_with_stock"]:
        yield [f"{agreed[name]:,}" for name in ("num_tokens", "num_different", "num_ties")]


BARS = ResultTable(
    ("policy", "precompute on against off", "turns", "seen", "at most", "bar"),
    _bars,
    "An ordinary turn meets its bar by the end of its 95 % interval, the others by what was seen. "
    "Intervals are Student's, over rounds.",
)
ROUNDS = ResultTable(
    (
        "policy",
        "round",
        "first",
        "edited turns",
        "precomputed tokens",
        "used",
        "wasted",
        "left, of the wasted",
        "still cached",
        "engine's work",
        "saved",
        "all waiting with",
        "without",
    ),
    _rounds,
    "Each round is another part of the conversation, with pauses of its own. A step that ended early left its tokens. "
    "What was neither used nor wasted was still in the cache at the end.",
)
EVICTIONS = ResultTable(
    (
        "policy",
        "run",
        "evictions",
        "new tokens at an eviction",
        "first token over an append, median",
        "p90",
        "all first tokens",
    ),
    _evictions,
)
ORDINARY = ResultTable(
    ("policy", "ordinary turns", "`predict` over `exact`, median", "slower", "mean difference"),
    _ordinary,
    "What precompute costs the turns between evictions: the same turns under `predict` and under `exact`. "
    "The interval is over turns of one conversation, and knows nothing of how conversations differ.",
)
AGREEMENT = ResultTable(("tokens", "others than stock's", "too near to tell apart"), _agreement)
