"""Finds the session of a request, and its thread: what the request names, else what its content goes on with.

    body, headers --a place of the table--> "agent-7"          found_by: the name of the place
                  --the content-----------> "acm-4f.."         found_by: "content"       (`infer_sessions`)
                  --a summary of it-------> "acm-4f.."         found_by: "summary"       (`infer_sessions`)
                  --nothing---------------> "acm-91.."         found_by: "new"           (`infer_sessions`)
                                               |
                                               '--> the thread of that session: "agent-7", "agent-7~task-1a2b"

One for each API server process. A route calls `identify` once for each request, `answered` with what it answers, and
`withdraw` when the request fails. Where sessions are held, the thread's session is in the store when `identify`
returns. Without a store threads have names in the engine only. Nothing is ever found across API keys or cache salts:
everything is looked up under the tenant of the request.

A request that is only counted, or summarized, is looked for in the same way (`look`). It is put nowhere: what its
session would be then is only told.

Decision: a request whose session no client of ours named is never refused for it. Where its session cannot be opened,
or its body is no strict JSON, it is answered as one without a session.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

from acmserve.context.session.history import grows
from acmserve.context.session.state import SessionState
from acmserve.context.storage.session import Key
from acmserve.context.storage.session_store import SessionStore
from acmserve.errors import StorageFailed
from acmserve.plan.request import SessionParams
from acmserve.server.exchange.served_prompts import ServedContexts
from acmserve.server.http.strict_json import is_strict
from acmserve.server.identity.families import Families
from acmserve.server.identity.placement import Placement, is_of_family
from acmserve.server.identity.prompt import PromptUnits, digest_tools, read_prompt
from acmserve.server.identity.responses import ResponseSessions
from acmserve.server.identity.thread_hints import HEADERS, ThreadHints, read_hints
from acmserve.server.options.compaction_content import session_in
from acmserve.server.options.session_params import (
    SOURCES,
    Lookup,
    NamedRequest,
    Source,
    names_none,
    parse_session_request,
)
from acmserve.server.sessions.thread_sessions import ThreadSessions, stored_conversation

CONTENT, SUMMARY, NEW = "content", "summary", "new"
HEADS = ("system", "instructions")
"""Where system texts stand beside the messages."""
CONTINUES = ("previous_response_id", "conversation")
"""Fields of /v1/responses that leave the history to the server."""


@dataclass(slots=True)
class Attempt:
    """Whether a request was answered."""

    is_answered: bool = False


@dataclass(slots=True)
class Identified:
    """The session of a request. `params` name its thread, `family` is the id that the client sends, or gets told.

    `engine_id` is the id by which the engine knows the KV. `fields` join `acm` in the answer. `foresee` gives the state
    that the session would have for a request that is only looked for. It is None for every other request.
    """

    tenant: str
    family: str
    params: SessionParams
    found_by: str
    is_explicit: bool
    engine_id: str
    placement: Placement | None = None
    owner: Identifier | None = field(default=None, repr=False)
    foresee: Callable[[], SessionState] | None = field(default=None, repr=False)

    @property
    def told(self) -> dict[str, Any]:
        """`acm` for a request that is only looked for. What it would begin has no name, but for a named session."""
        is_main = self.placement is None or self.placement.is_main
        if self.begins and (self.found_by == NEW or not is_main):
            return {"found_by": self.found_by}
        return {"session_id": self.params.session_id, **self.fields}

    @property
    def begins(self) -> bool:
        """Whether the request is the first one of its session, or of its thread."""
        return self.found_by == NEW or (self.placement is not None and self.placement.before is None)

    @property
    def fields(self) -> dict[str, Any]:
        """How the session was found, and the thread where it is not the main one."""
        found = {"found_by": self.found_by}
        if self.placement is not None and not self.placement.is_main:
            found["thread"] = self.placement.thread.name
        return found

    def belong(self, session_id: str, engine_id: str) -> None:
        """The request belongs to this session, which the engine knows by that id."""
        self.params = replace(self.params, session_id=session_id)
        self.engine_id = engine_id

    @contextmanager
    def attempt(self) -> Iterator[Attempt]:
        """The time in which a request is answered. Whatever ends it without an answer, it is taken back then."""
        attempt = Attempt()
        try:
            yield attempt
        finally:
            if not attempt.is_answered:
                self.withdraw()

    def answered(self, message: object) -> None:
        """The request was answered with this message."""
        if self.owner is not None and self.placement is not None:
            self.owner.families.answered(self.tenant, self.placement, message)

    def withdraw(self) -> None:
        """The request has failed: its thread is what it was before."""
        if self.owner is not None and self.placement is not None:
            self.owner.withdraw(self.tenant, self.placement)


class Identifier:
    """`responses` is what `/v1/responses` notes its answers in, so that `previous_response_id` finds their session."""

    def __init__(
        self,
        sources: Sequence[Source] = SOURCES,
        *,
        infers: bool = False,
        store: SessionStore | None = None,
        served: ServedContexts | None = None,
    ) -> None:
        self.sources = sources
        self.responses = ResponseSessions()
        self._store = store
        self.threads = None if store is None or served is None else ThreadSessions(store, served)
        self.families = Families(None if self.threads is None else self.threads.load, indexes=infers)
        self._infers = infers

    def identify(
        self, body: object, headers: Mapping[str, str], tenant: str, *, is_held: bool = False
    ) -> Identified | None:
        """The session of a request, None where it has none. `is_held`: the caller keeps its transcript.

        Raises InvalidRequest for a request that is wrong in what it says of its session.
        """
        asked = self._asked(body, headers, tenant)
        if is_held and asked is not None and self._goes_on_alone(asked, body, headers, tenant):
            family = asked.params.session_id
            return Identified(tenant, family, asked.params, asked.found_by, asked.is_explicit, family)
        found, prompt = self._found(asked, body, headers, tenant, is_held=is_held)
        if found is None:
            return None
        try:
            chosen_by = self._chosen_by(found, prompt, body, is_use=True)
            if chosen_by is not None:
                hints = read_hints(headers, resumes=found.found_by == SUMMARY)
                self._place(found, chosen_by, hints, is_held=is_held)
            return found
        except StorageFailed:
            found.withdraw()
            if found.is_explicit:
                raise
            return None

    def look(
        self, body: object, headers: Mapping[str, str], tenant: str, *, is_held: bool = False, is_use: bool = False
    ) -> Identified | None:
        """What `identify` would say of a request that is not made now. Nothing is remembered or made.

        `is_use`: the session is used where there is one. Otherwise not even that. Raises what `identify` does.
        """
        found, prompt = self._found(self._asked(body, headers, tenant), body, headers, tenant, is_held=is_held)
        if found is None:
            return None
        try:
            chosen_by = self._chosen_by(found, prompt, body, is_use=False)
            if chosen_by is not None:
                self._look(found, chosen_by, read_hints(headers, resumes=found.found_by == SUMMARY))
        except StorageFailed:
            if found.is_explicit:
                raise
            return None
        if self.threads is not None and found.foresee is None:
            found.foresee = partial(self.threads.state_of, tenant, found.params.session_id)
        if is_use and not found.begins:
            found.foresee = None
        return found

    def withdraw(self, tenant: str, placement: Placement) -> None:
        """Take back what was remembered of a request that has failed, and a session that was made for it alone."""
        is_last = self.families.withdraw(tenant, placement)
        if is_last and self.threads is not None and placement.before is None:
            self.threads.discard_empty(tenant, placement)

    def forget(self, key: Key) -> None:
        """A session is gone for good: nothing is found by its content any more."""
        if self.threads is None or self.threads.moving != key:
            self.families.drop(key)

    def catch_up(self, key: Key, state: SessionState) -> None:
        """Texts of a session are about to go. What it was is remembered, as hashes, where its content was not read."""
        self.families.catch_up(key, stored_conversation(state))

    def _goes_on_alone(self, asked: NamedRequest, body: Any, headers: Mapping[str, str], tenant: str) -> bool:
        """Whether a request can be meant for the main thread of its session only, so that its content need not be read.

        A client of ours named the session, which has no other thread, and what the session holds stands in the request,
        word for word.
        """
        family = asked.params.session_id
        if self._store is None or not asked.is_explicit or any(name in headers for name in HEADERS):
            return False
        if any(body.get(name) is not None for name in (*HEADS, *CONTINUES)) or not self._store.has(tenant, family):
            return False
        state, messages = self._store.get(tenant, family).state, body.get("messages")
        if state.thread is not None or state.parent is not None or not state.entries or not isinstance(messages, list):
            return False
        tools = digest_tools(body["tools"]) if body.get("tools") else 0
        return grows(state, messages) and self.families.goes_on_alone(tenant, family, tools)

    def _asked(self, body: object, headers: Mapping[str, str], tenant: str) -> NamedRequest | None:
        """What a request says of its session. Where content may find it, nothing has to be said."""
        lookup = self._lookup(tenant)
        if self._infers and names_none(body, headers, self.sources, lookup):
            return None
        return parse_session_request(body, headers, self.sources, lookup)

    def _lookup(self, tenant: str) -> Lookup:
        return partial(self.responses.of, tenant)

    def _continued(self, found: Identified, body: object) -> str | None:
        """The thread that a request of /v1/responses goes on with by name, since it does not send its history.

        Where a client of ours names the session, too, an answer of another one leads nowhere: it is not held there.
        """
        named = [body.get(name) for name in CONTINUES] if isinstance(body, Mapping) else []
        if not any(named):
            return None
        session_id = self.responses.of(found.tenant, named[0]) if isinstance(named[0], str) else None
        if session_id is None or (found.is_explicit and not is_of_family(session_id, found.family)):
            return found.family
        return session_id

    def _found(
        self, asked: NamedRequest | None, body: Any, headers: Mapping[str, str], tenant: str, *, is_held: bool
    ) -> tuple[Identified | None, PromptUnits | None]:
        """The session of a request, whose thread is not chosen yet, and what the request says."""
        found_by = ""
        prompt: PromptUnits | None = None
        if asked is None and self._infers and names_none(body, headers, self.sources, self._lookup(tenant)):
            prompt = read_prompt(body)
            if prompt is not None and len(prompt):
                session_id, found_by = self._inferred(tenant, prompt, body)
                asked = parse_session_request(body, headers, self.sources, session_id=session_id)
        if asked is None or (is_held and not asked.is_explicit and not is_strict(body)):
            return None, None
        family = asked.params.session_id
        found = Identified(tenant, family, asked.params, found_by or asked.found_by, asked.is_explicit, family)
        return found, read_prompt(body) if prompt is None else prompt

    def _inferred(self, tenant: str, prompt: PromptUnits, body: object) -> tuple[str, str]:
        """The session that a request goes on with, which it does not name, and by what it was found. Else a new one."""
        known = self.families.find(tenant, prompt)
        if known is not None:
            return known.family, SUMMARY if known.by_summary else CONTENT
        compacted = session_in(body)
        if compacted is not None and self._store is not None and self._store.has(tenant, compacted):
            return compacted, SUMMARY
        return f"acm-{secrets.token_hex(12)}", NEW

    def _chosen_by(
        self, found: Identified, prompt: PromptUnits | None, body: Any, *, is_use: bool
    ) -> PromptUnits | None:
        """What the thread is chosen by, None where there is nothing to choose.

        A request that goes on from an answer by its id belongs to the thread that gave it. One without messages belongs
        to the session itself, and so does one that names a branch or a side thread.
        """
        tenant, family = found.tenant, found.family
        session_id = self._continued(found, body)
        found.belong(session_id or family, self.families.engine_id(tenant, session_id or family))
        if session_id is not None or prompt is None or self.families.is_side(tenant, family):
            return None
        if self.threads is not None and self.threads.has_no_threads(tenant, family, is_use=is_use):
            return None
        return prompt

    def _place(self, found: Identified, prompt: PromptUnits, hints: ThreadHints, *, is_held: bool) -> None:
        """Choose the thread, and make its session what was chosen."""
        tenant, family = found.tenant, found.family
        placement = self.families.place(tenant, family, prompt, hints, is_explicit=found.is_explicit)
        found.placement, found.owner = placement, self
        found.belong(placement.thread.session_id, placement.thread.engine_id)
        if is_held and self.threads is not None:
            self.threads.settle(tenant, placement)

    def _look(self, found: Identified, prompt: PromptUnits, hints: ThreadHints) -> None:
        """Choose the thread, and make nothing."""
        tenant, family = found.tenant, found.family
        placement = self.families.look(tenant, family, prompt, hints, is_explicit=found.is_explicit)
        found.placement = placement
        found.belong(placement.thread.session_id, placement.thread.engine_id)
        if self.threads is not None:
            found.foresee = partial(self.threads.foresee, tenant, placement)
