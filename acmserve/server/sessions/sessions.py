"""The sessions of this server: the store, whose they are, who may change one now, and their names in the engine.

    session --locked--> changed by one caller alone
            --exchange--> what goes to the engine with a request, and what its receipt brings back

A session belongs to the API key that made it (on a server that has keys) and to its cache salt. One call at a time
changes a session. Who changes one holds its lock, a server loop for the whole turn. Edits wait under the lock of a
loop only. What a loop that broke off, or a server that was killed, left waiting takes effect at once.

The engine knows a session by a name that its tenant and its id make. What was redacted or deleted the engine forgets
with the next request of that name. It knows no routes.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import replace
from functools import partial
from typing import Any, TypeVar
from weakref import WeakValueDictionary

from acmserve.context.edits.commit import INTERRUPTED, apply_commit, commit_all
from acmserve.context.session.branches.thread import Thread
from acmserve.context.session.render import render_merged
from acmserve.context.session.state import SessionState
from acmserve.context.session.turns.turn import TurnOrigin
from acmserve.context.session.waiting import committed
from acmserve.context.storage.session import Key, Session
from acmserve.context.storage.session_store import SessionStore
from acmserve.context.transcript.message import Message
from acmserve.context.transcript.template_rules import TAKES_ALL, TemplateRules
from acmserve.context.transcript.tokenizer import Tokenizer
from acmserve.errors import Conflict, SessionLeft
from acmserve.plan.request import SessionParams
from acmserve.server.budget.enforcement import Enforced
from acmserve.server.budget.rates import Rates
from acmserve.server.exchange.exchange import Exchange
from acmserve.server.exchange.scores import TokenScores
from acmserve.server.exchange.served_prompts import ServedContext, ServedContexts
from acmserve.server.http.tenants import SALT_HEADER, Tenants, account_of, engine_session_id
from acmserve.server.maps.turn import MapTurn
from acmserve.server.sessions.pending_forgets import PendingForgets
from acmserve.server.sessions.storage import LOCK_WAIT
from acmserve.server.sessions.turn_recorder import TurnRecorder

T = TypeVar("T")
MAX_PENDING = 4096
"""Redacted and deleted sessions of one API key whose next request has not come yet."""


class Sessions:
    """`served` remembers the last prompts, `rates` what prefill and moves cost. `turns` records what requests cost.

    `scores` says whether the answer of a request of that fidelity is judged later, and `level` how bold `auto` is.
    `undoable` has the sessions in which a loop may still be undone, and what to record anew there then.
    `looping` has those in which a loop runs, also as a stream, and what is recorded behind it. `loops` has for each
    of them how many removals there had been when its loop began.
    `unshared` has those that were made for a request, and in which none was answered yet. For each running one it has
    the state that it found, first that in which the session was made.
    """

    def __init__(
        self,
        store: SessionStore,
        served: ServedContexts,
        rates: Rates,
        *,
        default_fidelity: str = "exact",
        has_api_keys: bool = False,
        tenants: Tenants | None = None,
        rules: TemplateRules = TAKES_ALL,
    ) -> None:
        self.store = store
        self.served = served
        self.turns = TurnRecorder(store, rates=rates)
        self._rates = rates
        self._rules = rules
        self.scores: Callable[[Session, str | None], TokenScores | None] = lambda session, fidelity: None
        self.level: Callable[[Session], str | None] = lambda session: None
        self.undoable: dict[Key, list[Callable[[], object]]] = {}
        self.looping: dict[Key, list[Callable[[], object]]] = {}
        self.loops: dict[Session, int] = {}
        self.unshared: dict[Session, list[SessionState]] = {}
        self._default_fidelity = default_fidelity
        self._has_api_keys = has_api_keys
        self._tenants = tenants or Tenants(has_api_keys)
        self._removed = PendingForgets(MAX_PENDING)
        self._locks: WeakValueDictionary[Key, asyncio.Lock] = WeakValueDictionary()

    def tenant_of(self, headers: Mapping[str, str], cache_salt: str | None = None) -> str:
        """The tenant of a request. Without keys and salts there is one tenant, ""."""
        if not (self._has_api_keys or cache_salt or SALT_HEADER in headers):
            return ""
        return self._tenants.of(headers, cache_salt)

    @asynccontextmanager
    async def locked(self, session: Session) -> AsyncIterator[None]:
        """Hold the session: nobody else changes it meanwhile, and it stays in memory. No edit waits then."""
        use = self.store.use(session)
        lock = self._locks.get(session.key)
        if lock is None:
            lock = self._locks[session.key] = asyncio.Lock()
        asked_at = time.monotonic()
        async with lock:
            LOCK_WAIT.observe(time.monotonic() - asked_at)
            self._end_waiting(session)
            try:
                yield
            finally:
                self._end_waiting(session)
        del use

    @asynccontextmanager
    async def held(self, session: Session) -> AsyncIterator[None]:
        """`locked`, for a request that has found its session before. Raises `SessionLeft` where that has gone since."""
        async with self.locked(session):
            if not self.store.holds(session):
                raise SessionLeft(session.session_id)
            yield

    async def idle(self, key: Key) -> None:
        """Wait until nobody holds the session of this name. Nothing takes effect by that."""
        lock = self._locks.get(key)
        if lock is not None:
            async with lock:
                pass

    def _end_waiting(self, session: Session) -> None:
        """Let every edit take effect. A session that is full takes it without its line in the rollout record."""
        state = session.state
        if not any(fragment.waits for fragment in state.fragments) or not self.store.holds(session):
            return
        try:
            self.store.save(session, apply_commit(state, commit_all(state, INTERRUPTED)))
        except Conflict:
            self.store.save(session, committed(state))

    @property
    def num_removals(self) -> int:
        """Texts that were redacted or deleted so far, of all sessions."""
        return self._removed.num_removals

    def save(self, session: Session, state: SessionState) -> None:
        """Set the state of a session. Raises what the store does.

        One that gave up its id goes on in memory for the loop that runs in it, if nothing of it was removed since.
        """
        num_seen = self.loops.get(session)
        if num_seen is None or self.store.holds(session) or self._removed.is_later(engine_key(session), num_seen):
            self.store.save(session, state)
        else:
            session.state = state

    def can_move(self, fidelity: str | None) -> bool:
        """Whether a request of this fidelity moves KV. `auto` moves where little is removed, so it counts."""
        return (fidelity or self._default_fidelity) != "exact"

    def exchange(
        self,
        session: Session,
        params: SessionParams,
        messages: Sequence[Message],
        enforced: Enforced | None = None,
        turn_map: MapTurn | None = None,
        origin: TurnOrigin | None = None,
    ) -> Exchange:
        """The exchange of one request of this session, for which `messages` were rendered. The map is not in them.

        What the request costs is recorded as a turn of that `origin`.
        """
        key, num_seen = engine_key(session), self._removed.num_removals
        must_forget = params.forget or self.must_forget(session)
        account = account_of(session.tenant) if session.tenant else ""
        level = self.level(session) if (params.fidelity or self._default_fidelity) == "auto" else None
        engine_params = replace(
            params, session_id=engine_name(session), forget=must_forget, account=account, level=level
        )

        def take(receipt: Mapping[str, Any], seconds: float) -> None:
            if must_forget:
                self._removed.acknowledge(key, num_seen)
            self._rates.note(receipt["computed_tokens"], receipt["moved_tokens"], seconds)
            if enforced is not None and enforced.on_served is not None:
                enforced.on_served(receipt["prompt_tokens"])

        fields = {"budget": enforced.report} if enforced is not None and enforced.report is not None else {}
        slot = None
        if turn_map is not None:
            fields, slot = {**fields, **turn_map.fields}, turn_map.slot
        served, send = partial(self._served_of, session, num_seen), partial(self._removed.send, key, num_seen)
        ended = self.turns.begin(session, origin or TurnOrigin(), enforced).ended
        exchange = Exchange(
            engine_params, session.session_id, served, messages, take, fields, slot, on_send=send, on_end=ended
        )
        exchange.scores = self.scores(session, params.fidelity)
        return exchange

    def carry_removals(self, exchange: Exchange, key: Key) -> None:
        """Have a request that vLLM answers by itself carry what was removed under its name in the engine."""
        params, num_seen = exchange.params, self._removed.num_removals
        exchange.on_send = partial(self._removed.send, key, num_seen)
        if key in self._removed and not params.precompute:
            exchange.params = replace(params, forget=True)
            exchange.on_receipt = lambda receipt, seconds: self._removed.acknowledge(key, num_seen)

    def _served_of(self, session: Session, num_seen: int) -> ServedContext:
        """What was served to a session. One that is gone leaves nothing to another of its id.

        A prompt that was made before a redaction has the text, and its answer may quote it: nobody remembers them.
        """
        if self.store.holds(session) and not self._removed.is_later(engine_key(session), num_seen):
            return self.served.of(*session.key)
        return self.served.detached()

    def background_exchange(
        self, session: Session, messages: Sequence[Message], num_cut: int, scores: TokenScores | None = None
    ) -> Exchange:
        """The exchange of a request that precomputes `messages` for this session, but for the last `num_cut` tokens.

        With `scores` it is their prompt that is computed.
        """
        account = account_of(session.tenant) if session.tenant else ""
        params = SessionParams(engine_name(session), "exact", precompute=True, account=account)
        served = partial(self.served.of, *session.key)
        ended = partial(self.turns.note_background, session)
        exchange = Exchange(params, session.session_id, served, messages, remembers=False, on_end=ended)
        exchange.num_cut, exchange.scores = num_cut, scores
        return exchange

    def describe_kv(self, session: Session, tokenizer: Tokenizer) -> list[str | None]:
        """For each message that the model sees, what the next request finds of its KV (see `served_prompts.py`).

        Messages that are merged for the template have one state.
        """
        messages, entries = render_merged(session.state, self._rules)
        kv_states = self.served.of(*session.key).describe_kv(messages, tokenizer)
        states = {entry: state for state, merged in zip(kv_states, entries, strict=True) for entry in merged}
        return [states[entry] for entry in sorted(states)]

    def delete(self, session: Session) -> None:
        """Delete a session. The engine forgets what it served to it with the next request of that name.

        Of many deleted sessions only the last ones of each key are remembered for that (`pending_forgets.py`).
        What a branch or a fork was served goes with the session under whose name it was.
        Raises `StorageFailed` where the file may still hold the text. The session is gone all the same.
        """
        if not shares_engine_name(session):
            self._removed.add(engine_key(session))
        self.store.delete(*session.key)

    def forget(self, session: Session) -> None:
        """Something in the session was redacted: its next request, or one of its branches, has the engine forget."""
        self.served.drop(*session.key)
        self._removed.add(engine_key(session))

    def must_forget(self, session: Session) -> bool:
        """Whether the next request of this session has the engine forget what it was served."""
        return self._removed.num_pending > 0 and engine_key(session) in self._removed


async def found_anew(answer: Callable[[], Awaitable[T]]) -> T:
    """What `answer` gives, which finds its session itself. It is asked again where that went while it waited."""
    while True:
        with suppress(SessionLeft):
            return await answer()


def engine_id_of(session_id: str, thread: Thread | None, parent_id: str | None) -> str:
    """The id under whose name the engine knows a session's KV: that of its thread, else of its parent, else its own."""
    return thread.engine_id if thread is not None else parent_id or session_id


def engine_key(session: Session) -> Key:
    """Whose name a session has in the engine: a branch goes by that of its parent, a fork by that of its main thread.

    They share its KV.
    """
    parent = session.state.parent
    parent_id = None if parent is None else parent.session_id
    return (session.tenant, engine_id_of(session.session_id, session.state.thread, parent_id))


def shares_engine_name(session: Session) -> bool:
    """Whether a session goes by the name of another one in the engine."""
    thread = session.state.thread
    return session.state.parent is not None or (thread is not None and thread.is_fork)


def engine_name(session: Session) -> str:
    """The name of a session in the engine."""
    tenant, session_id = engine_key(session)
    return engine_session_id(tenant, session_id) if tenant else session_id
