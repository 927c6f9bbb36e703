"""What the records of `acmserve eval` come to, one row for each task and way. Pure numbers.

A mean is one of samples, and an interval is one of contexts: questions about one context are no independent cases.
Scores lie in [0, 1], so their intervals are Wilson's for bounded values. A difference is taken sample by sample to the
baseline of the way. Its interval is a bootstrap over contexts, or Student's where these are few. A refused sample
scores 0 and is counted, and so is an answer whose scorer failed.

With branches the rule of the Context-Folding paper is told: whether the main thread outgrew half of the context. The
reward of `acmserve export` has the same rule, and also counts what was written behind the last prompt.
"""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from acmserve.bench.agent.estimates import grouped_bounded_interval, grouped_mean_interval, grouped_student_interval
from acmserve.bench.eval.completion import Completion
from acmserve.bench.eval.prices import PriceRatios
from acmserve.bench.eval.terminal.repeats import add_counts
from acmserve.bench.eval.ways import BRANCHES, BY_TOOLS
from acmserve.training.process_reward import MAIN_SHARE

ALL = "all"
FLOOR = 0.05
"""A task that no way gets more right of than this tells nothing about ways."""
FEW_CONTEXTS = 12
"""Below as many a bootstrap over contexts holds the mean too rarely: in 88 of 100 draws of seven, and in 49 of two."""
Record = Mapping[str, Any]
GROUPED_TASKS = {"oolong": 2, "terminal": 1}
"""Tasks with several questions about one context: they are named `GROUP/QUESTION`, with so many slashes."""


def summarise(
    records: Sequence[Record], baselines: Mapping[str, str], prices: PriceRatios, context_limit: int | None = None
) -> list[dict[str, Any]]:
    """Rows in the order of the records, and at the end one for each way over all tasks.

    `baselines` has each way, in order, with the way that it is compared with. `context_limit` is in tokens.
    """
    tasks = list(dict.fromkeys(record["task"] for record in records))
    groups = [(task, [record for record in records if record["task"] == task]) for task in tasks]
    if len(tasks) > 1:
        groups.append((ALL, list(records)))
    rows = []
    for task, held in groups:
        by_way = {way: [record for record in held if record["way"] == way] for way in baselines}
        rows += [
            {
                **_row(task, way, by_way[way], by_way.get(baseline, []), prices),
                **_main_thread(way, by_way[way], context_limit),
            }
            for way, baseline in baselines.items()
            if by_way[way]
        ]
    return rows


def by_setting(records: Sequence[Record]) -> list[dict[str, Any]]:
    """One row for each task, setting and way, in the order of the records: the papers' tables."""
    groups: dict[tuple[str, str, str], list[Record]] = {}
    for record in records:
        groups.setdefault((record["task"], record["setting"], record["way"]), []).append(record)
    return [
        {"task": task, "setting": setting, "way": way, **_score(held)} for (task, setting, way), held in groups.items()
    ]


def num_unscored(records: Sequence[Record]) -> int:
    """Answers whose scorer failed. Older records tell none."""
    return sum(bool(record.get("unscored")) for record in records)


def number_told(num_samples: int, num_contexts: int | None) -> str:
    """`56 of 14 contexts` where a context has several questions, else `28`. Older reports do not know contexts."""
    if num_contexts in (None, num_samples):
        return str(num_samples)
    return f"{num_samples} of {num_contexts} context{'s' * (num_contexts != 1)}"


