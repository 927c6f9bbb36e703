"""Made records of `bench precompute`: rounds of turns whose times are known, with precompute and without."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from acmserve.bench.precompute.bars import Bar, judge_rounds
from acmserve.bench.precompute.runs import CWL, EXACT, PREDICT

NUM_TURNS = 20
EDITED = 10
"""The turn in front of which something is taken out."""
ABOUT = {"model": "tiny", "policy": CWL, "num_tasks": 1, "num_rounds": 5, "digest": "d"}
SLOW, FAST = 2.0, 0.25


def seconds_of(num_new: int) -> float:
    """0.1 s, and 1 ms for each new token."""
    return 0.1 + num_new / 1000


def made_turns(edited_seconds: float, factor: float = 1.0, pause: float = 2.0) -> dict[str, list[Any]]:
    """Appends of 100 to 139 tokens, and one edit that brings as many. Every append takes `factor` of its time."""
    prompts, seconds = [1000], [1.0]
    evicted = [2000 * (number == EDITED) for number in range(NUM_TURNS)]
    for number in range(1, NUM_TURNS):
        prompts.append(prompts[-1] - evicted[number] + 100 + number)
        seconds.append(edited_seconds if evicted[number] else factor * seconds_of(100 + number))
    return {
        "seconds": seconds,
        "prompt_tokens": prompts,
        "computed_tokens": [1000, *(100 + number for number in range(1, NUM_TURNS))],
        "precomputed_tokens": [0] * NUM_TURNS,
        "evicted_tokens": evicted,
        "follows_pause": [1] * NUM_TURNS,
        "pause_seconds": [pause] * NUM_TURNS,
    }


def made_rounds(make_on: Callable[[int], dict[str, list[Any]]], num_rounds: int = 5) -> list[dict[str, Any]]:
    counters = {"precomputed_used_tokens": 1500.0}
    return [
        {
            "number": number,
            "order": [EXACT, PREDICT],
            "failures": [],
            "runs": {
                EXACT: {"counters": counters, "turns": made_turns(SLOW)},
                PREDICT: {"counters": counters, "turns": make_on(number)},
            },
        }
        for number in range(num_rounds)
    ]


def judged(make_on: Callable[[int], dict[str, list[Any]]]) -> dict[str, Bar]:
    return dict(zip(("ordinary", "together", "waiting", "edited"), judge_rounds(made_rounds(make_on)), strict=True))
