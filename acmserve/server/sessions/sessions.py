"""The sessions of this server: the store with what its edits need around it: tokenizer, summarizer, embedder, locks.

    a model's tool call (server loop)   --.
    POST .../tools/{name}               ----> call_tool --> context.toolbox   --> store.save
    POST .../edits                      ----> edit      --> context.batch     -->

One call at a time changes a session; who changes one holds its lock, a server loop for the whole turn. A summary or an
embedding takes a model's time: it is made between two runs of a pure function on the same state, under the lock.

Private: a session belongs to the API key that made it (on a server that has keys) and to its cache salt. It knows
no routes, and of the engine only what an `Exchange` says.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections import OrderedDict
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any, Protocol
from weakref import WeakValueDictionary

from acmserve.context.edits.turn_cost import turn_cost
from acmserve.context.episodes.delimiter import DELIMITER
from acmserve.context.eviction.clearing_edits import VendorEdit
from acmserve.context.maps.rules import MapRules
from acmserve.context.session.precompute_options import PrecomputeOptions
from acmserve.context.session.render import render
from acmserve.context.session.state import SessionState
from acmserve.context.storage.map_store import MapStore
from acmserve.context.storage.session import Session
from acmserve.context.storage.session_store import SessionStore
from acmserve.context.tools import results as tool_result
from acmserve.context.tools.batch import BatchOutcome, Edit, EditKind, run_batch
from acmserve.context.tools.run import (
    EmbeddingsWanted,
    SummaryWanted,
    ToolCall,
    ToolContext,
    ToolOutcome,
    run_tool,
    with_input,
)
from acmserve.context.transcript.message import Message
from acmserve.context.transcript.tokenizer import Tokenizer
from acmserve.errors import Conflict, InvalidRequest
from acmserve.plan.request import SessionParams
from acmserve.server.budget.budgets import Budgets, PromptOverhead
from acmserve.server.budget.enforcement import ConversationSummarizer, Enforced, Enforcement, Evicted
from acmserve.server.exchange.exchange import Exchange
from acmserve.server.exchange.served_prompts import ServedContexts
from acmserve.server.maps.maps import Maps
from acmserve.server.maps.turn import MapTurn
from acmserve.server.maps.updates import MapUpdates
from acmserve.server.precompute.background_request import Background
from acmserve.server.precompute.precomputer import Precomputer
from acmserve.server.precompute.preparation import Preparation

SALT_HEADER = "x-cache-salt"
MAX_DELETED = 4096


class Summarizer(ConversationSummarizer, Protocol):
    """Writes a summary of a text, or of a conversation."""

    async def summarize(self, wanted: SummaryWanted) -> str:
        """Raises InvalidRequest where the text is too long, AcmError where the model cannot be reached."""


class Embedder(Protocol):
    """Turns texts into vectors of one length."""

    async def embed(self, texts: Sequence[str]) -> Sequence[Sequence[float]]:
        """One vector for each text. Raises InvalidRequest with a remedy where there is no embedder."""


class Sessions:
    """At `app.state.acm_sessions`; one per API server process."""

    def __init__(
        self,
        store: SessionStore,
        tokenizer: Tokenizer,
        summarizer: Summarizer,
        embedder: Embedder,
        served: ServedContexts,
        *,
        default_fidelity: str = "exact",
        max_tool_calls: int = 20,
        has_api_keys: bool = False,
        budgets: Budgets | None = None,
        maps: Maps | None = None,
        background: Background | None = None,
        precompute: PrecomputeOptions | None = None,
        pool_tokens: int | None = None,
    ) -> None:
        self.store = store
        self.tokenizer = tokenizer
        self.default_fidelity = default_fidelity
        self.max_tool_calls = max_tool_calls
        self._summarizer = summarizer
        self._embedder = embedder
        self._has_api_keys = has_api_keys
        self.served = served
        self.budgets = budgets or Budgets(tokenizer)
        self.maps = maps or Maps(MapUpdates(MapStore(), MapRules(tokenizer)))
        self.precompute = Precomputer(self, background, precompute, pool_tokens)
        self._redacted: set[tuple[str, str]] = set()
        self._deleted: OrderedDict[tuple[str, str], None] = OrderedDict()
        self._locks: WeakValueDictionary[tuple[str, str], asyncio.Lock] = WeakValueDictionary()

    def tenant_of(self, headers: Mapping[str, str], cache_salt: str | None = None) -> str:
        """The tenant of a request: a digest of its API key and cache salt, "" where it has neither.

        The salt may stand in the body (chat) or in the header `X-Cache-Salt`. Keys count only on a server that asks
        for them: elsewhere every client sends another placeholder. `Authorization` is the only header that such a
        server takes a key from (vllm/entrypoints/serve/middleware/authenticate.py:31): Anthropic's clients send it
        when they are given an `auth_token`; their `x-api-key` is answered with 401 before it comes here.
        """
        key = headers.get("authorization", "").partition(" ")[2] if self._has_api_keys else ""
        salt = cache_salt or headers.get(SALT_HEADER, "")
        return hashlib.blake2b(f"{key}\n{salt}".encode(), digest_size=16).hexdigest() if key or salt else ""

    @asynccontextmanager
    async def locked(self, session: Session) -> AsyncIterator[None]:
        """Hold the session: nobody else changes it meanwhile."""
        key = session.key
        lock = self._locks.get(key)
        if lock is None:
            lock = self._locks[key] = asyncio.Lock()
        async with lock:
            yield

    async def call_tool(self, session: Session, call: ToolCall, suite: str, fidelity: str | None) -> ToolOutcome:
        """Carry out one tool call and store the state. The caller holds the lock."""
        bench = self._bench(suite, fidelity)
        if call.name == DELIMITER:
            bench = replace(bench, scope=self.budgets.scope(session))
        outcome = run_tool(session.state, call, bench)
        if outcome.scope is not None:
            self.budgets.declare(session, outcome.scope)
        if outcome.needs is not None:
            try:
                supplied = await self._supply(outcome.needs)
            except InvalidRequest as error:
                return ToolOutcome(session.state, tool_result.refused(error), error=error)
            outcome = run_tool(session.state, call, with_input(bench, supplied))
        if outcome.state is not session.state:
            self.store.save(session, outcome.state)
        return outcome

    async def edit(self, session: Session, batch: Sequence[Edit], fidelity: str | None) -> BatchOutcome:
        """Carry out all edits or none, and store the state. The caller holds the lock. Raises InvalidRequest."""
        bench = self._bench(session.suite, fidelity)
        summaries: dict[tuple[str, str], str] = {}
        outcome = run_batch(session.state, batch, bench, summaries)
        while outcome.needs is not None:
            wanted = outcome.needs
            written = self.precompute.preparations(session).summaries.get(wanted)
            if written is None:
                written = await self._summarizer.summarize(wanted)
            summaries[wanted.fragment_id, wanted.focus] = written
            outcome = run_batch(session.state, batch, bench, summaries)
        self.store.save(session, outcome.state)
        if any(done.kind is EditKind.REDACT for done in outcome.done):
            self.served.drop(*session.key)
            self.precompute.forget(session)
            self._redacted.add(session.key)
        return outcome

    async def prepare(self, session: Session, batch: Sequence[Edit], cache_salt: str | None = None) -> Preparation:
        """Plan edits on a copy of the session and have the result computed ahead. Raises what `edit` does.

        A summary that this takes is kept for the edits themselves, which then give the same bytes.
        """
        for index, wanted_edit in enumerate(batch):
            if wanted_edit.kind is EditKind.REDACT:
                raise Conflict(
                    f"edits[{index}].op",
                    "a redaction cannot be prepared: the engine forgets what it computed for the session.",
                    "Redact at once with POST .../edits.",
                )
        before, bench = session.state, self._bench(session.suite, "exact")
        summaries: dict[tuple[str, str], str] = {}
        written: dict[SummaryWanted, str] = {}
        outcome = run_batch(before, batch, bench, summaries)
        while outcome.needs is not None:
            wanted = outcome.needs
            written[wanted] = await self._summarizer.summarize(wanted)
            summaries[wanted.fragment_id, wanted.focus] = written[wanted]
            outcome = run_batch(before, batch, bench, summaries)
        cost = turn_cost(before, outcome.state, "exact", self.tokenizer)
        made = self.precompute.prepare(session, outcome.state, cost.num_computed, cache_salt)
        self.precompute.preparations(session).keep(written)
        return made

    def delete(self, session: Session) -> None:
        """Delete a session. The engine forgets what it served to it with the next request of that name.

        Of many deleted sessions only the last ones are remembered for that; the engine's own memory is bounded too.
        What a branch was served goes with its parent, under whose name it was; what was redacted in it goes first.
        """
        self.store.delete(*session.key)
        self.served.drop(*session.key)
        self.budgets.drop(session)
        self.precompute.forget(session)
        if session.state.parent is None:
            self._deleted[session.key] = None
        elif session.key in self._redacted:
            self._redacted.add(engine_key(session))
        self._redacted.discard(session.key)
        while len(self._deleted) > MAX_DELETED:
            self._deleted.popitem(last=False)

    async def enforce(
        self,
        session: Session,
        state: SessionState,
        beside: PromptOverhead,
        fidelity: str | None,
        edits: Sequence[VendorEdit] | None = None,
    ) -> Enforced:
        """Bring a state, which goes on from the session's own, under the edits of its request and under its budget."""
        return await self._enforcement(session, beside, fidelity).enforce(state, edits)

    async def evict(self, session: Session, *, dry_run: bool) -> Evicted:
        """Evict down to the low watermark, and store the state; the caller holds the lock. A dry run only plans."""
        evicted = await self._enforcement(session, PromptOverhead(), None).evict(dry_run=dry_run)
        if not dry_run:
            self.store.save(session, replace(session.state, omissions=evicted.plan.omissions))
        return evicted

    def _enforcement(self, session: Session, beside: PromptOverhead, fidelity: str | None) -> Enforcement:
        return Enforcement(
            self.budgets,
            session,
            beside,
            self._summarizer,
            self.can_move(fidelity),
            lambda state: self.precompute.options(state).predicts,
        )

    def can_move(self, fidelity: str | None) -> bool:
        """Whether a request of this fidelity moves KV. `auto` moves where little is removed, so it counts."""
        return (fidelity or self.default_fidelity) != "exact"

    def exchange(
        self,
        session: Session,
        params: SessionParams,
        messages: Sequence[Message],
        enforced: Enforced | None = None,
        turn_map: MapTurn | None = None,
    ) -> Exchange:
        """The exchange of one request of this session, for which `messages` were rendered; the map is not in them."""
        key = session.key
        engine_params = replace(
            params,
            session_id=engine_session_id(*engine_key(session)),
            forget=params.forget or self.must_forget(session),
        )

        def take(receipt: Mapping[str, Any], seconds: float) -> None:
            if engine_params.forget:
                self._told(key)
            self.budgets.rates.note(receipt["computed_tokens"], receipt["moved_tokens"], seconds)
            if enforced is not None and enforced.on_served is not None:
                enforced.on_served(receipt["prompt_tokens"])

        fields = {"budget": enforced.report} if enforced is not None and enforced.report is not None else {}
        slot = None
        if turn_map is not None:
            fields, slot = {**fields, **turn_map.fields}, turn_map.slot
        return Exchange(engine_params, session.session_id, self.served.of(*key), messages, take, fields, slot)

    def background_exchange(self, session: Session, num_cut: int) -> Exchange:
        """The exchange of a request that computes ahead for this session, all but the last `num_cut` tokens."""
        params = SessionParams(engine_session_id(*engine_key(session)), "exact", precompute=True)
        served = self.served.of(*session.key)
        return Exchange(params, session.session_id, served, remembers=False, num_cut=num_cut)

    def must_forget(self, session: Session) -> bool:
        """Whether the next request of this session has the engine forget what it was served."""
        return session.key in self._redacted or session.key in self._deleted

    def describe_kv(self, session: Session) -> list[str | None]:
        """For each message that the model sees, what the next request finds of its KV (see `served.py`)."""
        context = self.served.of(*session.key)
        return context.describe_kv(render(session.state), self.tokenizer)

    def _told(self, key: tuple[str, str]) -> None:
        self._redacted.discard(key)
        self._deleted.pop(key, None)

    async def _supply(self, wanted: SummaryWanted | EmbeddingsWanted) -> Any:
        if isinstance(wanted, SummaryWanted):
            return await self._summarizer.summarize(wanted)
        return await self._embedder.embed(wanted.texts)

    def _bench(self, suite: str, fidelity: str | None) -> ToolContext:
        return ToolContext(self.tokenizer, suite, fidelity or self.default_fidelity)


def engine_key(session: Session) -> tuple[str, str]:
    """Whose name a session has in the engine: a branch goes by that of its parent, whose KV it shares."""
    parent = session.state.parent
    return session.key if parent is None else (session.tenant, parent.session_id)


def engine_session_id(tenant: str, session_id: str) -> str:
    """The name of a session in the engine: tenants who chose the same name never meet there."""
    if not tenant:
        return session_id
    return hashlib.blake2b(f"{tenant}\n{session_id}".encode(), digest_size=24).hexdigest()
