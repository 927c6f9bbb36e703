"""The session requests that are alive in one scheduler, each with vLLM's request, in order of arrival.

Knows ids and owners. Does not know plans, blocks or steps.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from acmserve.engine.requests.session_request import SessionRequest
from acmserve.errors import IntegrityError
from acmserve.plan.owner import Owner

if TYPE_CHECKING:
    from acmserve.engine.vllm.types import Request

Entry = tuple[SessionRequest, "Request"]


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

    def check_integrity(self) -> None:
        """Raise `IntegrityError` when a request that has finished is still here."""
        dead = [session.request_id for session, request in self if request.is_finished()]
        if dead:
            raise IntegrityError(f"live requests: {len(dead)} finished ones still tracked: {dead[:3]}")
