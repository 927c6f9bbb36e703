"""The automatic watermark against brute force on simulated sessions, and how it answers to what was measured."""

from __future__ import annotations

import random
from dataclasses import dataclass, replace
from math import exp
from statistics import pstdev

import pytest

from acmserve.context.watermark import Measured, auto_watermark, cost_per_turn, reread_share
from acmserve.errors import InvalidRequest

PIECE = 500
"""Tokens that an eviction takes at a time, as the levels of an episode do."""


@dataclass(frozen=True)
class Trace:
    """A session: turns of random size, text that is read again, an engine. The budget is `max_tokens`."""

    seed: int
    max_tokens: int
    growth: int
    spread: float
    measured: Measured

    def sizes(self, num_turns: int = 1500) -> list[int]:
        draw = random.Random(self.seed)
        return [max(1, round(draw.lognormvariate(0.0, self.spread) * self.growth)) for _ in range(num_turns)]


TRACES = {
    "exact, small turns": Trace(1, 80_000, 600, 0.5, Measured(1, 4_000, None, 3_000, 0.02, 0.4, 12_000, 0.0)),
    "moves, small turns": Trace(2, 80_000, 600, 0.5, Measured(1, 4_000, 900_000, 3_000, 0.02, 0.4, 12_000, 0.0)),
    "exact, large turns": Trace(3, 80_000, 6_000, 1.0, Measured(1, 20_000, None, 8_000, 0.1, 0.3, 30_000, 3.0)),
    "a small budget": Trace(4, 6_000, 250, 0.8, Measured(1, 150, 40_000, 900, 0.05, 0.5, 1_500, 1.0)),
    "slow moves, far looks": Trace(5, 120_000, 2_000, 1.2, Measured(1, 8_000, 60_000, 10_000, 0.2, 0.6, 50_000, 0.0)),
}


def simulate(trace: Trace, watermark: int) -> float:
    """Seconds a turn. The conversation is a queue of pieces with their ages; what leaves may be wanted again."""
    draw = random.Random(trace.seed + 1000)
    measured, seconds = trace.measured, 0.0
    pieces: list[tuple[int, int]] = []
    written = 0
    shown = measured.protected
    sizes = trace.sizes()
    extra = 0
    for size in sizes:
        grown = size + extra
        seconds += extra * (1 + measured.reread_overhead) / measured.prefill_rate
        extra = 0
        for start in range(0, grown, PIECE):
            num = min(PIECE, grown - start)
            written += num
            pieces.append((written, num))
        shown += grown
        if shown <= trace.max_tokens:
            continue
        index = 0
        while index < len(pieces) and shown > watermark:
            born, num = pieces[index]
            shown -= num
            index += 1
            extra += _wanted_again(draw, num, written - born, measured)
        del pieces[:index]
        rate = measured.prefill_rate if measured.move_rate is None else measured.move_rate
        seconds += measured.fixed_seconds + (shown - measured.protected) / rate
    return seconds / len(sizes)


def _wanted_again(draw: random.Random, num: int, age: int, measured: Measured) -> int:
    """Tokens of a piece that come back: it is wanted with a chance that falls with its age, half of it or all of it."""
    assert measured.reread_span is not None
    chance = measured.reread_share * exp(-age / measured.reread_span)
    return round(num * chance * (0.5 + draw.random()))


@pytest.mark.parametrize("name", TRACES)
def test_within_ten_percent_of_the_best_fixed_watermark(name: str) -> None:
    trace = TRACES[name]
    sizes = trace.sizes()
    mean = sum(sizes) / len(sizes)
    measured = replace(trace.measured, growth=mean, growth_variation=pstdev(sizes) / mean)
    auto = auto_watermark(trace.max_tokens, measured)
    span = trace.max_tokens - measured.protected
    marks = [measured.protected + span * step // 24 for step in range(25)]
    costs = {mark: simulate(trace, mark) for mark in marks}
    assert simulate(trace, auto) <= 1.1 * min(costs.values()), (auto, costs)
    assert max(costs.values()) > 1.2 * min(costs.values())


def test_moves_let_more_context_stay() -> None:
    exact = TRACES["exact, small turns"].measured
    exact = replace(exact, growth=600)
    assert auto_watermark(80_000, exact) < auto_watermark(80_000, replace(exact, move_rate=900_000)) < 80_000


def test_where_nothing_is_wanted_again_everything_goes() -> None:
    measured = Measured(500, 5_000, None, 2_000, reread_share=0)
    assert auto_watermark(80_000, measured) == 2_000


def test_it_never_leaves_the_budget() -> None:
    for protected in (0, 5_000, 10_000, 50_000):
        mark = auto_watermark(10_000, Measured(500, 5_000, None, protected))
        assert min(protected, 10_000) <= mark <= 10_000
    assert auto_watermark(10_000, Measured(500, 5_000), least=4_000) >= 4_000


def test_it_costs_a_fixed_number_of_steps() -> None:
    """Two hundred and fifty-seven evaluations, whatever the budget."""
    for max_tokens in (1_000, 10_000_000):
        mark = auto_watermark(max_tokens, Measured(500, 5_000, 1e6))
        best = min(
            cost_per_turn(m, max_tokens, Measured(500, 5_000, 1e6)) for m in range(0, max_tokens, max_tokens // 99)
        )
        assert cost_per_turn(mark, max_tokens, Measured(500, 5_000, 1e6)) <= 1.001 * best


def test_the_share_that_comes_back_falls_with_the_watermark() -> None:
    measured = Measured(500, 5_000, reread_share=0.4, reread_span=10_000)
    shares = [reread_share(mark, 80_000, measured) for mark in range(0, 80_001, 8_000)]
    assert shares == sorted(shares, reverse=True)
    assert 0 < shares[-1] < shares[0] < 0.4


@pytest.mark.parametrize(
    ("name", "value"), [("growth", 0), ("prefill_rate", -1), ("move_rate", float("nan")), ("reread_share", -0.1)]
)
def test_what_cannot_have_been_measured_is_refused(name: str, value: float) -> None:
    with pytest.raises(InvalidRequest) as error:
        replace(Measured(1.0, 1.0), **{name: value})  # type: ignore[arg-type]
    assert error.value.field == name
