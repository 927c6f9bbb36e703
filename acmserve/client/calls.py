"""The requests of the routes below /v1/acm as data: method, path, body, and how the answer is read. It sends nothing.

What is None in a body is not given: the routes read JSON null so.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar
from urllib.parse import quote

from acmserve.client.decoding import decode
from acmserve.client.errors import UnreadableAnswer
from acmserve.client.receipts import Fidelity
from acmserve.client.views.maps import MapDetails, MapOutline, RecordedMapChange
from acmserve.client.views.sessions import (
    BranchDetails,
    BudgetState,
    EditName,
    EditsResult,
    EvictionResult,
    PreparedEdits,
    SessionContext,
    SessionDetails,
    SessionEpisodes,
    SessionsPage,
    ToolResult,
)
from acmserve.client.views.turns import SessionTotals, TurnsPage, UsagePage

T = TypeVar("T")
Target = str | tuple[int, int]
"""A fragment by its id, or messages `[start, end)` as `context()` numbers them."""
SESSIONS = "/v1/acm/sessions"
MAPS = "/v1/acm/maps"
USAGE = "/v1/acm/usage"


@dataclass(frozen=True, slots=True)
class PlannedEdit:
    """One edit of several that are carried out as one plan."""

    op: EditName
    target: Target
    focus: str | None = None

    def as_json(self) -> dict[str, Any]:
        """As the route takes it."""
        edit: dict[str, Any] = {"op": self.op}
        if isinstance(self.target, str):
            edit["fragment_id"] = self.target
        else:
            edit["messages"] = dict(zip(("start", "end"), self.target, strict=True))
        return edit | {"focus": self.focus}


@dataclass(frozen=True, slots=True)
class ApiCall(Generic[T]):
    """One request. `read` makes the result of the answer's JSON, which is None where there is no body."""

    method: str
    path: str
    read: Callable[[Any], T]
    body: Mapping[str, Any] | None = None


@dataclass(frozen=True, slots=True)
class SessionCalls:
    """The requests of one session."""

    session_id: str

    @property
    def path(self) -> str:
        """The session's own path. Every character of an id is allowed."""
        return f"{SESSIONS}/{quote(self.session_id, safe='')}"

    def create(self, messages: Iterable[Mapping[str, Any]], suite: str | None) -> ApiCall[SessionDetails]:
        given = [dict(message) for message in messages]
        body = {"session_id": self.session_id, "messages": given or None, "suite": suite}
        return ApiCall("POST", SESSIONS, _reads(SessionDetails), body)

    def details(self) -> ApiCall[SessionDetails]:
        return ApiCall("GET", self.path, _reads(SessionDetails))

    def delete(self) -> ApiCall[None]:
        return ApiCall("DELETE", self.path, _nothing)

    def context(self) -> ApiCall[SessionContext]:
        return ApiCall("GET", f"{self.path}/context", _reads(SessionContext))

    def edit(self, edits: Sequence[PlannedEdit], fidelity: Fidelity | None) -> ApiCall[EditsResult]:
        body = {"edits": [edit.as_json() for edit in edits], "fidelity": fidelity}
        return ApiCall("POST", f"{self.path}/edits", _reads(EditsResult), body)

    def prepare(self, edits: Sequence[PlannedEdit]) -> ApiCall[PreparedEdits]:
        body = {"edits": [edit.as_json() for edit in edits]}
        return ApiCall("POST", f"{self.path}/prepare", _reads(PreparedEdits), body)

    def preparation(self, prepare_id: str) -> ApiCall[PreparedEdits]:
        return ApiCall("GET", f"{self.path}/prepare/{quote(prepare_id, safe='')}", _reads(PreparedEdits))

    def turns(self, after: int, limit: int) -> ApiCall[TurnsPage]:
        return ApiCall("GET", f"{self.path}/turns?after={after}&limit={limit}", _reads(TurnsPage))

    def totals(self) -> ApiCall[SessionTotals]:
        return ApiCall("GET", f"{self.path}/totals", _reads(SessionTotals))

    def episodes(self) -> ApiCall[SessionEpisodes]:
        return ApiCall("GET", f"{self.path}/episodes", _reads(SessionEpisodes))

    def call_tool(self, name: str, arguments: Mapping[str, Any], suite: str | None) -> ApiCall[ToolResult]:
        body = {"arguments": dict(arguments), "suite": suite}
        return ApiCall("POST", f"{self.path}/tools/{quote(name, safe='')}", _reads(ToolResult), body)

    def budget(self) -> ApiCall[BudgetState]:
        return ApiCall("GET", f"{self.path}/budget", _reads(BudgetState))

    def set_budget(self, max_tokens: int | str, options: Mapping[str, Any]) -> ApiCall[BudgetState]:
        body = {"max_tokens": max_tokens, **options}
        return ApiCall("PUT", f"{self.path}/budget", _reads(BudgetState), body)

    def delete_budget(self) -> ApiCall[None]:
        return ApiCall("DELETE", f"{self.path}/budget", _nothing)

    def evict(self, *, dry_run: bool) -> ApiCall[EvictionResult]:
        return ApiCall("POST", f"{self.path}/evict?dry_run={str(dry_run).lower()}", _reads(EvictionResult))

    def branch(self, description: str, prompt: str) -> ApiCall[BranchDetails]:
        body = {"description": description, "prompt": prompt}
        return ApiCall("POST", f"{self.path}/branches", _reads(BranchDetails), body)

    def branches(self) -> ApiCall[tuple[BranchDetails, ...]]:
        return ApiCall("GET", f"{self.path}/branches", _reads_list(BranchDetails))

    def give_back(self, branch_id: str, message: str) -> ApiCall[BranchDetails]:
        path = f"{self.path}/branches/{quote(branch_id, safe='')}/return"
        return ApiCall("POST", path, _reads(BranchDetails), {"message": message})

    def abandon(self, branch_id: str) -> ApiCall[None]:
        return ApiCall("DELETE", f"{self.path}/branches/{quote(branch_id, safe='')}", _nothing)


