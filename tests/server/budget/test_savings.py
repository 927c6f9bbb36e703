"""What a session saved against stock vLLM, by hand."""

from __future__ import annotations

import pytest

from acmserve.context.session.turns.totals import TurnTotals
from acmserve.server.budget.rates import Rates
from acmserve.server.budget.savings import estimate_savings
from acmserve.server.options.prices import TokenPrices

TOTALS = TurnTotals(
    turns=2,
    prompt_tokens=1000,
    kept_tokens=600,
    precomputed_tokens=100,
    moved_tokens=300,
    computed_tokens=100,
    output_tokens=10,
)


def rates(prefill: float | None = None, move: float | None = None) -> Rates:
    made = Rates()
    if prefill is not None:
        made.note(1000, 0, 1000 / prefill)
    if move is not None:
        made.note(0, 1000, 1000 / move)
    return made


def test_seconds_are_those_of_what_stock_would_have_computed() -> None:
    saved = estimate_savings(TOTALS, rates(prefill=100, move=1000), TokenPrices())
    assert saved.tokens == 400
    assert saved.seconds == pytest.approx(400 / 100 - 300 / 1000)
    assert (saved.prefill_rate, saved.move_rate) == (pytest.approx(100), pytest.approx(1000))
    assert saved.is_measured
    assert not estimate_savings(TOTALS, rates(), TokenPrices()).is_measured


def test_money_is_that_of_what_was_moved() -> None:
    """Stock: 500 found, 500 computed. Here: 800 found, 200 computed, 100 of them ahead."""
    saved = estimate_savings(TOTALS, rates(), TokenPrices("USD", 2.0, 1.25, 0.1, 5.0))
    assert saved.stock_cost == pytest.approx(2 * (500 * 0.1 + 500 * 1.25 + 10 * 5))
    assert saved.cost == pytest.approx(2 * (800 * 0.1 + 200 * 1.25 + 10 * 5))
    assert saved.money == pytest.approx(2 * 300 * 1.15)


def test_nothing_is_saved_by_nothing() -> None:
    saved = estimate_savings(TurnTotals(), rates(), TokenPrices())
    assert (saved.tokens, saved.seconds, saved.money, saved.cost) == (0, 0, 0, 0)
