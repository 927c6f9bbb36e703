"""How long the matcher takes over ordinary edits and adversarial repetition: `acmserve bench micro match`.

The contract: 5 ms for a 32K-token prompt against 32K-token sources, 40 ms for 128K. The gate: every match that is found
stands there. The same contract holds for the whole plan of `auto`, matches, echoes and choice.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from acmserve.plan.fidelity import RequestedFidelity, plan_wish
from acmserve.plan.match import find_matches
from acmserve.plan.source import ServedSequence

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


@pytest.mark.parametrize("min_tokens", [MIN_TOKENS, 8 * MIN_TOKENS])
@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("length", BUDGET_MS)
def bench_match(benchmark: Any, length: int, case: str, min_tokens: int) -> None:
    """One case of one size."""
    prompt, sources = CASES[case](length)
    matches = find_matches(prompt, sources, 0, len(prompt) - 1, min_tokens)
    for match in matches:
        found, source = prompt[match.dst_start :][: match.num_tokens], sources[match.source]
        assert np.array_equal(found, source[match.src_start :][: match.num_tokens])
    benchmark.group = f"{length:,} tokens, at least {min_tokens}"
    benchmark.extra_info |= {"case": case, "prompt_tokens": len(prompt), "min_tokens": min_tokens}
    benchmark.extra_info |= {"num_matches": len(matches), "limit_ms": BUDGET_MS[length]}
    benchmark(find_matches, prompt, sources, 0, len(prompt) - 1, min_tokens)


@pytest.mark.parametrize("length", BUDGET_MS)
def bench_auto(benchmark: Any, length: int) -> None:
    """A fold under `auto`. Half of the text are echoes."""
    prompt, tokens = fold(length)
    sources, wish = [ServedSequence(one, 1, ()) for one in tokens], RequestedFidelity("auto")
    planned = plan_wish(prompt, sources, wish)
    planned.plan.check(prompt, sources)
    assert planned.choice is not None
    assert sum(move.num_tokens for move in planned.plan.moves) + sum(b - a for a, b in planned.anew) >= length // 2
    benchmark.group = f"{length:,} tokens, the plan of auto"
    benchmark.extra_info |= {"case": "fold, auto", "prompt_tokens": len(prompt), "min_tokens": MIN_TOKENS}
    benchmark.extra_info |= {"num_matches": len(planned.plan.moves), "limit_ms": BUDGET_MS[length]}
    benchmark(plan_wish, prompt, sources, wish)