class ServerCalls:
    """The requests that are about no single session."""

    def sessions(self, after: str | None, limit: int) -> ApiCall[SessionsPage]:
        behind = "" if after is None else f"&after={quote(after, safe='')}"
        return ApiCall("GET", f"{SESSIONS}?limit={limit}{behind}", _reads(SessionsPage))

    def usage(self, limit: int) -> ApiCall[UsagePage]:
        return ApiCall("GET", f"{USAGE}?limit={limit}", _reads(UsagePage))

    def maps(self) -> ApiCall[tuple[MapOutline, ...]]:
        return ApiCall("GET", MAPS, _reads_list(MapOutline))

    def map(self, map_id: str) -> ApiCall[MapDetails]:
        return ApiCall("GET", self._map_path(map_id), _reads(MapDetails))

    def set_map(self, map_id: str, fields: Mapping[str, Any]) -> ApiCall[MapDetails]:
        return ApiCall("PUT", self._map_path(map_id), _reads(MapDetails), dict(fields))

    def delete_map(self, map_id: str) -> ApiCall[None]:
        return ApiCall("DELETE", self._map_path(map_id), _nothing)

    def map_history(self, map_id: str) -> ApiCall[tuple[RecordedMapChange, ...]]:
        return ApiCall("GET", f"{self._map_path(map_id)}/history", _reads_list(RecordedMapChange))

    @staticmethod
    def _map_path(map_id: str) -> str:
        return f"{MAPS}/{quote(map_id, safe='')}"


def _reads(kind: type[T]) -> Callable[[Any], T]:
    return lambda value: decode(kind, value, kind.__name__)


def _reads_list(kind: type[T]) -> Callable[[Any], tuple[T, ...]]:
    def read(value: Any) -> tuple[T, ...]:
        items = value.get("data") if isinstance(value, Mapping) else None
        if not isinstance(items, list):
            raise UnreadableAnswer("data", "must be a list")
        return tuple(decode(kind, item, f"data[{index}]") for index, item in enumerate(items))

    return read


def _nothing(_: Any) -> None:
    return None
