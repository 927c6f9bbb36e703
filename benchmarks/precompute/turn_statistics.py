"""What the turns of the runs come to: behind an eviction, and ordinary ones. JSON in, JSON out: recorded runs read too.

    append line     seconds = fixed + rate * new tokens     rate: median slope of all pairs, fixed: median rest
    ordinary turn   a plain append behind a pause, over the same turn of another run that had the same prompt

A turn after an eviction is held against the line (Theil-Sen), not against the appends nearest in size. Evictions follow
large turns, and hardly a plain append is as large. An ordinary turn needs no line: the runs share the trace.

Decision: what an ordinary turn computes is not compared. A turn whose KV was pushed out computes more, and the run that
pushed it out is the one to pay for it.
"""

from __future__ import annotations

import itertools
import statistics
from collections.abc import Mapping, Sequence
from typing import Any

from acmserve.bench.agent.estimates import bootstrap_interval, nearest_rank

Turns = Mapping[str, Sequence[Any]]
READY_TOKENS = 16
"""Tokens that a turn may compute besides its new ones and still have found all ready: the ends of messages."""


def fit_appends(num_new_tokens: Sequence[int], seconds: Sequence[float]) -> dict[str, float] | None:
    """The line through the appends of a run. None where they do not give one."""
    points = list(zip(num_new_tokens, seconds, strict=True))
    slopes = [(b[1] - a[1]) / (b[0] - a[0]) for a, b in itertools.combinations(points, 2) if a[0] != b[0]]
    if not slopes:
        return None
    rate = statistics.median(slopes)
    fixed = statistics.median(took - rate * num for num, took in points)
    return {"fixed_seconds": fixed, "seconds_per_token": rate} if rate >= 0 and fixed > 0 else None


def on_line(line: Mapping[str, float], num_new_tokens: float) -> float:
    """The seconds that an append of so many tokens takes."""
    return line["fixed_seconds"] + line["seconds_per_token"] * num_new_tokens


def new_tokens(turns: Turns, number: int) -> int:
    """Tokens that a turn's prompt has and the one before had not, notes of what was evicted among them."""
    prompts = turns["prompt_tokens"]
    num_new: int = prompts[number] - (prompts[number - 1] - turns["evicted_tokens"][number])
    return num_new


def is_plain(turns: Turns, number: int) -> bool:
    """Whether a turn is an append behind a pause: a later step of a loop follows the one before at once."""
    return not turns["evicted_tokens"][number] and bool(turns["follows_pause"][number])


def append_line(runs: Sequence[Turns]) -> dict[str, float] | None:
    """What a plain append of these runs costs, all together. None where they do not give a line."""
    appends = [
        (new_tokens(turns, n), turns["seconds"][n])
        for turns in runs
        for n in range(1, len(turns["seconds"]))
        if is_plain(turns, n)
    ]
    return fit_appends([num for num, _ in appends], [took for _, took in appends])


def judge_turns(turns: Turns) -> dict[str, Any]:
    """Turns behind an eviction, apart from plain appends, and held against these."""
    seconds, computed = turns["seconds"], turns["computed_tokens"]
    numbers = range(1, len(seconds))
    new = [0, *(new_tokens(turns, n) for n in numbers)]
    edited = [n for n in numbers if turns["evicted_tokens"][n]]
    candidates = [n for n in edited if turns["precomputed_tokens"][n]]
    plain = [n for n in numbers if is_plain(turns, n)]
    line = append_line([turns])
    over = [] if line is None else [seconds[n] / on_line(line, max(0, new[n])) for n in edited]
    return {
        "total_seconds": round(sum(seconds), 1),
        "num_evictions": len(edited),
        "num_candidates": len(candidates),
        "num_ready": sum(computed[n] <= new[n] + READY_TOKENS for n in candidates),
        "eviction_seconds": _spread([seconds[n] for n in edited]),
        "plain_seconds": _spread([seconds[n] for n in plain]),
        "append_line": line,
        "eviction_over_append": _spread(over),
        "eviction_new_tokens": _spread([new[n] for n in edited]),
        "eviction_old_tokens": _spread([max(0, computed[n] - new[n]) for n in edited]),
    }


def is_same_prompt(turns: Turns, baseline: Turns, number: int) -> bool:
    """Whether a turn had the same prompt in both runs: as many tokens, since they share the trace.

    An eviction that one run has carried out and the other has not makes the prompts differ.
    """
    return bool(turns["prompt_tokens"][number] == baseline["prompt_tokens"][number])


def ordinary_pairs(turns: Turns, baseline: Turns) -> list[tuple[float, float]]:
    """The seconds of turns that neither run edits, and that both answer with the same prompt."""
    return [
        (turns["seconds"][n], baseline["seconds"][n])
        for n in range(1, len(turns["seconds"]))
        if is_plain(turns, n) and is_plain(baseline, n) and is_same_prompt(turns, baseline, n)
    ]


def compare_ordinary_turns(turns: Turns, baseline: Turns) -> dict[str, Any] | None:
    """The median ratio of ordinary turns, with its interval. None without any."""
    pairs = ordinary_pairs(turns, baseline)
    if not pairs:
        return None
    ratios = [one / other for one, other in pairs]
    extra = [one - other for one, other in pairs]
    return {
        "num_turns": len(pairs),
        "median_ratio": round(statistics.median(ratios), 3),
        "interval": bootstrap_interval(ratios, statistics.median),
        "mean_extra_seconds": round(statistics.fmean(extra), 3),
        "slower_share": round(sum(ratio > 1 for ratio in ratios) / len(ratios), 3),
    }


def _spread(values: Sequence[float]) -> dict[str, float] | None:
    """Median and 90th percentile."""
    if not values:
        return None
    return {"median": round(statistics.median(values), 4), "p90": round(nearest_rank(sorted(values), 0.9), 4)}
