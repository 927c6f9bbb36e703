"""The context maps of this server as chat requests meet them: a request's map, its place in the prompt, what it learns
from the answer.

    request with acm.map --begin--> MapTurn --place--> messages, slot --> engine
                                                                 answer --finished--> MapUpdates, in the background

A query reads one map from its question to its answer, over all its requests (results of tools and observations between
them). An answer that calls tools ends no query. Neither does one whose text asks for something to be run, unless it has
FINAL(...) beside it. Then the next question ends it, or a request that says `query_finished`. What is learned meanwhile
counts for the next question. What a session has read is remembered in memory only. After a restart nothing of it is
cached either. It knows no routes.

A query is told from the next one by how many questions the user has asked. So a question that is sent again is none.

Decision: with "final" the map learns at once from a FINAL answer, because behind the last question no request follows.
Where the query goes on, the loop has refused that answer. The update is taken back when the next request of the query
is answered, so one that fails takes nothing back. An update that was done by then stays, and is the only one of its
query. A loop that knows its last request says `false` with those before it and `true` with that one. Then nothing is
guessed.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace

from acmserve.context.maps.map import DEFAULT_BUDGET, DEFAULT_EVOLVE_STEPS, ContextMap
from acmserve.context.maps.rules import MapRules
from acmserve.context.maps.section import SECTION_NAMES
from acmserve.context.maps.text import render_map
from acmserve.context.maps.trajectory import last_query
from acmserve.context.maps.update import MapSettings, settle
from acmserve.context.session.render import questions
from acmserve.context.session.state import Author, SessionState
from acmserve.context.storage.map_store import HeldMap, MapStore
from acmserve.context.storage.map_table import MapKey
from acmserve.context.storage.session import Key, Session
from acmserve.context.transcript.message import Message
from acmserve.context.transcript.observations import has_action, has_final_answer
from acmserve.context.transcript.tokenizer import count_tokens
from acmserve.errors import Conflict, InvalidRequest, StorageFailed
from acmserve.server.exchange.map_slot import ALIGNMENT, MapSlots, Slot
from acmserve.server.http.unsaved import storage_fields
from acmserve.server.maps.queries import finished_query
from acmserve.server.maps.redacted import redacted_now
from acmserve.server.maps.turn import MapCopy, MapTurn, behind_evictions, follow, is_new_query
from acmserve.server.maps.updates import MapUpdates
from acmserve.server.options.map_options import (
    DEFAULT_UPDATE,
    FINAL,
    MapOptions,
    QueryFinished,
    UpdateOptions,
    placement_for,
)

MAX_READERS = 4096
_PUT = "change the map for all its sessions: PUT /v1/acm/maps/{external_context_id}"
_SETTLED = {"budget": _PUT, "evolve_steps": _PUT, "sections": "delete the map, and begin it anew"}
"""What a map has from its beginning, each with the way to another value."""
# The sentence in front of the map, and what joins it to the message.
_NUM_LEAD_TOKENS = 24


@dataclass(frozen=True, slots=True)
class _Read:
    """What the running query of a session reads, and where earlier ones left their copies.

    The user had asked `num_users` times. `is_open`: it was answered, and nobody knows yet whether that was all.
    `is_taught`: a FINAL answer ended it, and the map learns from it. `update` is what its newest request says of it.
    """

    held: HeldMap
    placement: str
    text: str
    version: int
    copies: tuple[MapCopy, ...] = ()
    num_users: int = 0
    is_open: bool = False
    is_taught: bool = False
    update: UpdateOptions = DEFAULT_UPDATE


@dataclass(slots=True)
class Making:
    """A map that requests make which have not been answered yet. So many of them are under way."""

    key: MapKey
    num_running: int = 0


class Maps:
    """At `ContextServer.maps`. `reads` is what sessions read of maps, by session.

    `slots` is None where the tokenizer has no ids (tests of routes): no placement `head`.
    """

    def __init__(self, updates: MapUpdates, slots: MapSlots | None = None) -> None:
        self.updates = updates
        self._slots = slots
        self.reads: OrderedDict[Key, _Read] = OrderedDict()
        self._making: dict[MapKey, Making] = {}

    @property
    def store(self) -> MapStore:
        """All maps."""
        return self.updates.store

    @property
    def rules(self) -> MapRules:
        """What they are measured by."""
        return self.updates.rules

    def expect(self, tenant: str, options: MapOptions) -> Making | None:
        """A request begins that names a map. What `leave` takes at its end, None where the map was there before."""
        key = (tenant, options.external_context_id)
        making = self._making.get(key)
        if making is None and self.store.find(key) is None:
            making = self._making[key] = Making(key)
        if making is not None:
            making.num_running += 1
        return making

    def leave(self, session: Session, making: Making, *, answered: bool) -> None:
        """The request ends. The last of those that fail takes the map back, if none was answered and nobody set it."""
        making.num_running -= 1
        if self._making.get(making.key) is making and (answered or not making.num_running):
            del self._making[making.key]
            if not answered:
                self._take_back(session, making.key)

    def settle(self, tenant: str, map_id: str, wanted: MapSettings) -> tuple[HeldMap, bool]:
        """Set what a person wants of a map, made where there is none: the map, and whether it was made.

        Raises `InvalidRequest`.
        """
        held = self.store.find((tenant, map_id))
        old = ContextMap() if held is None else held.context_map
        if held is None:
            self.rules.check_budget(wanted.budget or old.budget, "budget")
        new = settle(old, wanted, self.rules, self.store.clock())
        self._making.pop((tenant, map_id), None)
        if held is None:
            return self.store.create((tenant, map_id), new), True
        if new is not old:
            self.store.save(held, new)
        return held, False

    def begin(
        self,
        session: Session,
        options: MapOptions | None,
        state: SessionState,
        *,
        can_move: bool = False,
        query_finished: QueryFinished | None = None,
    ) -> MapTurn | None:
        """The map in the next request of a session, whose history is that of `state`. None without `acm.map`.

        `can_move` says whether the request moves KV, which decides the placement where none is asked for.
        Raises `InvalidRequest`, `Conflict` for settings that contradict those of the map.
        """
        if options is None:
            self.reads.pop(session.key, None)
            return None
        placement = placement_for(options, can_move=can_move)
        held = self._open(session.tenant, options, placement)
        messages, asked = [entry.message for entry in state.entries], questions(state)
        before, new_query = self.reads.get(session.key), is_new_query(messages, state.observations)
        own = before if before is not None and before.held is held else None
        if own is not None and own.is_open and len(asked) > own.num_users:
            self._learn(held, session.session_id, own.update, state, messages[: asked[own.num_users]])
        goes_on = own is not None and (len(asked) == own.num_users or (len(asked) < own.num_users and not new_query))
        if before is None and state.parent is not None:
            # A branch begins on the parent's KV, so it begins with the map that the parent reads.
            before, new_query = self.reads.get((session.tenant, state.parent.session_id)), False
        if before is not None and (before.held is not held or before.placement != placement):
            before = None
        read = _follow(before, held, placement, state, new_query=new_query)
        if own is not None and goes_on:
            read = replace(read, is_open=own.is_open, is_taught=own.is_taught)
        self.reads[session.key] = replace(read, update=options.update)
        self.reads.move_to_end(session.key)
        while len(self.reads) > MAX_READERS:
            self.reads.popitem(last=False)
        budget = held.context_map.budget
        slot = Slot(self._slots, read.text, budget) if placement == "head" and self._slots is not None else None
        num_tokens = budget + ALIGNMENT + _NUM_LEAD_TOKENS if slot is not None else self._count(read.copies)
        fields = {
            "external_context_id": options.external_context_id,
            "placement": placement,
            "version": read.version,
            "tokens": count_tokens(self.rules.tokenizer, read.text),
            "budget": budget,
            "frozen": held.context_map.frozen,
        }
        said = {"map": fields | storage_fields(held)}
        return MapTurn(held, read.text, options.update, slot, read.copies, num_tokens, said, query_finished)

    def finished(self, turn: MapTurn | None, session: Session) -> None:
        """Let the map learn from the query that the session's last answer ends, where it ends one."""
        entries, read = session.state.entries, self.reads.get(session.key)
        answers = [entry for entry in entries if entry.origin is Author.ANSWER]
        if turn is None or not answers or answers[-1].message.get("tool_calls"):
            return
        if read is not None and read.is_taught and not self.updates.take_back(turn.held, session.session_id):
            return
        ends = _ends_query(turn, answers[-1].message, session.state)
        messages = [entry.message for entry in entries]
        learned = ends and self._learn(turn.held, session.session_id, turn.update, session.state, messages)
        is_taught = learned and turn.query_finished == FINAL
        if read is not None:
            self.reads[session.key] = replace(read, is_open=not ends, is_taught=is_taught)

    def redact(self, session: Session, before: SessionState) -> None:
        """Something was redacted in a session: it leaves the queries that wait, and what the session reads of maps."""
        redacted, thread = redacted_now(before, session.state), session.state.thread
        # A main thread that was moved since has the id of its family in the engine, and in its queries.
        names = (session.session_id,) if thread is None else (session.session_id, thread.engine_id)
        self.updates.redact(session.tenant, names, redacted)
        if (read := self.reads.get(session.key)) is not None:
            copies = tuple(replace(copy, text=redacted.cut_text(copy.text)) for copy in read.copies)
            self.reads[session.key] = replace(read, text=redacted.cut_text(read.text), copies=copies)

    def forget(self, key: Key) -> None:
        """A session is gone, and so is what it has read. Its finished queries still teach, as they were asked to."""
        self.reads.pop(key, None)

    async def close(self) -> None:
        """End the updates that are under way. The file gets the maps that it lacks."""
        await self.updates.close()
        self.store.close()

    def _learn(
        self, held: HeldMap, session_id: str, update: UpdateOptions, state: SessionState, messages: Sequence[Message]
    ) -> bool:
        """Let the map learn from the last query of these messages. False where it learns no more."""
        if not self.updates.takes(held):
            return False
        ended = last_query(messages, state.observations)
        return self.updates.schedule(held, finished_query(ended, session_id, update, state, self.updates.max_chars))

    def _take_back(self, session: Session, key: MapKey) -> None:
        """Drop the map that a request made which has failed since. One that others read, or that has changed, stays."""
        held = self.store.find(key)
        if held is None or held.context_map.version or held.context_map.history or self.updates.num_pending(held.key):
            return
        if all(read.held is not held for key, read in self.reads.items() if key != session.key):
            self.reads.pop(session.key, None)
            with suppress(StorageFailed):
                self.store.delete(held.key)

    def _open(self, tenant: str, options: MapOptions, placement: str) -> HeldMap:
        """The map, made where there is none. Raises what `begin` does, and nothing is made then."""
        held = self.store.find((tenant, options.external_context_id))
        if held is None:
            budget = DEFAULT_BUDGET if options.budget is None else options.budget
            steps = DEFAULT_EVOLVE_STEPS if options.evolve_steps is None else options.evolve_steps
            self.rules.check_budget(budget, "acm.map.budget")
            self._check_placement(placement, budget)
            new = ContextMap(budget=budget, evolve_steps=steps, sections=options.sections or SECTION_NAMES)
            return self.store.create((tenant, options.external_context_id), new)
        for name, remedy in _SETTLED.items():
            given, own = getattr(options, name), getattr(held.context_map, name)
            if given is not None and given != own:
                problem = f"is {_in_words(given)}, but the map of {options.external_context_id!a} has {_in_words(own)}."
                raise Conflict(f"acm.map.{name}", problem, f"Leave it out, or {remedy}.")
        self._check_placement(placement, held.context_map.budget)
        return held

    def _check_placement(self, placement: str, budget: int) -> None:
        """Raise `InvalidRequest` where the map can have no slot in the head."""
        if placement == "head":
            if self._slots is None:
                raise InvalidRequest("acm.map.placement", "'head' is impossible here.", "Send 'tail'.")
            self._slots.placeholder(budget)

    def _count(self, copies: Sequence[MapCopy]) -> int:
        return sum(count_tokens(self.rules.tokenizer, copy.text) + _NUM_LEAD_TOKENS for copy in copies)


