"""Which session gave which response of /v1/responses, so that a request with `previous_response_id` finds it.

    answer goes out   note(tenant, response_id, session_id)
    next request      of(tenant, response_id) --> session_id, None where it is not known

The route calls `note` when it knows the id of its answer. A tenant finds its own answers only. The map is bounded, and
over the bound the oldest answer goes of the API key that has most. Lives in memory. It knows no route and no answer.
"""

from __future__ import annotations

from collections import OrderedDict

from acmserve.context.storage.fair_share import plan_victims
from acmserve.context.storage.session import Bound, Key
from acmserve.errors import IntegrityError

MAX_RESPONSES = 16_384
_ENTRY_BYTES = 1


class ResponseSessions:
    """`max_responses` answers of all tenants."""

    def __init__(self, max_responses: int = MAX_RESPONSES) -> None:
        self._max_responses = max_responses
        self._sessions: OrderedDict[Key, str] = OrderedDict()

    def __len__(self) -> int:
        return len(self._sessions)

    def note(self, tenant: str, response_id: str, session_id: str) -> None:
        """A session of this tenant has given an answer of this id. `session_id` is the one that the client knows."""
        key = (tenant, response_id)
        self._sessions[key] = session_id
        self._sessions.move_to_end(key)
        if len(self) > self._max_responses:
            # An eighth at a time, so that a full map costs a request nothing.
            bound = Bound(max(1, self._max_responses * 7 // 8), len(self) * _ENTRY_BYTES)
            for victim in plan_victims(dict.fromkeys(self._sessions, _ENTRY_BYTES), bound, lambda other: other == key):
                del self._sessions[victim]

    def of(self, tenant: str, response_id: str) -> str | None:
        """The session that gave this answer to this tenant."""
        return self._sessions.get((tenant, response_id))

    def check_integrity(self) -> None:
        """Raise `IntegrityError` when more answers are held than allowed."""
        if len(self) > self._max_responses:
            raise IntegrityError(f"responses: {len(self)} noted, {self._max_responses} allowed")
