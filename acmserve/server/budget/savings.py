"""What a session saved against stock vLLM, estimated from its totals: tokens, seconds, money.

    stock vLLM, same prompts   [ kept, but for what was precomputed ][ computed: the rest                  ]
    acmserve                   [ kept ............................. ][ moved ][ precomputed ][ computed ...]
                                                                      saved    seconds saved

Both are asked for the same prompts, so what a fold took out of them is in neither. Stock vLLM keeps a prefix where this
server does, moves nothing, and computes nothing ahead. Precomputed tokens were computed once on either side, so they
save seconds and no money. A partial block that is kept here counts as kept there, so the estimate is rather low.

Pure. It knows no sessions.
"""

from __future__ import annotations

from dataclasses import dataclass

from acmserve.context.session.turns.totals import TurnTotals
from acmserve.server.budget.rates import Rates
from acmserve.server.options.prices import TokenPrices


@dataclass(frozen=True, slots=True)
class Savings:
    """`cost` and `stock_cost` are what the session's tokens cost here and there, by `prices`.

    Rates are in tokens a second. `is_measured`: `prefill_rate` was measured on this server, since it started.
    """

    tokens: int
    seconds: float
    cost: float
    stock_cost: float
    prefill_rate: float
    move_rate: float
    is_measured: bool
    prices: TokenPrices

    @property
    def money(self) -> float:
        """What was saved."""
        return self.stock_cost - self.cost


def saved_seconds(totals: TurnTotals, rates: Rates) -> float:
    """What stock vLLM would have computed longer. Never below 0, since moving is never slower than computing."""
    num_saved = totals.moved_tokens + totals.precomputed_tokens
    return num_saved / rates.prefill_rate - totals.moved_tokens / rates.move_rate


def estimate_savings(totals: TurnTotals, rates: Rates, prices: TokenPrices) -> Savings:
    """See the module. Rates are those of now."""
    num_saved = totals.moved_tokens + totals.precomputed_tokens
    num_read = totals.kept_tokens - totals.precomputed_tokens
    num_written = totals.computed_tokens + totals.precomputed_tokens
    num_paid_everywhere = num_read * prices.read + num_written * prices.write + totals.output_tokens * prices.output
    return Savings(
        tokens=num_saved,
        seconds=saved_seconds(totals, rates),
        cost=prices.input * (num_paid_everywhere + totals.moved_tokens * prices.read),
        stock_cost=prices.input * (num_paid_everywhere + totals.moved_tokens * prices.write),
        prefill_rate=rates.prefill_rate,
        move_rate=rates.move_rate,
        is_measured=rates.is_measured,
        prices=prices,
    )
