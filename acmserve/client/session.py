"""A session of a server, for a program that edits it: context, edits, search, budget, branches.

    session = SessionHandle("http://localhost:8000", "agent-7")
    client.chat.completions.create(..., extra_body=session.extra_body(fidelity="reuse"))
    session.fold((4, 9))

The handle holds no state of the session. Each method is one request, and raises the exceptions of `errors.py`.
`async_session.py` has the same for asynchronous programs.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Unpack

import httpx

from acmserve.client.calls import PlannedEdit, SessionCalls, Target
from acmserve.client.connection import SECONDS, Connection
from acmserve.client.options import AcmOptions, extra_body
from acmserve.client.place import ServerPlace, routing_headers
from acmserve.client.receipts import Fidelity
from acmserve.client.views.sessions import (
    BranchDetails,
    BudgetState,
    EditsResult,
    EvictionResult,
    PreparedEdits,
    SessionContext,
    SessionDetails,
    SessionEpisodes,
    ToolResult,
)
from acmserve.client.views.turns import SessionTotals, TurnsPage


class SessionHandle(Connection):
    """One session. `http` is a client of your own, which stays open. Without it the handle makes one, and closes it.

    Routers in front of replicas read `route` in a header. A branch is where its parent is, so it has the parent's.
    """

    def __init__(
        self,
        base_url: str,
        session_id: str,
        *,
        api_key: str | None = None,
        cache_salt: str | None = None,
        timeout: float = SECONDS,
        http: httpx.Client | None = None,
        route: str | None = None,
    ) -> None:
        self.route = session_id if route is None else route
        super().__init__(ServerPlace(base_url, api_key, cache_salt), timeout, http, self.route)
        self.session_id = session_id
        self._calls = SessionCalls(session_id)

    def extra_body(self, **acm: Unpack[AcmOptions]) -> dict[str, Any]:
        """What a request of the `openai` or `anthropic` client takes as `extra_body` to belong to this session."""
        return extra_body(self.session_id, self.place.cache_salt, acm)

    def extra_headers(self) -> dict[str, str]:
        """What the same request takes as `extra_headers`, so that a router sends it where the session is."""
        return routing_headers(self.route)

    def create(self, messages: Iterable[Mapping[str, Any]] = (), suite: str | None = None) -> SessionDetails:
        """Make the session, with a history. A chat request with its id makes it, too."""
        return self._send(self._calls.create(messages, suite))

    def details(self) -> SessionDetails:
        """The session without its contents."""
        return self._send(self._calls.details())

    def delete(self) -> None:
        """Delete it with its transcript, its branches and its side threads."""
        self._send(self._calls.delete())

    def context(self) -> SessionContext:
        """What the model sees now: messages, fragments, tokens."""
        return self._send(self._calls.context())

    def edit(self, *edits: PlannedEdit, fidelity: Fidelity | None = None) -> EditsResult:
        """Several edits as one plan, all or none. `fidelity` is for the estimate alone."""
        return self._send(self._calls.edit(edits, fidelity))

    def fold(self, *targets: Target, fidelity: Fidelity | None = None) -> EditsResult:
        """Hide behind a marker. A target is a fragment's id, or a range of messages `(start, end)`."""
        return self.edit(*(PlannedEdit("fold", target) for target in targets), fidelity=fidelity)

    def summarize(self, target: Target, focus: str | None = None, fidelity: Fidelity | None = None) -> EditsResult:
        """Show a summary instead, written by the server's model."""
        return self.edit(PlannedEdit("summarize", target, focus), fidelity=fidelity)

    def restore(self, *targets: Target, fidelity: Fidelity | None = None) -> EditsResult:
        """Show the original again."""
        return self.edit(*(PlannedEdit("restore", target) for target in targets), fidelity=fidelity)

    def redact(self, *targets: Target, fidelity: Fidelity | None = None) -> EditsResult:
        """Erase for good. Where `storage` of the result is not None, the file still has the text."""
        return self.edit(*(PlannedEdit("redact", target) for target in targets), fidelity=fidelity)

    def search(self, query: str, *, role: str = "all", max_results: int = 10) -> ToolResult:
        """Find exact text, folded text included. `result` says where it stands."""
        return self.call_tool("search_context", query=query, role=role, max_results=max_results)

    def call_tool(self, name: str, /, suite: str | None = None, **arguments: Any) -> ToolResult:
        """Carry out one call of a context tool, as a model's. A wrong call has `is_error`, and changes nothing."""
        return self._send(self._calls.call_tool(name, arguments, suite))

    def budget(self) -> BudgetState:
        """The budget that holds, and the tokens of the next prompt."""
        return self._send(self._calls.budget())

    def set_budget(self, max_tokens: int | str, **options: Any) -> BudgetState:
        """Set the budget: tokens, `"80k"` or `"50%"`. `options`: `policy`, `low_watermark` and those of the policy."""
        return self._send(self._calls.set_budget(max_tokens, options))

    def delete_budget(self) -> None:
        """Remove the session's own budget. What was evicted stays so."""
        self._send(self._calls.delete_budget())

    def evict(self, *, dry_run: bool = False) -> EvictionResult:
        """Evict down to the low watermark. A dry run changes nothing, and says what would go."""
        return self._send(self._calls.evict(dry_run=dry_run))

    def branch(self, description: str, prompt: str) -> BranchHandle:
        """Make a session that begins as this one is now."""
        return BranchHandle(self, self._send(self._calls.branch(description, prompt)))

    def branches(self) -> tuple[BranchDetails, ...]:
        """Branches that have ended, then those that are open."""
        return self._send(self._calls.branches())

    def prepare(self, *edits: PlannedEdit) -> PreparedEdits:
        """Have the result of edits computed while nobody else is served. Nothing of the session changes."""
        return self._send(self._calls.prepare(edits))

    def preparation(self, prepare_id: str) -> PreparedEdits:
        """How far a preparation is."""
        return self._send(self._calls.preparation(prepare_id))

    def turns(self, after: int = -1, limit: int = 100) -> TurnsPage:
        """What the last turns cost, the newest one last. A page begins behind the turn with the index `after`."""
        return self._send(self._calls.turns(after, limit))

    def totals(self) -> SessionTotals:
        """What all turns cost, and what that saved."""
        return self._send(self._calls.totals())

    def episodes(self) -> SessionEpisodes:
        """The episodes marked with `delimiter`, and the work between them."""
        return self._send(self._calls.episodes())


class BranchHandle(SessionHandle):
    """A branch that is a session of its own, until it returns to its parent or is abandoned."""

    def __init__(self, parent: SessionHandle, made: BranchDetails) -> None:
        place = parent.place
        super().__init__(
            place.base_url,
            made.branch_id,
            api_key=place.api_key,
            cache_salt=place.cache_salt,
            http=parent._http,
            route=parent.route,
        )
        self.made = made
        self._parent = parent

    def give_back(self, message: str) -> BranchDetails:
        """End the branch. The message becomes part of the parent, and all that stays of the branch."""
        return self._send(self._parent._calls.give_back(self.session_id, message))

    def abandon(self) -> None:
        """Delete the branch. The parent stays as it is."""
        self._send(self._parent._calls.abandon(self.session_id))
