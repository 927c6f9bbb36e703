"""The automatic watermark against brute force on simulated sessions, and how it answers to what was measured."""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, replace
from math import exp, isfinite
from statistics import fmean, pstdev

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from acmserve.context.session import low_watermark
from acmserve.context.session.low_watermark import Measured, cheapest_low_watermark, cost_per_turn, reread_share
from acmserve.errors import InvalidRequest

NUM_TURNS = 6_000
"""Turns of a trace: enough that the best of 25 watermarks is the best and not the luckiest."""


def few_huge_results(draw: random.Random, _: int) -> int:
    """A coding agent: short steps, and now and then a whole file or a build log."""
    return draw.randint(6_000, 14_000) if draw.random() < 0.06 else draw.randint(150, 600)


def chat(draw: random.Random, _: int) -> int:
    return max(20, round(draw.lognormvariate(0, 0.6) * 350))


def searches(draw: random.Random, _: int) -> int:
    """One to four results of a search in every turn."""
    return sum(draw.randint(200, 900) for _ in range(draw.randint(1, 4)))


def bursts(draw: random.Random, turn: int) -> int:
    """Twenty-five turns of reading, after seventy-five of talk."""
    return draw.randint(2_500, 5_000) if turn % 100 >= 75 else draw.randint(100, 500)


def uniform(_: random.Random, __: int) -> int:
    return 1_000


def long_tail(draw: random.Random, _: int) -> int:
    return max(1, round(draw.lognormvariate(0, 0.9) * 2_000))


@dataclass(frozen=True)
class Trace:
    """A session: how its turns grow, in which pieces they are evicted (None: a turn is one), what its engine does."""

    max_tokens: int
    grow: Callable[[random.Random, int], int]
    piece: int | None
    known: Measured

    def sizes(self, seed: int) -> list[int]:
        draw = random.Random(seed)
        return [self.grow(draw, turn) for turn in range(NUM_TURNS)]

    def pieces(self, size: int) -> list[int]:
        piece = self.piece or size
        return [min(piece, size - start) for start in range(0, size, piece)]


TRACES = {
    "few huge results, moves": Trace(
        100_000, few_huge_results, None, Measured(1, 6_000, 300_000, 9_000, 0.1, 0.35, 25_000, 3.0)
    ),
    "chat, moves": Trace(24_000, chat, None, Measured(1, 1_500, 40_000, 600, 0.02, 0.1, 6_000, 1.0)),
    "searches, exact": Trace(60_000, searches, 500, Measured(1, 8_000, None, 4_000, 0.05, 0.6, 12_000, 2.0)),
    "bursts, moves": Trace(80_000, bursts, None, Measured(1, 10_000, 200_000, 5_000, 0.1, 0.3, 20_000, 2.0)),
    "uniform, exact": Trace(40_000, uniform, None, Measured(1, 3_000, None, 2_000, 0.05, 0.4, 10_000, 4.0)),
    "long tail, slow moves": Trace(120_000, long_tail, None, Measured(1, 8_000, 60_000, 10_000, 0.2, 0.6, 50_000, 0.0)),
    "a small budget, moves": Trace(6_000, chat, None, Measured(1, 150, 40_000, 900, 0.05, 0.5, 1_500, 1.0)),
}


def simulate(trace: Trace, seed: int, watermark: int) -> float:
    """Seconds a turn. The conversation is a queue of pieces with their ages. What leaves may be wanted again."""
    draw = random.Random(seed + 1_000)
    known, seconds = trace.known, 0.0
    rate = known.prefill_rate if known.move_rate is None else known.move_rate
    pieces: deque[tuple[int, int]] = deque()
    written, shown, again = 0, known.protected, 0
    for size in trace.sizes(seed):
        seconds += again * (1 + known.reread_overhead) / known.prefill_rate
        for num in (*trace.pieces(size), *(trace.pieces(again) if again else ())):
            written += num
            pieces.append((written, num))
        shown += size + again
        again = 0
        if shown <= trace.max_tokens:
            continue
        while pieces and shown > watermark:
            born, num = pieces.popleft()
            shown -= num
            again += _wanted_again(draw, num, written - born, known)
        seconds += known.fixed_seconds + (shown - known.protected) / rate
    return seconds / NUM_TURNS