def _in_words(value: int | tuple[str, ...]) -> str:
    return f"{value:,}" if isinstance(value, int) else ", ".join(value)


def _ends_query(turn: MapTurn, answer: Message, state: SessionState) -> bool:
    """Whether an answer without tool calls ends its query: as the request says, or as the text looks."""
    if turn.query_finished == FINAL:
        return has_final_answer(answer)
    if turn.query_finished is not None:
        return turn.query_finished
    is_off = state.observation_rule is not None and state.observation_rule.mode == "off"
    return is_off or not has_action(answer) or has_final_answer(answer)


def _follow(before: _Read | None, held: HeldMap, placement: str, state: SessionState, *, new_query: bool) -> _Read:
    """What a request reads: the newest map with a new query, else what the query began with."""
    if before is None or new_query:
        text, version = render_map(held.context_map), held.context_map.version
    else:
        text, version = before.text, before.version
    num_users = len(questions(state))
    if placement == "head":
        return _Read(held, placement, text, version, num_users=num_users)
    old_copies = () if before is None else behind_evictions(before.copies, state, before.num_users - 1)
    # A map that says nothing yet is no use in a prompt. One that says nothing any more takes the place of others.
    shown = text if held.context_map.items or old_copies else ""
    copies = follow(old_copies, num_users, shown, new_query=before is None or new_query)
    return _Read(held, placement, text, version, copies, num_users)