def at_the_floor(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """Tasks that the model cannot do in any way, in order."""
    best: dict[str, float] = {}
    for row in rows:
        best[row["task"]] = max(best.get(row["task"], 0.0), row["score"])
    return [task for task, score in best.items() if score <= FLOOR and task != ALL]


def _row(
    task: str, way: str, records: Sequence[Record], baseline: Sequence[Record], prices: PriceRatios
) -> dict[str, Any]:
    completions = [Completion(*counts) for record in records for counts in record["completions"]]
    updates = [record["update"] for record in records if record["update"] is not None]
    read, written = (sum(update[index] for update in updates) for index in (0, 1))
    cached = sum(record.get("update_cached", 0) for record in records)
    return {
        "task": task,
        "way": way,
        **_score(records),
        "num_refused": sum(bool(record["error"]) for record in records) - num_unscored(records),
        "num_unscored": num_unscored(records),
        "num_unmet": sum(record["unmet"] for record in records),
        "num_requests": len(completions),
        **_difference(records, baseline),
        **_reduction(records if way in BY_TOOLS else []),
        **{f"{name}_tokens": sum(getattr(one, name) for one in completions) for name in _COUNTS},
        "update_tokens": [read, written] if updates else None,
        "update_cached_tokens": cached,
        **_map_changes(records),
        "tools": dict(sorted(sum((Counter(record["tools"]) for record in records), Counter[str]()).items())),
        "num_tool_errors": sum(record["num_errors"] for record in records),
        "seconds": round(sum(record["seconds"] for record in records), 2),
        "cost": round(prices.cost(completions) + prices.cost_of(read, cached, written), 8),
        **_cut(records),
        **_repeats(records),
    }


_COUNTS = ("prompt", "kept", "moved", "computed", "output")


def _score(records: Sequence[Record]) -> dict[str, Any]:
    groups = _by_context([(record, record["score"]) for record in records])
    return {
        "num_samples": len(records),
        "num_contexts": len(groups),
        "score": round(statistics.fmean(record["score"] for record in records), 4),
        "score_interval": grouped_bounded_interval(groups, 0.0, 1.0),
    }


def _by_context(values: Sequence[tuple[Record, float]]) -> list[list[float]]:
    """The values of each context, in order. Records of older journals have no group, but a name that may tell it."""
    groups: dict[tuple[str, str, str], list[float]] = {}
    for record, value in values:
        task, name = record["task"], record["sample"]
        has_name = name.count("/") == GROUPED_TASKS.get(task)
        group = record.get("group", name.rpartition("/")[0] if has_name else "")
        groups.setdefault((task, group, "" if group else name), []).append(value)
    return list(groups.values())


def _difference(records: Sequence[Record], baseline: Sequence[Record]) -> dict[str, Any]:
    """Score beside the baseline's, on the samples that both have."""
    other = {(record["task"], record["sample"]): record["score"] for record in baseline}
    pairs = [(record, other.get((record["task"], record["sample"]))) for record in records]
    less = [(record, record["score"] - beside) for record, beside in pairs if beside is not None]
    if not less or (records and baseline and records[0]["way"] == baseline[0]["way"]):
        return {"difference": None, "difference_interval": None}
    groups = _by_context(less)
    interval = _mean_interval(groups) if len(groups) > 1 else None
    return {"difference": round(statistics.fmean(one for _, one in less), 4), "difference_interval": interval}


def _mean_interval(groups: Sequence[Sequence[float]]) -> list[float]:
    """Of differences, which lie in [-1, 1]. A bootstrap over few contexts is too narrow."""
    if len(groups) >= FEW_CONTEXTS:
        return grouped_mean_interval(groups)
    return [round(min(1.0, max(-1.0, edge)), 4) for edge in grouped_student_interval(groups)]


def _reduction(records: Sequence[Record]) -> dict[str, Any]:
    """How much smaller the last prompt is than the first, over all samples: where nothing is edited, they are one.

    Other ways have no first and last prompt of one context.
    """
    ends = [(sum(done[0][:3]), sum(done[-1][:3])) for record in records if (done := record["completions"])]
    first, last = sum(start for start, _ in ends), sum(end for _, end in ends)
    return {
        "num_loops": sum(len(record["completions"]) > 1 for record in records),
        "first_prompt": round(first / len(ends)) if ends else None,
        "last_prompt": round(last / len(ends)) if ends else None,
        "reduction": round(1 - last / first, 4) if first else None,
    }


def _main_thread(way: str, records: Sequence[Record], limit: int | None) -> dict[str, Any]:
    """How long the main thread got. Nothing where there are no branches, or where a record of an older journal is."""
    longest = [record["main_prompt"] for record in records if "main_prompt" in record]
    if way != BRANCHES or len(longest) < len(records):
        return {}
    above = None if limit is None else sum(tokens > MAIN_SHARE * limit for tokens in longest)
    return {"main_thread": {"longest_prompt": max(longest), "context_limit": limit, "num_unfolded": above}}


def _map_changes(records: Sequence[Record]) -> dict[str, int]:
    """How often maps were updated, and what their budgets did not hold. Nothing of what an answer does not tell.

    Those of older journals tell none.
    """
    found: dict[str, int] = {}
    for name in ("num_updates", "num_beyond_budget"):
        told: list[Any] = [record.get(name) for record in records if not record["error"] or name in record]
        if told and None not in told:
            found[name] = sum(told)
    return found


def _cut(records: Sequence[Record]) -> dict[str, int]:
    """How many last answers ended at the bound of their tokens. Nothing where an answer does not tell it."""
    told: list[Any] = [record.get("cut") for record in records if not record["error"] or "cut" in record]
    return {} if not told or None in told else {"num_cut": sum(told)}


def _repeats(records: Sequence[Record]) -> dict[str, Any]:
    """What an agent in a shell repeated. Nothing where a record tells none, as those of older journals do."""
    told = [record["repeats"] for record in records if "repeats" in record]
    return {"repeats": add_counts(told)} if len(told) == len(records) else {}
