"""What the records of `acmserve eval` come to, one row for each task and way. Pure numbers.

The unit is the sample. Scores lie in [0, 1], so their intervals are Wilson's for bounded values. A difference is
taken sample by sample to the baseline of the way, and its interval is a bootstrap. A refused sample scores 0 and is
counted.
"""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from acmserve.bench.agent.estimates import bootstrap_interval, bounded_interval
from acmserve.bench.eval.completion import Completion
from acmserve.bench.eval.prices import PriceRatios
from acmserve.bench.eval.terminal.repeats import add_counts

ALL = "all"
FLOOR = 0.05
"""A task that no way gets more right of than this tells nothing about ways."""
Record = Mapping[str, Any]


def summarise(records: Sequence[Record], baselines: Mapping[str, str], prices: PriceRatios) -> list[dict[str, Any]]:
    """Rows in the order of the records, and at the end one for each way over all tasks.

    `baselines` has each way, in order, with the way that it is compared with.
    """
    tasks = list(dict.fromkeys(record["task"] for record in records))
    groups = [(task, [record for record in records if record["task"] == task]) for task in tasks]
    if len(tasks) > 1:
        groups.append((ALL, list(records)))
    rows = []
    for task, held in groups:
        by_way = {way: [record for record in held if record["way"] == way] for way in baselines}
        rows += [
            _row(task, way, by_way[way], by_way.get(baseline, []), prices)
            for way, baseline in baselines.items()
            if by_way[way]
        ]
    return rows


def by_setting(records: Sequence[Record]) -> list[dict[str, Any]]:
    """One row for each task, setting and way, in the order of the records: the papers' tables."""
    groups: dict[tuple[str, str, str], list[float]] = {}
    for record in records:
        groups.setdefault((record["task"], record["setting"], record["way"]), []).append(record["score"])
    return [
        {
            "task": task,
            "setting": setting,
            "way": way,
            "num_samples": len(scores),
            "score": round(statistics.fmean(scores), 4),
            "score_interval": bounded_interval(scores, 0.0, 1.0),
        }
        for (task, setting, way), scores in groups.items()
    ]


def at_the_floor(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """Tasks that the model cannot do in any way, in order."""
    best: dict[str, float] = {}
    for row in rows:
        best[row["task"]] = max(best.get(row["task"], 0.0), row["score"])
    return [task for task, score in best.items() if score <= FLOOR and task != ALL]


def _row(
    task: str, way: str, records: Sequence[Record], baseline: Sequence[Record], prices: PriceRatios
) -> dict[str, Any]:
    scores = [record["score"] for record in records]
    completions = [Completion(*counts) for record in records for counts in record["completions"]]
    updates = [record["update"] for record in records if record["update"] is not None]
    read, written = (sum(update[index] for update in updates) for index in (0, 1))
    num = len(records)
    return {
        "task": task,
        "way": way,
        "num_samples": num,
        "num_refused": sum(bool(record["error"]) for record in records),
        "num_unmet": sum(record["unmet"] for record in records),
        "num_requests": len(completions),
        "score": round(statistics.fmean(scores), 4),
        "score_interval": bounded_interval(scores, 0.0, 1.0),
        **_difference(records, baseline),
        **_reduction(records),
        **{f"{name}_tokens": sum(getattr(one, name) for one in completions) for name in _COUNTS},
        "update_tokens": [read, written] if updates else None,
        "tools": dict(sorted(sum((Counter(record["tools"]) for record in records), Counter[str]()).items())),
        "num_tool_errors": sum(record["num_errors"] for record in records),
        "seconds": round(sum(record["seconds"] for record in records), 2),
        "cost": round(prices.cost(completions) + prices.cost_of(read, 0, written), 8),
        **_repeats(records),
    }


_COUNTS = ("prompt", "kept", "moved", "computed", "output")


def _difference(records: Sequence[Record], baseline: Sequence[Record]) -> dict[str, Any]:
    """Score beside the baseline's, on the samples that both have."""
    other = {(record["task"], record["sample"]): record["score"] for record in baseline}
    pairs = [(record["score"], other.get((record["task"], record["sample"]))) for record in records]
    less = [score - beside for score, beside in pairs if beside is not None]
    if not less or (records and baseline and records[0]["way"] == baseline[0]["way"]):
        return {"difference": None, "difference_interval": None}
    interval = bootstrap_interval(less, statistics.fmean) if len(less) > 1 else None
    return {"difference": round(statistics.fmean(less), 4), "difference_interval": interval}


def _reduction(records: Sequence[Record]) -> dict[str, Any]:
    """How much smaller the last prompt is than the first, over samples with several."""
    ends = [(sum(done[0][:3]), sum(done[-1][:3])) for record in records if len(done := record["completions"]) > 1]
    first, last = sum(start for start, _ in ends), sum(end for _, end in ends)
    return {
        "num_loops": len(ends),
        "first_prompt": round(first / len(ends)) if ends else None,
        "last_prompt": round(last / len(ends)) if ends else None,
        "reduction": round(1 - last / first, 4) if first else None,
    }


def _repeats(records: Sequence[Record]) -> dict[str, Any]:
    """What an agent in a shell repeated. Nothing where a record tells none, as those of older journals do."""
    told = [record["repeats"] for record in records if "repeats" in record]
    return {"repeats": add_counts(told)} if len(told) == len(records) else {}
