"""A session's turns and totals as their routes show them. Reads only."""

from __future__ import annotations

from acmserve.context.session.turns.history import TurnHistory
from acmserve.context.storage.session import Session
from acmserve.server.budget.savings import Savings
from acmserve.server.routes.schemas.turns import (
    EstimateView,
    PricesView,
    SavingsView,
    TurnList,
    TurnTotalsView,
    TurnView,
    WaitingNotes,
)

METHOD = (
    "Stock vLLM is taken to be asked for the same prompts, and to keep of each what this server kept, but for "
    "precomputed tokens. Seconds: moved and precomputed tokens over `prefill_rate`, less moved tokens over "
    "`move_rate`. Money: moved tokens at the price `read` instead of `write`. Precomputed tokens cost `write` on "
    "either side."
)


def turn_list(history: TurnHistory, after: int, limit: int) -> TurnList:
    """A page of turns behind the one with the index `after`."""
    page = history.page(after, limit)
    last = page[-1].index if page else None
    return TurnList(
        data=[TurnView.model_validate(turn.as_dict()) for turn in page],
        first_index=page[0].index if page else None,
        last_index=last,
        has_more=last is not None and last < history.next_index - 1,
        num_turns=history.next_index,
        oldest_index=history.turns[0].index if history.turns else None,
        waiting=WaitingNotes.model_validate(
            {
                "edits": [edit.as_dict() for edit in history.edits],
                "evictions": [eviction.as_dict() for eviction in history.evictions],
            }
        ),
    )


def totals_view(session: Session, savings: Savings) -> TurnTotalsView:
    """The totals of a session, and what they saved."""
    estimate = EstimateView(
        method=METHOD,
        prefill_rate=savings.prefill_rate,
        move_rate=savings.move_rate,
        rates="measured" if savings.is_measured else "assumed",
        prices=PricesView.model_validate(savings.prices.as_dict()),
    )
    saved = SavingsView(
        tokens=savings.tokens,
        seconds=savings.seconds,
        money=savings.money,
        cost=savings.cost,
        stock_cost=savings.stock_cost,
        estimate=estimate,
    )
    return TurnTotalsView(session_id=session.session_id, **session.turns.totals.as_dict(), saved=saved)
