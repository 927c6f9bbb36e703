"""Precomputes what sessions may be asked for next: one task per session, between its turns.

    turn n ends --> predict --> context 1 --> context 2 ...   each a background request, exact, its answer thrown away
                                    ^
    turn n + 1 arrives: the task is cancelled. The blocks that are computed stay in the prefix cache, and are found

A background request goes the way of any other (see `background_request.py`). The engine sees to it that nobody waits
for it. While it serves anybody else nothing is even planned: planning, rendering and counting would take time from the
others. Nor is it planned between two requests of sessions that leave no pause (`watches.py`). The same holds
where the session's own client is likely to come while the session is looked at. What is certain is computed first, and
what never came, not at all (`use_record.py`). While a request is read or planned here it is no idle moment, though the
engine knows nothing of it yet. A background request is no part of the conversation: it leaves the memory of what was
served, the meter's calibration and the rates alone. The one thing noted is that a context which was moved is exact now
(`healing.py`).

Where nothing is likely to come there is no task: no budget, no edits, no text that was cut, nothing that was moved. An
engine that can precompute nothing is asked once. A server that ends cancels all tasks first.

Whatever fails here is counted, and the first failure logged. No request of a client ever hears of it. Nothing is
computed between a redaction and the next turn, which is the one that has the engine forget.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from acmserve.context.eviction.clearing_edits import VendorEdit
from acmserve.context.precompute.candidate import PrecomputeCandidate, Reason
from acmserve.context.precompute.planner import View, can_foresee, heal, plan_precompute
from acmserve.context.session.precompute_options import PrecomputeOptions
from acmserve.context.session.render import render
from acmserve.context.session.state import SessionState
from acmserve.context.storage.head import SessionHead
from acmserve.context.storage.session import Key, Session
from acmserve.engine.config import LASTING_REASONS
from acmserve.server.budget.budgets import Budgets
from acmserve.server.exchange.exchange import CURRENT, Exchange
from acmserve.server.precompute.background_request import Background, RequestFrame
from acmserve.server.precompute.harm.probe import HarmProbe
from acmserve.server.precompute.healing import is_healed
from acmserve.server.precompute.next_message import after_next_message, ends_with_thought
from acmserve.server.precompute.preparation import FAILED, FORGETS_FIRST, INTERRUPTED, Preparation, Preparations
from acmserve.server.precompute.watches import Watch, Watches
from acmserve.server.sessions.sessions import Sessions

# The answer goes out first: planning takes the event loop.
PAUSE_SECONDS = 0.02
# How often a busy engine is asked whether it still is.
BUSY_SECONDS = 0.05

logger = logging.getLogger(f"vllm.{__name__}")


class Precomputer:
    """`default` holds for sessions without options of their own. `pool_tokens` is the size of the KV cache.

    Without `background` (no engine) nothing is computed. `in_use` turns true once anybody wants something precomputed:
    the default, a session, or a caller of `prepare`. Until then no request has to be watched.
    """

    def __init__(
        self,
        sessions: Sessions,
        budgets: Budgets,
        background: Background | None = None,
        default: PrecomputeOptions | None = None,
        pool_tokens: int | None = None,
        probe: HarmProbe | None = None,
    ) -> None:
        self._sessions = sessions
        self._budgets = budgets
        self._background = background
        self._default = default or PrecomputeOptions()
        self._pool_tokens = pool_tokens
        self._probe = probe
        self.in_use = self._default.mode != "off"
        self._watches = Watches()
        self._asking = asyncio.Lock()
        self._num_served = 0
        self._is_refused = False
        self.num_failed = 0

    def options(self, state: SessionState | SessionHead) -> PrecomputeOptions:
        """What holds for a session."""
        return self._default if state.precompute is None else state.precompute

    def begin_turn(self, session: Session) -> None:
        """A request of the session has arrived: stop at once."""
        known = self._watches.get(session.key)
        if known is not None:
            known.note_back(_now())
        watch = self._watch(session)
        watch.cancel()
        watch.wants_look = False
        watch.preparations.drop(INTERRUPTED)

    @contextmanager
    def serving(self, session: Session) -> Iterator[None]:
        """A request of the session is worked on here: it is read, planned, or in a loop between two steps."""
        self._num_served += 1
        try:
            yield
        finally:
            self._num_served -= 1
            if self._watches.get(session.key) is not None:
                self._watch(session)

    def end_turn(
        self,
        session: Session,
        frame: RequestFrame,
        fidelity: str | None,
        edits: Sequence[VendorEdit] | None,
        suite: str | None = None,
    ) -> None:
        """The session was answered, and the answer recorded: look what may come next. `suite` is what it folds with."""
        self.in_use = self.in_use or self.options(session.state).mode != "off"
        watch = self._watch(session)
        watch.fidelity, watch.suite = fidelity, suite
        self._watches.keep(session.key, frame, edits or ())
        watch.was_served, watch.was_edited = True, False
        watch.wants_look = self._wants_look(session, watch)
        self._go_on(session, watch)

    def note_edit(self, session: Session) -> None:
        """The session was edited between two turns: what was predicted is outdated."""
        watch = self._watches.get(session.key)
        if watch is None or not watch.was_served:
            return
        watch.was_edited = True
        watch.wants_look = self._wants_look(session, watch)
        if watch.running is None:
            watch.cancel()
        self._go_on(session, watch)

    def close(self) -> None:
        """The server ends: what runs is cancelled, nothing begins any more, and nobody waits for it."""
        self._background = None
        self._watches.cancel()

    def forget(self, key: Key) -> None:
        """The session left memory, or something in it was redacted: nothing of it is kept here."""
        watch = self._watches.forget(key)
        if watch is not None:
            watch.cancel()
            watch.preparations.drop(INTERRUPTED)

    def prepare(self, session: Session, state: SessionState, num_new: int, cache_salt: str | None) -> Preparation:
        """Have a state computed that the caller is about to make of the session's."""
        self.in_use = True
        watch = self._watch(session)
        if not watch.was_served and cache_salt:
            watch.frame = RequestFrame({"cache_salt": cache_salt})
        made = watch.preparations.add(state, num_new)
        if self._background is None:
            made.drop(FAILED)
        self._go_on(session, watch)
        return made

    def preparations(self, session: Session) -> Preparations:
        """Those of a session."""
        watch = self._watches.get(session.key)
        return Preparations() if watch is None else watch.preparations

    def is_working(self, session: Session | SessionHead) -> bool:
        """Whether something of a session is computed, or waits for an idle moment."""
        watch = self._watches.get(session.key)
        return watch is not None and watch.task is not None and not watch.task.done()

    def _watch(self, session: Session) -> Watch:
        return self._watches.hear(session.key, _now())

    def _wants_look(self, session: Session, watch: Watch) -> bool:
        """Whether anything can come of a look, which counts the tokens of the conversation on the event loop."""
        state, options = session.state, self.options(session.state)
        if options.mode == "off" or self._is_refused:
            return False
        if not options.heals and self._sessions.can_move(watch.fidelity):
            return False
        if watch.was_edited or self._sessions.served.of(*session.key).num_stale:
            return True
        foresees = can_foresee(state, self._budgets.of(state), watch.edits) or ends_with_thought(state)
        return options.predicts and foresees

    def _go_on(self, session: Session, watch: Watch) -> None:
        is_wanted = watch.wants_look or watch.preparations.next() is not None
        if self._background is not None and is_wanted and (watch.task is None or watch.task.done()):
            watch.task = asyncio.create_task(self._work(self._background, session, watch))

    async def _work(self, background: Background, session: Session, watch: Watch) -> None:
        try:
            await asyncio.sleep(PAUSE_SECONDS)
            await self._compute_all(background, session, watch)
        except Exception:
            name = session.session_id
            self.num_failed += 1
            watch.preparations.drop(FAILED)
            if self.num_failed == 1 and self._background is not None:
                logger.exception("acmserve: session %r: precomputing failed; later failures are only counted", name)
        finally:
            if watch.running is not None:
                watch.running.drop(INTERRUPTED)
                watch.running = None

    async def _compute_all(self, background: Background, session: Session, watch: Watch) -> None:
        """What was asked for, then what is predicted. Edits and preparations that come meanwhile go first."""
        contexts: list[PrecomputeCandidate] = []
        room = 0
        while self._sessions.store.holds(session):
            if self._is_busy(background, session):
                await self._until_idle(background, session)
                continue
            if self._sessions.must_forget(session):
                watch.preparations.drop(FORGETS_FIRST)
                return
            made = watch.preparations.next()
            if made is not None and made.state is not None:
                watch.running = made
                num_cut = max(0, made.num_new - self._room(session.state))
                made.end((await self._compute(background, session, watch, made.state, num_cut)).receipt, num_cut)
                watch.running = None
                continue
            if watch.wants_look:
                watch.wants_look = False
                began = _now()
                contexts, room = await self._look(background, session, watch), self._room(session.state)
                watch.look_seconds.append(_now() - began)
            if not contexts or room <= 0 or self._is_refused:
                return
            candidates = contexts.pop(0)
            num_cut = max(candidates.num_open, candidates.num_new - room)
            room -= candidates.num_new - num_cut
            if self._probe and candidates.reason is Reason.AS_IT_IS and not num_cut and not watch.was_edited:
                await self._probe.judge(background, session, watch.frame)
            computed = await self._compute(background, session, watch, candidates.state, num_cut)
            receipt = computed.receipt
            is_whole = receipt is not None and not num_cut and receipt["fallback_reason"] is None
            if candidates.reason is Reason.AS_IT_IS and is_whole:
                was_edited, watch.was_edited = watch.was_edited, False
                served = self._sessions.served.of(*session.key)
                if await is_healed(background, watch.frame, served, computed.prompt, was_edited=was_edited):
                    served.note_healed()
            if candidates.reason is Reason.EVICTION and is_whole:
                turn_stats = self._budgets.meter(session).turn_stats
                turn_stats.num_ready = len(candidates.state.entries)

    def _is_busy(self, background: Background, session: Session) -> bool:
        """Whether anybody else is served, was a moment ago, or will be in a moment, or is met by this look."""
        return self._serves_others(background, session) or self._may_be_met(session)

    def _serves_others(self, background: Background, session: Session) -> bool:
        return bool(self._num_served or background.is_busy() or self._watches.others_may_be_back(session.key, _now()))

    def _may_be_met(self, session: Session) -> bool:
        watch = self._watches.get(session.key)
        return watch is not None and watch.may_be_met(_now())

    async def _until_idle(self, background: Background, session: Session) -> None:
        """Of all sessions that wait for others only one asks: a thousand that did would be what clients wait for.

        What a session waits for its own client holds up no other one.
        """
        async with self._asking:
            while self._serves_others(background, session):
                await asyncio.sleep(BUSY_SECONDS)
        while self._may_be_met(session):
            await asyncio.sleep(BUSY_SECONDS)

    async def _look(self, background: Background, session: Session, watch: Watch) -> list[PrecomputeCandidate]:
        """What may come next, as far as the session wants it computed. What is certain comes first."""
        state = session.state
        options = self.options(state)
        if options.mode == "off":
            return []
        served = self._sessions.served.of(*session.key)
        if not options.predicts:
            return list(heal(state, served.num_stale))
        num_stale = max(1, served.num_served) if watch.was_edited else served.num_stale
        meter, budget = self._budgets.meter(session), self._budgets.of(state)
        can_move = self._sessions.can_move(watch.fidelity)
        measured = None if budget is None else self._budgets.measure(meter, budget, can_move=can_move)
        view = View(budget, measured, watch.edits, num_stale, watch.suite or session.suite)
        watch.uses.judge(state, self._budgets.rules)
        found = plan_precompute(meter, state, view, self._budgets.tokenizer)
        watch.uses.note(found, state, self._budgets.rules)
        rewritten = await after_next_message(background, watch.frame, state, served, self._budgets.rules)
        if rewritten is not None:
            found = (rewritten, *(candidate for candidate in found if candidate.reason is not Reason.AS_IT_IS))
        return watch.uses.worth_computing(found)

    async def _compute(
        self, background: Background, session: Session, watch: Watch, state: SessionState, num_cut: int
    ) -> Exchange:
        """Have a context computed, without its last `num_cut` tokens. The exchange has its receipt, if there is one."""
        messages = render(state, self._budgets.rules)
        exchange = self._sessions.background_exchange(session, messages, num_cut)
        CURRENT.set(exchange)
        await background(watch.frame.body(messages))
        refusal = None if exchange.receipt is None else exchange.receipt["fallback_reason"]
        if not self._is_refused and refusal is not None and refusal.startswith(LASTING_REASONS):
            self._is_refused = True
            logger.info("acmserve: nothing is precomputed any more. %s", refusal)
        return exchange

    def _room(self, state: SessionState) -> int:
        """Tokens that the contexts of one look may have computed."""
        pool_tokens = self._pool_tokens
        return 2**62 if pool_tokens is None else int(pool_tokens * self.options(state).max_pool_share)


def _now() -> float:
    """Seconds of the clock by which the event loop's sleeps go."""
    return asyncio.get_running_loop().time()
