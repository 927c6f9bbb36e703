"""`ContextServer`: the parts that a request of a session may need, built once and held together.

    sessions    store, tenants, locks, and what goes to the engine with a request
    editor      tool calls and edits of a session
    identifier  which session, and which thread of it, a request belongs to
    budgets     budgets and meters        maps    context maps        precompute    contexts computed between turns
    events      what happens to sessions, for whoever listens

Chat and routes take what they use from here. Knows no HTTP and no block tables. Decision: budgets, maps and
precompute are asked only by a request that uses them, so that a plain turn runs through few rooms.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from acmserve.context.accounting.rendered_spans import PromptRenderer
from acmserve.context.eviction.clearing_edits import VendorEdit
from acmserve.context.maps.rules import MapRules
from acmserve.context.session.precompute_options import PrecomputeOptions
from acmserve.context.session.rollout.record import Initiator
from acmserve.context.session.state import SessionState
from acmserve.context.session.turns.turn import EvictionKind, TurnEviction
from acmserve.context.storage.map_store import MapStore
from acmserve.context.storage.session import Key, Session
from acmserve.context.storage.session_store import SessionStore
from acmserve.context.tools.batch import Edit
from acmserve.context.transcript.observations import AUTO, ObservationRule
from acmserve.context.transcript.tokenizer import Tokenizer
from acmserve.plan.calibration import DEFAULT
from acmserve.plan.harm.level import LevelLadder, ladder_of
from acmserve.server.budget.budgets import Budgets, PromptOverhead
from acmserve.server.budget.conversation_summary import LivePrompt
from acmserve.server.budget.enforcement import Enforced, Enforcement, Evicted
from acmserve.server.budget.report import levels_json, steps_json
from acmserve.server.exchange.events import Event, log
from acmserve.server.exchange.served_prompts import ServedContexts
from acmserve.server.http.tenants import Tenants
from acmserve.server.maps.maps import Maps
from acmserve.server.maps.updates import MapUpdates
from acmserve.server.models.model_identity import ModelIdentity
from acmserve.server.models.prompt_renderer import Placing
from acmserve.server.models.protocols import Embedder, Summarizer
from acmserve.server.options.harm import HarmMode
from acmserve.server.options.prices import TokenPrices
from acmserve.server.precompute.background_request import Background
from acmserve.server.precompute.harm.estimates import HarmEstimates
from acmserve.server.precompute.harm.levels import AutoLevels
from acmserve.server.precompute.harm.probe import HarmProbe
from acmserve.server.precompute.precomputer import Precomputer
from acmserve.server.precompute.preparation import Preparation
from acmserve.server.sessions.editor import SessionEditor
from acmserve.server.sessions.events import SessionEvents
from acmserve.server.sessions.identifier import Identifier
from acmserve.server.sessions.rollout import operate_rollout
from acmserve.server.sessions.sessions import Sessions
from acmserve.server.sessions.storage import StorageFailures, watch_store


class ContextServer:
    """At `app.state.acm_server`. One per API server process. See the module for its parts."""

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
        tenants: Tenants | None = None,
        budgets: Budgets | None = None,
        maps: Maps | None = None,
        background: Background | None = None,
        precompute: PrecomputeOptions | None = None,
        pool_tokens: int | None = None,
        identifier: Identifier | None = None,
        renderers: Callable[[Mapping[str, Any], Placing], PromptRenderer] | None = None,
        observations: ObservationRule = AUTO,
        rollout: bool = False,
        call_marks: Sequence[str] = (),
        prices: TokenPrices | None = None,
        identity: ModelIdentity | None = None,
        shares_maps: bool = True,
        harm: HarmMode = HarmMode.FOLLOW,
        ladder: LevelLadder | None = None,
    ) -> None:
        self.tokenizer = tokenizer
        self.default_fidelity = default_fidelity
        self.max_tool_calls = max_tool_calls
        self.observations, self.rollout, self.call_marks = observations, rollout, call_marks
        self.prices = prices or TokenPrices()
        self.identity = identity or ModelIdentity()
        self.shares_maps = shares_maps
        self.store = store
        self.served = served
        self.budgets = budgets or Budgets(tokenizer)
        self.rules = self.budgets.rules
        self.sessions = self._make_sessions(has_api_keys, tenants)
        self.maps = maps or Maps(MapUpdates(MapStore(), MapRules(tokenizer)))
        self.harm = HarmEstimates(self.identity.names[0])
        self.auto_levels = AutoLevels(ladder or ladder_of(DEFAULT), self.identity.names[0])
        probe = None if background is None or harm is HarmMode.OFF else self._probe_harm(harm)
        self.precompute = Precomputer(self.sessions, self.budgets, background, precompute, pool_tokens, probe)
        self.editor = self._make_editor(summarizer, embedder)
        self.identifier = identifier or Identifier(store=store, served=served)
        self._summarizer = summarizer
        self._renderers = renderers
        self.events = SessionEvents(store)
        self._listen_to_stores()

    def _make_sessions(self, has_api_keys: bool, tenants: Tenants | None) -> Sessions:
        return Sessions(
            self.store,
            self.served,
            self.budgets.rates,
            default_fidelity=self.default_fidelity,
            has_api_keys=has_api_keys,
            tenants=tenants,
            rules=self.rules,
        )

    def _probe_harm(self, harm: HarmMode) -> HarmProbe:
        """Who judges what moved KV did to answers. Sessions ask it what to take down, and how bold `auto` is."""
        levels = self.auto_levels if harm is HarmMode.FOLLOW else None
        probe = HarmProbe(self.sessions, self.harm, self._will_heal, self.budgets.window, levels)
        self.sessions.scores, self.sessions.level = probe.scores, probe.level
        return probe

    def _make_editor(self, summarizer: Summarizer, embedder: Embedder) -> SessionEditor:
        return SessionEditor(
            self.sessions,
            self.budgets,
            summarizer,
            embedder,
            default_fidelity=self.default_fidelity,
            summaries=lambda session: self.precompute.preparations(session).summaries,
            on_redacted=self._redacted,
        )

    def _listen_to_stores(self) -> None:
        """Hear of sessions that leave and of writes that fail, and show on /metrics what is held."""
        failures = StorageFailures()
        self.store.on_gone, self.store.on_leave, self.store.on_failure = self._gone, self._left, failures.note
        self.maps.store.on_failure = failures.note
        watch_store(self.store)

    async def prepare(self, session: Session, batch: Sequence[Edit], cache_salt: str | None = None) -> Preparation:
        """Plan edits on a copy of the session and have the result precomputed. Raises what `SessionEditor.edit` does.

        A summary that the plan takes is kept for the edits themselves, which then give the same bytes.
        """
        planned = await self.editor.plan_edits(session, batch)
        made = self.precompute.prepare(session, planned.state, planned.num_computed, cache_salt)
        self.precompute.preparations(session).keep(planned.summaries)
        return made

    def _will_heal(self, session: Session) -> bool:
        return self.precompute.options(session.state).heals

    def renderer(self, body: Mapping[str, Any], place: Placing) -> PromptRenderer | None:
        """Writes the prompts of a request: `place` makes its messages of those of the session. None: nobody can."""
        return None if self._renderers is None else self._renderers(body, place)

    def delete(self, session: Session) -> None:
        """Delete a session, and everything that was kept for it. Raises `StorageFailed`, see `Sessions.delete`."""
        self.sessions.delete(session)

    async def enforce(
        self,
        session: Session,
        state: SessionState,
        overhead: PromptOverhead,
        fidelity: str | None,
        edits: Sequence[VendorEdit] | None = None,
        live: LivePrompt | None = None,
    ) -> Enforced:
        """Bring a state, which goes on from the session's own, under the edits of its request and under its budget.

        `live` is how requests of the session are made, for a summary that is asked for behind its conversation.
        """
        enforced = await self._enforcement(session, overhead, fidelity, live).enforce(state, edits)
        _log_evictions(session, enforced)
        return enforced

    def preview(
        self,
        session: Session,
        state: SessionState,
        overhead: PromptOverhead,
        fidelity: str | None,
        edits: Sequence[VendorEdit] | None = None,
    ) -> tuple[SessionState, int]:
        """What `enforce` would show as far as no model is asked for it, and about how many tokens that has.

        Nothing is learned from it: the next `enforce` decides as if it had not been.
        """
        apart = self.budgets.apart(session)
        return self._enforcement(session, overhead, fidelity, budgets=apart).preview(state, edits)

    async def evict(self, session: Session, *, dry_run: bool) -> Evicted:
        """Evict down to the low watermark, and store the state. The caller holds the lock. A dry run only plans."""
        evicted = await self._enforcement(session, PromptOverhead(), None).evict(dry_run=dry_run)
        if not dry_run:
            state = replace(session.state, omissions=evicted.plan.omissions)
            arguments = {"evicted": steps_json(evicted.plan.steps)}
            saved = evicted.plan.cleared_input_tokens
            if saved:
                log(Event.EVICTION, session.session_id, by="caller", steps=len(evicted.plan.steps), tokens=saved)
            self.store.save(session, operate_rollout(state, Initiator.CALLER, "evict", arguments, saved))
            self.sessions.turns.note(session, evictions=self._evicted(session, evicted))
        return evicted

    def _evicted(self, session: Session, evicted: Evicted) -> Sequence[TurnEviction]:
        """What the next turn names of an eviction that a caller asked for."""
        budget, plan = self.budgets.of(session.state), evicted.plan
        if budget is None or not plan.changes:
            return ()
        kind, num_tokens = EvictionKind.CALLER, plan.cleared_input_tokens
        return (TurnEviction(kind, budget.policy, num_tokens, levels_json(plan.steps)),)

    def _enforcement(
        self,
        session: Session,
        overhead: PromptOverhead,
        fidelity: str | None,
        live: LivePrompt | None = None,
        budgets: Budgets | None = None,
    ) -> Enforcement:
        return Enforcement(
            budgets or self.budgets,
            session,
            overhead,
            self._summarizer,
            self.sessions.can_move(fidelity),
            lambda state: self.precompute.options(state).predicts,
            live,
        )

    def _redacted(self, session: Session, before: SessionState) -> None:
        self.identifier.catch_up(session.key, before)
        self.maps.redact(session, before)
        self.precompute.forget(session.key)
        self.harm.forget(session.key)
        self.auto_levels.forget(session.key)
        self.sessions.forget(session)
        if self.identifier.threads is not None:
            for side in self.identifier.threads.drop_forks(session):
                self.sessions.forget(side)

    def _gone(self, key: Key) -> None:
        """A session is gone for good: so is what was served to it, and what was made for it."""
        self.events.publish(key, "deleted")
        self.served.drop(*key)
        self.identifier.forget(key)
        self.maps.forget(key)
        self.harm.forget(key)
        self.auto_levels.forget(key)
        self._left(key)

    def _left(self, key: Key) -> None:
        """A session left memory. What can be made again when it comes back goes with it."""
        self.budgets.drop(key)
        self.precompute.forget(key)


def _log_evictions(session: Session, enforced: Enforced) -> None:
    """Tell what a budget and the edits of a request took out."""
    report = enforced.report or {}
    if report.get("evicted_tokens"):
        steps, tokens = len(report["evicted"]), report["evicted_tokens"]
        log(Event.EVICTION, session.session_id, by=report["policy"], steps=steps, tokens=tokens)
    for applied in (enforced.edited or {}).get("applied_edits", ()):
        log(Event.EVICTION, session.session_id, by=applied["type"], tokens=applied["cleared_input_tokens"])
