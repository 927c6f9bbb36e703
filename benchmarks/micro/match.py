"""How long the matcher takes: ordinary edits and adversarial repetition, printed as JSON.

    python -m acmserve.bench.micro.match [--repetitions 9]

The contract: 5 ms for a 32K-token prompt against 32K-token sources, 40 ms for 128K. Exit code 1 where a case misses it.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from acmserve.plan.match import find_matches

Tokens = NDArray[np.int32]
BUDGET_MS = {32_768: 5.0, 131_072: 40.0}
MIN_TOKENS = 32


def text(seed: int, length: int) -> Tokens:
    """Zipf-distributed tokens: frequent and rare ones, as in language."""
    return (np.random.default_rng(seed).zipf(1.3, length) % 50_000).astype(np.int32)


def fold(length: int) -> tuple[Tokens, list[Tokens]]:
    """A span in the middle replaced by a marker, and a new message behind."""
    source = text(1, length)
    prompt = np.concatenate([source[: length // 8], text(2, 20), source[length // 3 :], text(3, 30)])
    return prompt, [source]


def fold_of_four(length: int) -> tuple[Tokens, list[Tokens]]:
    """The same against four unrelated sources, the right one last."""
    prompt, sources = fold(length)
    return prompt, [*(text(10 + i, length // 4) for i in range(3)), *sources]


def unrelated(length: int) -> tuple[Tokens, list[Tokens]]:
    """Nothing matches: every position is looked up."""
    return text(1, length), [text(2, length)]


def repeated(period: int) -> Callable[[int], tuple[Tokens, list[Tokens]]]:
    """Prompt and source of one repeated period."""

    def build(length: int) -> tuple[Tokens, list[Tokens]]:
        tokens = np.resize(np.arange(period, dtype=np.int32), length)
        return tokens, [tokens.copy(), tokens[: length // 2].copy()]

    return build


def broken_runs(run: int) -> Callable[[int], tuple[Tokens, list[Tokens]]]:
    """Runs of one token just too short to match, ended by different tokens: many candidates, none good enough."""

    def build(length: int) -> tuple[Tokens, list[Tokens]]:
        prompt, source = np.zeros(length, dtype=np.int32), np.zeros(length, dtype=np.int32)
        prompt[run - 1 :: run] = 1
        source[run - 2 :: run - 1] = 2
        return prompt, [source]

    return build


CASES: dict[str, Callable[[int], tuple[Tokens, list[Tokens]]]] = {
    "fold": fold,
    "fold, four sources": fold_of_four,
    "unrelated": unrelated,
    "one token": repeated(1),
    "period 2": repeated(2),
    "period 100": repeated(100),
    "broken runs of 32": broken_runs(32),
    "broken runs of 256": broken_runs(256),
}


def measure(name: str, length: int, min_tokens: int, repetitions: int) -> dict[str, object]:
    """Median milliseconds of one case."""
    prompt, sources = CASES[name](length)
    times = []
    for _ in range(repetitions):
        begin = time.perf_counter()
        matches = find_matches(prompt, sources, 0, len(prompt) - 1, min_tokens)
        times.append(1e3 * (time.perf_counter() - begin))
    return {
        "case": name,
        "prompt_tokens": len(prompt),
        "source_tokens": sum(len(source) for source in sources),
        "min_tokens": min_tokens,
        "num_matches": len(matches),
        "median_ms": round(statistics.median(times), 3),
        "max_ms": round(max(times), 3),
        "budget_ms": BUDGET_MS[length],
    }


def main(argv: Sequence[str] | None = None) -> int:
    """Print one JSON object per case and size."""
    parser = argparse.ArgumentParser(prog="python -m acmserve.bench.micro.match", description=__doc__)
    parser.add_argument("--repetitions", type=int, default=9)
    repetitions = parser.parse_args(argv).repetitions
    within = True
    for length in BUDGET_MS:
        for name in CASES:
            for min_tokens in (MIN_TOKENS, 8 * MIN_TOKENS):
                row = measure(name, length, min_tokens, repetitions)
                within &= float(str(row["median_ms"])) <= BUDGET_MS[length]
                print(json.dumps(row))
    return 0 if within else 1


if __name__ == "__main__":
    sys.exit(main())