def _wanted_again(draw: random.Random, num: int, age: int, known: Measured) -> int:
    """Tokens of a piece that come back: a share that falls with its age, half of it more or less."""
    assert known.reread_span is not None
    return round(num * known.reread_share * exp(-age / known.reread_span) * (0.5 + draw.random()))


def measure(trace: Trace, seed: int) -> Measured:
    """What an account would have found: mean and deviation of the turns, and of the pieces."""
    sizes = trace.sizes(seed)
    pieces = [num for size in sizes for num in trace.pieces(size)]
    growth, piece = fmean(sizes), fmean(pieces)
    growth_variation, piece_variation = pstdev(sizes) / growth, pstdev(pieces) / piece
    return replace(
        trace.known,
        growth=growth,
        growth_variation=growth_variation,
        piece=piece,
        piece_variation=piece_variation,
    )


def beside_the_best(trace: Trace, seed: int, auto: int) -> tuple[float, float]:
    """The cost of `auto`, and of the worst, over that of the best of 25 watermarks."""
    protected = trace.known.protected
    marks = [protected + (trace.max_tokens - protected) * step // 24 for step in range(25)]
    costs = [simulate(trace, seed, mark) for mark in marks]
    return simulate(trace, seed, auto) / min(costs), max(costs) / min(costs)


@pytest.mark.parametrize("seed", [1, 2])
@pytest.mark.parametrize("name", TRACES)
def test_within_ten_percent_of_the_best_fixed_watermark(name: str, seed: int) -> None:
    """Two seeds of each trace. Of forty others of each, the worst cost 1.035 times the best."""
    trace = TRACES[name]
    auto, worst = beside_the_best(trace, seed, cheapest_low_watermark(trace.max_tokens, measure(trace, seed)))
    assert auto <= 1.1
    assert worst > 2


def test_moves_let_more_context_stay() -> None:
    exact = Measured(600, 4_000, None, 3_000, 0.02, 0.4, 12_000, 0.0)
    assert (
        cheapest_low_watermark(80_000, exact)
        < cheapest_low_watermark(80_000, replace(exact, move_rate=900_000))
        < 80_000
    )


def test_where_nothing_is_wanted_again_everything_goes() -> None:
    measured = Measured(500, 5_000, None, 2_000, reread_share=0)
    assert cheapest_low_watermark(80_000, measured) == 2_000


def test_it_never_leaves_the_budget() -> None:
    assert cheapest_low_watermark(10_000, Measured(500, 5_000, None, 50_000)) == 10_000
    assert cheapest_low_watermark(10_000, Measured(500, 5_000), least=4_000) >= 4_000


def test_large_pieces_stop_sooner() -> None:
    """A batch that ends below its watermark is aimed higher."""
    fine = Measured(500, 5_000, 200_000, 2_000, piece=50)
    marks = [cheapest_low_watermark(80_000, replace(fine, piece=piece)) for piece in (50, 500, 5_000, 15_000)]
    assert marks == sorted(set(marks))
    assert marks[-1] - marks[0] > 5_000
    assert cheapest_low_watermark(80_000, replace(fine, piece=500)) == cheapest_low_watermark(
        80_000, replace(fine, piece=None)
    )


@st.composite
def knowledge(draw: st.DrawFn) -> Measured:
    """Whatever could have been measured."""
    sizes = st.floats(1, 50_000)
    parts = st.floats(0, 4)
    return Measured(
        growth=draw(sizes),
        prefill_rate=draw(st.floats(10, 1e6)),
        move_rate=draw(st.none() | st.floats(10, 1e8)),
        protected=draw(st.integers(0, 120_000)),
        fixed_seconds=draw(st.floats(0, 10)),
        reread_share=draw(st.floats(0, 0.99)),
        reread_span=draw(st.none() | st.floats(1, 1e6)),
        reread_overhead=draw(st.floats(0, 100)),
        growth_variation=draw(parts),
        piece=draw(st.none() | sizes),
        piece_variation=draw(parts),
    )


MAX_TOKENS = st.integers(1, 100_000)


@given(knowledge(), MAX_TOKENS, st.integers(0, 120_000))
def test_it_lies_between_what_must_stay_and_the_budget(known: Measured, max_tokens: int, least: int) -> None:
    mark = cheapest_low_watermark(max_tokens, known, least)
    assert min(max(known.protected, least), max_tokens) <= mark <= max_tokens
    assert mark == cheapest_low_watermark(max_tokens, known, least)
    cost = cost_per_turn(mark, max_tokens, known)
    assert isfinite(cost)
    assert 0 <= cost <= cost_per_turn(max_tokens, max_tokens, known)


@given(knowledge(), MAX_TOKENS, st.floats(1, 100))
def test_faster_moves_never_lower_it(known: Measured, max_tokens: int, factor: float) -> None:
    assume(known.move_rate is not None)
    slow = replace(known, move_rate=known.prefill_rate)
    fast = replace(known, move_rate=known.prefill_rate * factor)
    assert cheapest_low_watermark(max_tokens, slow) <= cheapest_low_watermark(max_tokens, fast)


@given(knowledge(), MAX_TOKENS, st.integers(0, 100_000), st.floats(1, 100))
def test_what_is_slower_or_wanted_more_never_costs_less(
    known: Measured, max_tokens: int, watermark: int, factor: float
) -> None:
    mark = min(watermark, max_tokens)
    cost = cost_per_turn(mark, max_tokens, known) * (1 - 1e-9)
    dearer = [
        replace(known, prefill_rate=known.prefill_rate / factor),
        replace(known, fixed_seconds=known.fixed_seconds * factor),
        replace(known, reread_overhead=known.reread_overhead * factor),
        replace(known, reread_share=min(0.99, known.reread_share * factor)),
    ]
    assert all(cost_per_turn(mark, max_tokens, worse) >= cost for worse in dearer)


@given(knowledge(), MAX_TOKENS, st.integers(0, 100_000), st.integers(0, 100_000))
def test_a_lower_watermark_brings_more_back(known: Measured, max_tokens: int, one: int, other: int) -> None:
    low, high = sorted((min(one, max_tokens), min(other, max_tokens)))
    more, less = reread_share(low, max_tokens, known), reread_share(high, max_tokens, known)
    assert 0 <= less <= more + 1e-9
    assert more <= known.reread_share


def test_it_costs_a_fixed_number_of_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two hundred and fifty-seven evaluations, whatever the budget."""
    known, looked_at = Measured(500, 5_000, 1e6), list[int]()

    def counted(mark: int, max_tokens: int, measured: Measured) -> float:
        looked_at.append(mark)
        return cost_per_turn(mark, max_tokens, measured)

    monkeypatch.setattr(low_watermark, "cost_per_turn", counted)
    for max_tokens in (1_000, 10_000_000):
        looked_at.clear()
        mark = cheapest_low_watermark(max_tokens, known)
        assert len(looked_at) == 257
        best = min(cost_per_turn(m, max_tokens, known) for m in range(0, max_tokens, max_tokens // 99))
        assert cost_per_turn(mark, max_tokens, known) <= 1.001 * best


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("growth", 0),
        ("prefill_rate", -1),
        ("move_rate", float("nan")),
        ("reread_share", -0.1),
        ("reread_share", 1.0),
        ("piece", 0),
    ],
)
def test_what_cannot_have_been_measured_is_refused(name: str, value: float) -> None:
    with pytest.raises(InvalidRequest) as error:
        replace(Measured(1.0, 1.0), **{name: value})  # type: ignore[arg-type]
    assert error.value.field == name
