"""Whose a request is among several API servers: read from its path, its headers and its body.

    /v1/acm/sessions/agent-7/...      the id in the path
    POST /v1/acm/sessions             `session_id` of the body
    GET /v1/acm/sessions, usage, ...  everybody's
    any other POST with JSON          what finds sessions in it anywhere: `--session-from`, `kv_transfer_params.acm`
    everything else                   nobody's

A request that names no session, or names it wrongly, is nobody's. It is answered where it arrives, as one server alone
would answer it. It knows what a request says, and nothing of processes.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any
from urllib.parse import unquote

from starlette.datastructures import Headers
from starlette.types import Scope

from acmserve.errors import InvalidRequest
from acmserve.server.http.strict_json import is_text
from acmserve.server.http.tenants import Tenants
from acmserve.server.options.session_params import Lookup, Source, parse_session_request
from acmserve.server.siblings.ownership import Ownership

ACM = "/v1/acm"
SESSIONS = f"{ACM}/sessions"
_JSON = "application/json"


class Gathered(Enum):
    """A request that every API server has a part of the answer to."""

    SESSIONS = SESSIONS
    USAGE = f"{ACM}/usage"
    EVENTS = f"{ACM}/events"
    METRICS = "/metrics"
    HEALTH = "/health"


_GATHERED = {each.value: each for each in Gathered}
_OF_PROCESS = (Gathered.METRICS, Gathered.HEALTH)


@dataclass(frozen=True, slots=True)
class Addressing:
    """Reads requests of one deployment. `root_path` is what stands in front of every path."""

    tenants: Tenants
    sources: Sequence[Source]
    ownership: Ownership
    root_path: str = ""

    def path_of(self, scope: Scope) -> str:
        """The path as it was sent, still percent-encoded, without the root path."""
        raw = scope.get("raw_path")
        path: str = scope["path"] if raw is None else raw.decode("latin-1")
        return path.removeprefix(self.root_path)

    def gathered(self, scope: Scope) -> Gathered | None:
        """What is to be gathered, None for a request that one server answers."""
        found = _GATHERED.get(self.path_of(scope).rstrip("/")) if scope["method"] == "GET" else None
        return None if found not in _OF_PROCESS and self.ownership.by_tenant else found

    def needs_body(self, scope: Scope) -> bool:
        """Whether the session of a request stands in its body, or in headers that count beside it."""
        path, headers = self.path_of(scope), Headers(scope=scope)
        is_json = headers.get("content-type", "").partition(";")[0].strip().lower() == _JSON
        return scope["method"] == "POST" and is_json and (not path.startswith(ACM) or path == SESSIONS)

    def owner_by_path(self, scope: Scope) -> int | None:
        """The owner of what a path of `/v1/acm` names, None for nobody's."""
        path = self.path_of(scope)
        if not path.startswith(f"{ACM}/"):
            return None
        tenant = self.tenants.of(Headers(scope=scope))
        if path.startswith(f"{SESSIONS}/"):
            name = path.removeprefix(f"{SESSIONS}/").partition("/")[0]
            return self.ownership.owner_of(tenant, unquote(name, errors="surrogateescape")) if name else None
        return self.ownership.owner_of_tenant(tenant)

    def owner_by_body(self, scope: Scope, body: Mapping[str, Any], lookup: Lookup) -> int | None:
        """The owner of the session that a body or a header names, None for nobody's."""
        headers, tenant = Headers(scope=scope), self.tenant_of(scope, body)
        if self.ownership.by_tenant:
            return self.ownership.owner_of_tenant(tenant)
        if self.path_of(scope) == SESSIONS:
            session_id = body.get("session_id")
            return self.ownership.owner_of(tenant, session_id) if isinstance(session_id, str) else None
        try:
            asked = parse_session_request(body, headers, self.sources, lookup)
        except InvalidRequest:
            return None
        return None if asked is None else self.ownership.owner_of(tenant, asked.params.session_id)

    def tenant_of(self, scope: Scope, body: Mapping[str, Any]) -> str:
        """The tenant of a request with this body. Routes of `/v1/acm` know the salt of the header alone.

        A salt that is no Unicode text places nothing: whoever answers the request refuses it.
        """
        salt = None if self.path_of(scope).startswith(ACM) else body.get("cache_salt")
        return self.tenants.of(Headers(scope=scope), salt if isinstance(salt, str) and is_text(salt) else None)

    def responses_in(self, scope: Scope, body: Mapping[str, Any]) -> list[str]:
        """The ids of answers that a request may be found by."""
        if self.ownership.by_tenant:
            return []
        headers = Headers(scope=scope)
        found = [source.read(body, headers) for source in self.sources if source.is_response]
        return [each for each in found if isinstance(each, str)]


def read_object(body: bytes) -> Mapping[str, Any] | None:
    """A body as a JSON object, None for anything else. What is wrong with it is told where it is answered."""
    try:
        value = json.loads(body)
    except (ValueError, RecursionError):
        return None
    return value if isinstance(value, Mapping) else None
