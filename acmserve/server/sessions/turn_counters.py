"""Counters of what turns did, for operators: evictions, prompts over their budget, and seconds saved.

    TurnRecorder --recorded--> count_evictions, count_turn --> /metrics

They count what is recorded, when it is recorded. So the totals of all sessions add up to them, as they do to the
engine's counters of tokens. Seconds are the estimate of `saved_seconds`, at the rates of the moment.
"""

from __future__ import annotations

from collections.abc import Iterable

from prometheus_client import Counter

from acmserve.context.session.turns.totals import TurnTotals
from acmserve.context.session.turns.turn import EvictionKind, SessionTurn, TurnEviction
from acmserve.server.budget.rates import Rates
from acmserve.server.budget.savings import saved_seconds

EVICTIONS = Counter("acmserve:evictions", "Evictions, by what demanded them.", labelnames=("kind",))
EVICTED_TOKENS = Counter("acmserve:evicted_tokens", "Tokens that evictions took out, by kind.", labelnames=("kind",))
BUDGET_UNMET = Counter("acmserve:budget_unmet", "Turns whose prompt was over its budget.")
SAVED_SECONDS = Counter("acmserve:saved_seconds", "Seconds of prefill that turns saved beside stock vLLM, estimated.")
COUNTERS = (EVICTIONS, EVICTED_TOKENS, BUDGET_UNMET, SAVED_SECONDS)

for _kind in EvictionKind:
    EVICTIONS.labels(_kind.value)
    EVICTED_TOKENS.labels(_kind.value)


def count_evictions(evictions: Iterable[TurnEviction]) -> None:
    """Count evictions that were recorded."""
    for eviction in evictions:
        EVICTIONS.labels(eviction.kind.value).inc()
        EVICTED_TOKENS.labels(eviction.kind.value).inc(eviction.num_tokens)


def count_turn(turn: SessionTurn, rates: Rates, *, is_over_budget: bool) -> None:
    """Count a turn that was recorded."""
    if is_over_budget:
        BUDGET_UNMET.inc()
    if turn.receipt is not None:
        SAVED_SECONDS.inc(max(0.0, saved_seconds(TurnTotals().plus(turn), rates)))
