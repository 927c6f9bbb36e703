"""The session requests that are alive in one scheduler, each with vLLM's request, in order of arrival.

Knows ids, owners and who waits. Does not know plans, blocks or steps.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

from acmserve.engine.requests.session_request import SessionRequest
from acmserve.engine.vllm.block_pool import is_waiting
from acmserve.errors import IntegrityError
from acmserve.plan.owner import Owner

if TYPE_CHECKING:
    from acmserve.engine.vllm.types import Request

Entry = tuple[SessionRequest, "Request"]

_NUM_PREPARED = 4
"""Waiting requests for which sources are pinned before one step. The others are asked for when their turn comes."""
_MAX_PREPARED_TOKENS = 131_072
"""Tokens of these requests, but for the first one: each is looked up in the prefix cache, block by block."""


class LiveRequests:
    """See the module. A request is here from its arrival until it has finished or was aborted."""

    def __init__(self) -> None:
        self._entries: dict[str, Entry] = {}

    def __len__(self) -> int:
        return len(self._entries)

    def __iter__(self) -> Iterator[Entry]:
        return iter(self._entries.values())

    def add(self, session: SessionRequest, request: Request) -> None:
        """A session request arrived."""
        self._entries[session.request_id] = (session, request)

    def remove(self, request_id: str) -> SessionRequest | None:
        """The request finished or was aborted. None for a request without session."""
        entry = self._entries.pop(request_id, None)
        return entry[0] if entry else None

    def entry(self, request_id: str) -> Entry | None:
        """A session request with vLLM's request. None for a request without session."""
        return self._entries.get(request_id)

    def get(self, request_id: str) -> SessionRequest | None:
        """A session request. None for a request without session."""
        entry = self._entries.get(request_id)
        return entry[0] if entry else None

    def of_session(self, owner: Owner) -> list[Entry]:
        """The live requests of the session of `owner`, with any adapter, waiting or running."""
        return [entry for entry in self if entry[0].owner.session == owner.session]

    def of_others(self, owner: Owner) -> list[Request]:
        """The live requests of every other session."""
        return [request for session, request in self if session.owner.session != owner.session]

    def has_prefill(self) -> bool:
        """Whether a live request has more to compute than its next token. Where none has, no chunk is ever capped."""
        return any(request.num_computed_tokens < request.num_tokens - 1 for _, request in self)

    def to_prepare(self, waiting: Iterable[Request], wanted: Iterable[str]) -> list[Entry]:
        """Waiting requests to prepare: the session requests at the head of the queue, and those that asked (`wanted`).

        Not those behind a request that is not ours: their pins could keep it out for ever. A request that vLLM came to
        without one asks, and gets its turn in the step after.
        """
        chosen: dict[str, Entry] = {}
        num_tokens = 0
        for request in waiting:
            session = self.get(request.request_id)
            if not is_waiting(request) or (session is not None and not session.is_planned):
                continue
            num_tokens += request.num_tokens
            is_full = len(chosen) >= _NUM_PREPARED or (chosen and num_tokens > _MAX_PREPARED_TOKENS)
            if session is None or not session.segments or is_full:
                break
            chosen[request.request_id] = (session, request)
        for request_id in wanted:
            entry = self.entry(request_id)
            if entry and entry[0].segments and is_waiting(entry[1]):
                chosen.setdefault(request_id, entry)
        return list(chosen.values())

    def check_integrity(self) -> None:
        """Raise `IntegrityError` when a request that has finished is still here."""
        dead = [session.request_id for session, request in self if request.is_finished()]
        if dead:
            raise IntegrityError(f"live requests: {len(dead)} finished ones still tracked: {dead[:3]}")
