"""A session's turns and totals as their routes show them. Reads only."""

from __future__ import annotations

from collections.abc import Mapping

from acmserve.context.session.turns.history import TurnHistory
from acmserve.context.session.turns.totals import TurnTotals
from acmserve.context.storage.session import Session
from acmserve.plan.harm.estimate import HarmEstimate
from acmserve.server.budget.savings import Savings
from acmserve.server.context.server import ContextServer
from acmserve.server.routes.schemas.turns import (
    EstimateView,
    HarmView,
    LastTurnView,
    PricesView,
    SavingsView,
    SessionUsage,
    SumsView,
    TurnList,
    TurnTotalsView,
    TurnView,
    UsageList,
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


def usage_list(server: ContextServer, tenant: str, limit: int) -> UsageList:
    """The sessions of a tenant that were used last, with what they cost. It is no use of them."""
    heads = server.store.list(tenant)
    counted = [head for head in heads if head.totals is not None]
    running, default = server.sessions.turns.running(), server.budgets.default
    return UsageList(
        data=[
            SessionUsage(
                session_id=head.session_id,
                branch_of=head.parent,
                thread_of=head.thread_of,
                created_at=head.created_at,
                used_at=head.used_at,
                num_messages=head.num_messages,
                num_hidden_fragments=head.num_hidden_fragments,
                running=head.key in running,
                precomputing=server.precompute.is_working(head),
                budget_tokens=head.budget_tokens or (None if default is None else default.max_tokens),
                last_turn=None if head.last_turn is None else LastTurnView(**head.last_turn.as_dict()),
                totals=SumsView(**(head.totals or TurnTotals()).as_dict()),
            )
            for head in counted[:limit]
        ],
        has_more=len(counted) > limit,
        num_sessions=len(heads),
    )


def harm_view(estimates: Mapping[str, HarmEstimate]) -> list[HarmView]:
    """What is known of the harm that moved KV did, by fidelity."""
    return [
        HarmView.model_validate(
            {
                "fidelity": fidelity,
                "nats": found.mean,
                "upper": found.upper,
                "tokens": found.num_tokens,
                "answers": found.num_answers,
            }
        )
        for fidelity, found in sorted(estimates.items())
    ]


def totals_view(
    session: Session, savings: Savings, harm: Mapping[str, HarmEstimate], auto_level: str
) -> TurnTotalsView:
    """The totals of a session, what they saved, what moved KV did, and how bold `auto` is after that."""
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
    sums = session.turns.totals.as_dict()
    return TurnTotalsView(
        session_id=session.session_id, **sums, saved=saved, harm=harm_view(harm), auto_level=auto_level
    )
