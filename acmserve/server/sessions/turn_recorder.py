"""Writes what the turns of sessions cost, beside the sessions in the store.

    edit, /evict ------note--> waits for the next turn
    background request --note_background--> totals
    request --begin--> engine --ended--> turn: receipt, times, what was noted, what its own prompt had evicted

An eviction in front of a request counts where the session keeps it: in a tool loop always, elsewhere where the request
was answered. Decision: a record fails no request. Where none can be written the log says so once, and the answer goes
on. What is recorded is counted on /metrics, too, so that both have the same sums. It knows no routes and no engine.
"""

from __future__ import annotations

import logging
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence, Set
from contextlib import suppress
from dataclasses import dataclass, replace
from weakref import WeakSet

from acmserve.context.eviction.clearing_edits import COMPACT
from acmserve.context.session.turns.history import TurnHistory
from acmserve.context.session.turns.turn import (
    MAX_ID_CHARS,
    EvictionKind,
    SessionTurn,
    TurnEdit,
    TurnEnd,
    TurnEviction,
    TurnOrigin,
)
from acmserve.context.storage.session import Key, Session, SessionUse
from acmserve.context.storage.session_store import SessionStore
from acmserve.errors import StorageFailed
from acmserve.server.budget.enforcement import Enforced
from acmserve.server.budget.rates import Rates
from acmserve.server.exchange.ended_request import EndedRequest
from acmserve.server.sessions.turn_counters import count_evictions, count_turn

logger = logging.getLogger(f"vllm.{__name__}")

_Changed = tuple[TurnHistory, Sequence[TurnEviction]]
"""A history, and the evictions that are new in it."""


class TurnRecorder:
    """See the module. `clock` gives seconds since the epoch, `rates` say what a turn saved."""

    def __init__(self, store: SessionStore, clock: Callable[[], float] = time.time, rates: Rates | None = None) -> None:
        self._store = store
        self._clock = clock
        self._rates = rates or Rates()
        self._has_warned = False
        self._running: WeakSet[RunningTurn] = WeakSet()

    def begin(self, session: Session, origin: TurnOrigin, enforced: Enforced | None = None) -> RunningTurn:
        """The turn of a request that is made now. `enforced` is what its prompt was brought under."""
        turn = RunningTurn(self, session, origin, enforced, self._store.use(session))
        self._running.add(turn)
        return turn

    def begin_named(self, tenant: str, session_id: str, origin: TurnOrigin) -> RunningTurn | None:
        """The turn of a request that vLLM answers by itself. None where no session of that name is held here."""
        with suppress(StorageFailed):
            if self._store.has(tenant, session_id):
                return self.begin(self._store.get(tenant, session_id), origin)
        return None

    def end(self, running: RunningTurn, request: EndedRequest) -> None:
        """Record a turn, and what its prompt had evicted."""
        recorded = self._record(running.session, lambda history: _with_turn(history, running, request, self._clock()))
        if recorded is not None:
            report = None if running.enforced is None else running.enforced.report
            is_over_budget = report is not None and report["unmet"] is not None
            count_turn(recorded.turns[-1], self._rates, is_over_budget=is_over_budget)

    def note(self, session: Session, edits: Sequence[TurnEdit] = (), evictions: Sequence[TurnEviction] = ()) -> None:
        """Edits and evictions were made, and stored."""
        if edits or evictions:
            self._record(session, lambda history: (history.noted(edits, evictions), evictions))

    def note_background(self, session: Session, request: EndedRequest) -> None:
        """A background request of a session has ended. What one that broke off had computed, nobody has told."""
        receipt = request.receipt
        if receipt is not None and receipt["computed_tokens"]:
            self._record(session, lambda history: (history.with_background(receipt["computed_tokens"]), ()))

    def running(self) -> Set[Key]:
        """The sessions that are in a turn now."""
        return {turn.session.key for turn in self._running if turn.use is not None}

    def _record(self, session: Session, changed: Callable[[TurnHistory], _Changed]) -> TurnHistory | None:
        """Store a changed history, and count its new evictions. None where nobody holds the session."""
        if not self._store.holds(session):
            return None
        try:
            history, evictions = changed(session.turns)
            self._store.record(session, history)
            count_evictions(evictions)
        except Exception:
            # Whatever it was, the client's answer does not wait for it.
            if not self._has_warned:
                self._has_warned = True
                logger.exception("acmserve: a turn of session %r is in no record", session.session_id)
            return None
        return history


@dataclass(slots=True, eq=False, weakref_slot=True)
class RunningTurn:
    """A turn that has not ended. Until then `use` keeps the session in memory.

    The recorder knows it weakly: a stream that nobody ever reads has no other end.
    """

    recorder: TurnRecorder
    session: Session
    origin: TurnOrigin
    enforced: Enforced | None
    use: SessionUse | None

    def ended(self, request: EndedRequest) -> None:
        """Its request to the engine has ended."""
        self.recorder.end(self, request)
        self.use = None


def _with_turn(history: TurnHistory, running: RunningTurn, request: EndedRequest, now: float) -> _Changed:
    """The history with a turn that ended `now`, and with what its prompt had evicted."""
    evictions: Sequence[TurnEviction] = ()
    enforced, origin = running.enforced, running.origin
    report = None if enforced is None else enforced.report
    if enforced is not None and (request.end is TurnEnd.ANSWERED or origin.step is not None):
        evictions, cleared = find_evictions(enforced, history.cleared)
        history = replace(history.noted(evictions=evictions), cleared=cleared)
    turn = SessionTurn(
        created_at=now - request.seconds,
        origin=origin,
        request_id=request.request_id[:MAX_ID_CHARS],
        receipt=request.receipt,
        prompt_tokens=request.prompt_tokens,
        output_tokens=request.output_tokens,
        budget_tokens=None if report is None else report["max_tokens"],
        first_token_seconds=request.first_token_seconds,
        seconds=request.seconds,
        end=request.end,
    )
    return history.taken(turn), evictions


def find_evictions(enforced: Enforced, cleared: Mapping[str, int]) -> tuple[list[TurnEviction], Mapping[str, int]]:
    """What a prompt was the first to have evicted, and what the vendor's edits have cleared now.

    The vendor's edits tell all that they have cleared so far, and `cleared` is what they told last. What the budget
    cleared in front of the same prompt is among it, and counts once.
    """
    found: list[TurnEviction] = []
    num_evicted = 0
    if enforced.report is not None and enforced.report["evicted_tokens"]:
        num_evicted = enforced.report["evicted_tokens"]
        levels: Counter[str] = Counter()
        for item in enforced.report["evicted"]:
            levels.update(item["levels"])
        found.append(TurnEviction(EvictionKind.BUDGET, enforced.report["policy"], num_evicted, dict(levels)))
    if enforced.edited is None:
        return found, cleared
    cleared_now: dict[str, int] = {}
    for edit in enforced.edited["applied_edits"]:
        kind, num_tokens = edit["type"], edit["cleared_input_tokens"]
        if kind != COMPACT:
            cleared_now[kind] = num_tokens
            num_new = max(0, num_tokens - cleared.get(kind, 0))
            num_counted = min(num_new, num_evicted)
            num_tokens, num_evicted = num_new - num_counted, num_evicted - num_counted
        if num_tokens:
            found.append(TurnEviction(EvictionKind.CONTEXT_MANAGEMENT, kind, num_tokens))
    return found, cleared_now
