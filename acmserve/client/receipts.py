"""What an answer says beside the model's words: the session, the receipt, and what was used. Frozen dataclasses.

They are `acm` of an answer of /v1/chat/completions, /v1/responses and /v1/messages. A test holds each of them against
the server's OpenAPI document, which has a description of every field. What is None was not in the answer, or is null
there.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

Fidelity = Literal["exact", "reuse", "repair", "auto"]
StorageReason = Literal["full", "locked", "read_only", "damaged", "replaced", "failed", "refused"]


@dataclass(frozen=True, slots=True)
class KVMove:
    """KV that was moved: tokens `[src_start, src_start + num_tokens)` of an earlier prompt, to `dst_start`."""

    dst_start: int
    src_start: int
    num_tokens: int


@dataclass(frozen=True, slots=True)
class KeptBoundaries:
    """Places of a hybrid model's prompt up to which an edited prompt is found again."""

    kept: int
    wanted: int
    kv_bytes: int


@dataclass(frozen=True, slots=True)
class PromptReceipt:
    """What really happened to a prompt. Kept, moved and computed tokens add up to it."""

    fidelity: Fidelity
    prompt_tokens: int
    kept_tokens: int
    moved_tokens: int
    computed_tokens: int
    precomputed_tokens: int
    repaired_tokens: int
    chosen: Fidelity | None
    reason: str | None
    moves: tuple[KVMove, ...]
    fallback_reason: str | None
    edit_boundaries: KeptBoundaries | None
    transition_norm: float | None
    loaded_tokens: int = 0


@dataclass(frozen=True, slots=True)
class ContextCall:
    """A call of a context tool that the server carried out."""

    tool: str
    arguments: Any
    result: str
    is_error: bool
    fragment_ids: tuple[str, ...]
    changed: bool


@dataclass(frozen=True, slots=True)
class FreedTokens:
    """What an eviction took out of one episode, by level."""

    episode: str
    levels: dict[str, int]
    tokens: int


@dataclass(frozen=True, slots=True)
class HeldTokens:
    """Tokens that no eviction may touch."""

    what: str
    tokens: int


@dataclass(frozen=True, slots=True)
class BudgetGap:
    """Why a budget cannot be met."""

    message: str
    tokens_over: int
    protected: tuple[HeldTokens, ...]


@dataclass(frozen=True, slots=True)
class StageResult:
    """What one policy of a chain freed."""

    policy: str
    evicted_tokens: int
    reason: str | None


@dataclass(frozen=True, slots=True)
class SummaryPrice:
    """What a summary cost beside the conversation."""

    input_tokens: int | None
    output_tokens: int | None
    form: Literal["appended", "flattened"] = "flattened"
    reason: str | None = None
    computed_tokens: int | None = None


@dataclass(frozen=True, slots=True)
class CachedSummaryPrice(SummaryPrice):
    """The same with what its prompt had in the cache."""

    kept_tokens: int | None = None
    moved_tokens: int | None = None


@dataclass(frozen=True, slots=True)
class BudgetUse:
    """What the budget demanded in front of a prompt."""

    max_tokens: int
    policy: str
    tokens: int
    evicted_tokens: int
    evicted: tuple[FreedTokens, ...]
    unmet: BudgetGap | None
    stages: tuple[StageResult, ...] | None = None
    summary: CachedSummaryPrice | None = None
    unknown_media: int | None = None


@dataclass(frozen=True, slots=True)
class PendingEdit:
    """An edit that was accepted and does not stand in the prompt yet."""

    fragment_id: str
    state: Literal["folded", "summarized"]
    reason: str
    computed_tokens: int


@dataclass(frozen=True, slots=True)
class CommitState:
    """When edits of the model take effect in the prompt."""

    waiting: tuple[PendingEdit, ...]
    committed: tuple[str, ...]
    reason: str | None


@dataclass(frozen=True, slots=True)
class LoopStep:
    """One step of the server's tool loop."""

    receipt: PromptReceipt | None
    operations: tuple[ContextCall, ...]
    branch: str | None = None
    budget: BudgetUse | None = None
    commit: CommitState | None = None
    prompt_token_ids: tuple[int, ...] | None = None
    token_ids: tuple[int, ...] | None = None
    logprobs: tuple[float, ...] | None = None


@dataclass(frozen=True, slots=True)
class UnreadCall:
    """A tool call of the model that nobody could read."""

    step: int
    error: str


@dataclass(frozen=True, slots=True)
class BranchUse:
    """A branch that the answer opened, worked in or closed."""

    branch_id: str
    description: str
    state: Literal["open", "returned", "failed"]
    num_calls: int
    num_tokens: int


@dataclass(frozen=True, slots=True)
class StorageWarning:
    """The change was made in memory, and the server's file lacks it."""

    saved: Literal[False]
    reason: StorageReason
    warning: str


@dataclass(frozen=True, slots=True)
class MapUse:
    """The context map that the prompt had."""

    external_context_id: str
    placement: Literal["head", "tail"]
    version: int
    tokens: int
    budget: int
    frozen: bool
    storage: StorageWarning | None = None


@dataclass(frozen=True, slots=True)
class LostEdit:
    """An edit that the client's history did not keep."""

    kind: str
    id: str
    reason: str


@dataclass(frozen=True, slots=True)
class DraftUse:
    """Tokens of a draft, and how many of them the exact answer begins with. `reason` says why nothing was verified."""

    drafted_tokens: int
    accepted_tokens: int
    reason: str | None


@dataclass(frozen=True, slots=True)
class AcmAnswer:
    """`acm` of an answer: its session, its receipt, and what it used."""

    session_id: str
    receipt: PromptReceipt | None
    found_by: str | None = None
    thread: str | None = None
    steps: tuple[LoopStep, ...] | None = None
    stopped_by: str | None = None
    format_errors: tuple[UnreadCall, ...] | None = None
    budget: BudgetUse | None = None
    branches: tuple[BranchUse, ...] | None = None
    commit: CommitState | None = None
    map: MapUse | None = None
    dropped: tuple[LostEdit, ...] | None = None
    storage: StorageWarning | None = None
    forgotten_by: int | None = None
    speculation: DraftUse | None = None
    edits_not_applied: str | None = None
