"""Sessions, their contexts, edits, budgets and branches."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

from acmserve.client.receipts import BudgetGap, FreedTokens, StageResult, StorageWarning, SummaryPrice

EditName = Literal["fold", "restore", "summarize", "redact"]
FragmentStatus = Literal["visible", "folded", "summarized", "redacted"]


@dataclass(frozen=True, slots=True)
class PrecomputeState:
    """What is computed before it is asked for."""

    mode: Literal["off", "heal", "predict", "exact"]
    max_pool_share: float
    working: bool


@dataclass(frozen=True, slots=True)
class SideThread:
    """A title, a compaction or a sub-agent under the same id. It is a session of its own."""

    name: str
    session_id: str
    num_messages: int
    used_at: float


@dataclass(frozen=True, slots=True)
class SessionDetails:
    """A session, without its contents."""

    session_id: str
    suite: str
    created_at: float
    used_at: float
    num_messages: int
    num_fragments: int
    num_hidden_fragments: int
    precompute: PrecomputeState
    branch_of: str | None = None
    thread_of: str | None = None
    threads: tuple[SideThread, ...] = ()
    storage: StorageWarning | None = None
    object: Literal["acm.session"] = "acm.session"


@dataclass(frozen=True, slots=True)
class SessionsPage:
    """One page of sessions, the newest first. The next one begins behind `last_id`."""

    data: tuple[SessionDetails, ...]
    first_id: str | None
    last_id: str | None
    has_more: bool
    object: Literal["list"] = "list"


@dataclass(frozen=True, slots=True)
class ShownMessage:
    """One message as the model sees it now. `index` is what ranges of edits count by."""

    index: int
    role: str
    origin: Literal["client", "answer", "internal"]
    num_tokens: int
    message: dict[str, Any] | None
    evicted: bool
    kv: str | None
    branch: str | None = None


@dataclass(frozen=True, slots=True)
class TextPlace:
    """Characters `[start, end)` of one text of a message."""

    index: int
    part: int | None
    start: int
    end: int
    call: int | None = None
    path: tuple[str | int, ...] | None = None


@dataclass(frozen=True, slots=True)
class ShownFragment:
    """A named span of the conversation."""

    fragment_id: str
    state: FragmentStatus
    role: str
    num_tokens: int
    num_tokens_shown: int
    focus: str | None
    messages: tuple[TextPlace, ...]
    preview: str | None
    waits: bool = False


@dataclass(frozen=True, slots=True)
class BranchDetails:
    """One branch of a session. Send `num_messages` messages of the parent first, as they were."""

    branch_id: str
    session_id: str
    kind: Literal["session", "call"]
    state: Literal["open", "returned", "failed"]
    description: str
    prompt: str
    num_calls: int
    num_tokens: int
    num_messages: int | None
    message: str | None
    storage: StorageWarning | None = None
    object: Literal["acm.branch"] = "acm.branch"


@dataclass(frozen=True, slots=True)
class SessionContext:
    """What the model sees now."""

    session_id: str
    messages: tuple[ShownMessage, ...]
    fragments: tuple[ShownFragment, ...]
    num_tokens: int
    num_tokens_original: int
    branches: tuple[BranchDetails, ...] = ()


@dataclass(frozen=True, slots=True)
class EditResult:
    """One edit carried out."""

    op: EditName
    fragment_id: str
    state: FragmentStatus
    tokens_before: int
    tokens_after: int


@dataclass(frozen=True, slots=True)
class NextTurnCost:
    """What all edits together cost the next turn. An estimate, the receipt says the truth."""

    recomputed_tokens: int
    moved_tokens: int


@dataclass(frozen=True, slots=True)
class EditsResult:
    """All edits of one request carried out."""

    edits: tuple[EditResult, ...]
    tokens_before: int
    tokens_after: int
    next_turn: NextTurnCost
    storage: StorageWarning | None = None


@dataclass(frozen=True, slots=True)
class ToolResult:
    """The result of a tool call. `result` is the text for the model."""

    name: str
    result: str
    is_error: bool
    changed: bool
    fragment_ids: tuple[str, ...]
    storage: StorageWarning | None = None


@dataclass(frozen=True, slots=True)
class BudgetState:
    """The budget that holds for a session, and what its next prompt weighs."""

    source: Literal["session", "server"] | None
    budget: dict[str, Any] | None
    tokens: int
    storage: StorageWarning | None = None


@dataclass(frozen=True, slots=True)
class EvictionCost:
    """What an eviction costs the next turn. An estimate, the receipt says the truth."""

    recomputed_tokens: int
    moved_tokens: int


@dataclass(frozen=True, slots=True)
class EvictionCosts:
    """The cost under each fidelity."""

    exact: EvictionCost
    reuse: EvictionCost


@dataclass(frozen=True, slots=True)
class EvictionResult:
    """An eviction down to the low watermark: planned (`dry_run`), or carried out."""

    dry_run: bool
    target: int
    tokens_before: int
    tokens_after: int
    evicted: tuple[FreedTokens, ...]
    first_message: int | None
    next_turn: EvictionCosts
    summary: SummaryPrice | None
    unmet: BudgetGap | None
    stages: tuple[StageResult, ...] | None = None
    storage: StorageWarning | None = None


@dataclass(frozen=True, slots=True)
class ShownEpisode:
    """One episode of the conversation: messages `[start, end)`. `end` is None while it is active."""

    number: int
    name: str | None
    type: Literal["expl", "act"]
    state: Literal["active", "ended", "stripped", "evicted"]
    start: int
    end: int | None
    depends_on: tuple[str, ...]
    description: str | None
    num_tokens: int
    num_tokens_shown: int


@dataclass(frozen=True, slots=True)
class SessionEpisodes:
    """The episode graph of a session. Messages before `prologue_end` are never evicted."""

    data: tuple[ShownEpisode, ...]
    prologue_end: int | None
    object: Literal["list"] = "list"


@dataclass(frozen=True, slots=True)
class PreparedEdits:
    """A context that is computed before it is asked for. `reason` says why it was dropped."""

    prepare_id: str
    status: Literal["pending", "ready", "dropped"]
    reason: str | None
    computed_tokens: int | None
    ready_tokens: int | None
