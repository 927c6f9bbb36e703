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

Decision: a request whose session no client of ours named is never refused for it. Where its session cannot be opened,
or its body is no strict JSON, it is answered as one without a session.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterator, Mapping, Sequence
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
from acmserve.server.identity.placement import Placement
from acmserve.server.identity.prompt import PromptUnits, digest_tools, read_prompt
from acmserve.server.identity.responses import ResponseSessions
from acmserve.server.identity.thread_hints import HEADERS, ThreadHints, read_hints
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

    `engine_id` is the id by which the engine knows the KV. `fields` join `acm` in the answer.
    """

    tenant: str
    family: str
    params: SessionParams
    found_by: str
    is_explicit: bool
    engine_id: str
    placement: Placement | None = None
    owner: Identifier | None = field(default=None, repr=False)

    @property
    def fields(self) -> dict[str, Any]:
        """How the session was found, and the thread where it is not the main one."""
        found = {"found_by": self.found_by}
        if self.placement is not None and not self.placement.is_main:
            found["thread"] = self.placement.thread.name
        return found

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
        asked, found_by = self._asked(body, headers, tenant), ""
        if is_held and asked is not None and self._goes_on_alone(asked, body, headers, tenant):
            family = asked.params.session_id
            return Identified(tenant, family, asked.params, asked.found_by, asked.is_explicit, family)
        hints = read_hints(headers)
        prompt: PromptUnits | None = None
        if asked is None and self._infers and names_none(body, headers, self.sources, self._lookup(tenant)):
            prompt = read_prompt(body)
            if prompt is not None and len(prompt):
                known = self.families.find(tenant, prompt)
                found_by = NEW if known is None else SUMMARY if known.by_summary else CONTENT
                session_id = f"acm-{secrets.token_hex(12)}" if known is None else known.family
                asked = parse_session_request(body, headers, self.sources, session_id=session_id)
        if asked is None:
            return None
        if is_held and not asked.is_explicit and not is_strict(body):
            return None
        family = asked.params.session_id
        found = Identified(tenant, family, asked.params, found_by or asked.found_by, asked.is_explicit, family)
        prompt = read_prompt(body) if prompt is None else prompt
        try:
            return self._placed(found, prompt, hints, body, is_held=is_held)
        except StorageFailed:
            found.withdraw()
            if asked.is_explicit:
                raise
            return None

    def look(self, body: object, headers: Mapping[str, str], tenant: str) -> Identified | None:
        """The thread that a request would belong to. Nothing is remembered, and none is inferred."""
        asked = self._asked(body, headers, tenant)
        if asked is None:
            return None
        family, prompt, hints = asked.params.session_id, read_prompt(body), read_hints(headers)
        session_id = self.families.look(tenant, family, prompt, hints, is_explicit=asked.is_explicit)
        params = replace(asked.params, session_id=session_id)
        engine_id = self.families.engine_id(tenant, session_id)
        return Identified(tenant, family, params, asked.found_by, asked.is_explicit, engine_id)

    def withdraw(self, tenant: str, placement: Placement) -> None:
        """Take back what was remembered of a request that has failed, and a session that was made for it."""
        self.families.withdraw(tenant, placement)
        if self.threads is not None and placement.before is None:
            self.threads.discard_empty(tenant, placement.thread.session_id)

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

    def _continued(self, tenant: str, family: str, body: object) -> str | None:
        """The thread that a request of /v1/responses goes on with by name, since it does not send its history."""
        named = [body.get(name) for name in CONTINUES] if isinstance(body, Mapping) else []
        if not any(named):
            return None
        session_id = self.responses.of(tenant, named[0]) if isinstance(named[0], str) else None
        return session_id or family

    def _placed(
        self, found: Identified, prompt: PromptUnits | None, hints: ThreadHints, body: Any, *, is_held: bool
    ) -> Identified:
        """Choose the thread. A request without messages belongs to the session itself, and so does one that names a
        branch or a side thread.
        """
        tenant, family = found.tenant, found.family
        if (session_id := self._continued(tenant, family, body)) is not None:
            found.params = replace(found.params, session_id=session_id)
            found.engine_id = self.families.engine_id(tenant, session_id)
            return found
        found.engine_id = self.families.engine_id(tenant, family)
        if prompt is None or self.families.is_side(tenant, family):
            return found
        if self.threads is not None and self.threads.has_no_threads(tenant, family):
            return found
        placement = self.families.place(tenant, family, prompt, hints, is_explicit=found.is_explicit)
        found.placement, found.owner = placement, self
        found.engine_id = placement.thread.engine_id
        session_id = placement.thread.session_id
        if session_id != family:
            found.params = replace(found.params, session_id=session_id)
        if is_held and self.threads is not None:
            self.threads.settle(tenant, placement)
        return found
