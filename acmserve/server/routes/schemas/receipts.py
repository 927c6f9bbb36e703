"""What an answering request may ask for beside vLLM's fields, and what its answer carries, as pydantic models.

For the OpenAPI document alone. Requests are read by `server/options`, which says in words what is wrong with them.
"""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, GetPydanticSchema
from pydantic_core import core_schema

from acmserve.context.eviction.clearing_edits import CLEAR_THINKING, CLEAR_TOOL_USES, COMPACT
from acmserve.context.tools.suites import PRESETS, SUITES, describe
from acmserve.plan.request import MAX_SESSION_ID_CHARS
from acmserve.server.routes.schemas.budget import BudgetRequest
from acmserve.server.routes.schemas.sessions import AnySuite, Fidelity
from acmserve.server.routes.schemas.storage import StorageView

_EDITS = [CLEAR_TOOL_USES, CLEAR_THINKING, COMPACT]
EditType = Annotated[str, GetPydanticSchema(lambda *_: core_schema.literal_schema(_EDITS))]


class MoveView(BaseModel):
    """KV that was moved: tokens `[src_start, src_start + num_tokens)` of an earlier prompt, to `dst_start`."""

    dst_start: int = Field(ge=0)
    src_start: int = Field(ge=0)
    num_tokens: int = Field(ge=1)


class EditBoundariesView(BaseModel):
    """What a model with windows or recurrent states keeps of the prompt for later edits."""

    kept: int = Field(ge=0, description="Places up to which an edited prompt is found again.")
    wanted: int = Field(ge=0, description="Places that the messages of the prompt ask for.")
    kv_bytes: int = Field(ge=0, description="KV cache that the kept ones take.")


class ReceiptView(BaseModel):
    """What really happened to the prompt. `kept_tokens + moved_tokens + computed_tokens = prompt_tokens`."""

    fidelity: Fidelity = Field(description="What was asked for.")
    prompt_tokens: int = Field(ge=0)
    kept_tokens: int = Field(ge=0, description="KV that stood in the cache where it was needed.")
    moved_tokens: int = Field(ge=0, description="KV that was moved from an earlier context.")
    computed_tokens: int = Field(ge=0, description="Prefilled.")
    precomputed_tokens: int = Field(ge=0, description="Of the kept ones: computed before they were asked for.")
    repaired_tokens: int = Field(ge=0, description="Of the computed ones: moved KV could have served them.")
    chosen: Fidelity | None = Field(description="What `auto` chose.")
    reason: str | None = Field(description="Why `auto` chose it.")
    moves: list[MoveView]
    fallback_reason: str | None = Field(description="Why a move was refused.")
    edit_boundaries: EditBoundariesView | None = Field(
        description="For models with windows or recurrent states. Null where the model keeps every prefix."
    )
    transition_norm: float | None = Field(
        description="For moved recurrent states: at most this part of a difference between two states is left behind "
        "the moved tokens. Null where no state was moved."
    )


class StepView(BaseModel):
    """One step of the tool loop."""

    receipt: ReceiptView | None
    operations: list[dict[str, Any]] = Field(description="The calls of context tools, with their results.")
    branch: str | None = Field(default=None, description="The branch that the step was made in.")
    budget: dict[str, Any] | None = Field(default=None, description="What the budget demanded in front of it.")


class ReceiptFields(BaseModel):
    """The session of an answer and its receipt. Fields that were not used are missing."""

    model_config = ConfigDict(extra="allow")
    session_id: str
    found_by: str | None = Field(
        default=None, description="The place of its id, `content`, or `new`: nothing was found by content."
    )
    thread: str | None = Field(default=None, description="The side thread of the session that the request went to.")
    receipt: ReceiptView | None = Field(description="Of a tool loop: that of its last step.")
    steps: list[StepView] | None = Field(default=None, description="The steps of a tool loop.")
    stopped_by: str | None = Field(default=None, description="What ended a tool loop.")
    budget: dict[str, Any] | None = Field(default=None, description="What the budget demanded, and its cost.")
    branches: list[dict[str, Any]] | None = Field(default=None, description="The branches that the answer touched.")
    map: dict[str, Any] | None = Field(default=None, description="The context map that was read.")
    dropped: list[dict[str, Any]] | None = Field(
        default=None, description="Edits that the client's history did not keep: `kind`, `id` and `reason`."
    )
    storage: StorageView | None = Field(default=None, description="Why the server's file lacks this turn.")
    forgotten_by: int | None = Field(default=None, ge=1, description="Engines that acknowledged a redaction.")
    edits_not_applied: str | None = Field(default=None, description="Why vLLM answered without the session's edits.")


class AcmFields(BaseModel):
    """How a session request is served. Beside `fidelity` and `repair` no field counts in /v1/completions."""

    model_config = ConfigDict(extra="forbid")
    fidelity: Fidelity | None = Field(default=None, description="May KV be moved? Default: the server's `--fidelity`.")
    repair: dict[str, Any] | None = Field(
        default=None, description="What `repair` computes anew of each moved piece: `head_tokens`, `tail_tokens`, ..."
    )
    tools: AnySuite | list[AnySuite] | None = Field(
        default=None, description=f"Context tools that run on the server: {describe(SUITES)}."
    )
    max_tool_calls: int | None = Field(default=None, ge=1, description="Calls of context tools in one answer.")
    first_call_required: bool | None = Field(default=None, description="Whether the first step has to call a tool.")
    preset: str | None = Field(default=None, description=f"The prompt that teaches the tools: {', '.join(PRESETS)}.")
    branch: dict[str, Any] | None = Field(default=None, description="Bounds of a branch: `max_tokens`.")
    budget: int | str | BudgetRequest | None = Field(default=None, description="Tokens that a prompt may have.")
    map: dict[str, Any] | None = Field(default=None, description="A context map: `external_context_id`, `budget`, ...")
    precompute: str | dict[str, Any] | None = Field(default=None, description="`off`, `heal`, `predict`, or an object.")
    observations: str | list[str] | None = Field(
        default=None, description="Messages of the user that are results: `auto`, `user`, `off`, or how they begin."
    )
    query_finished: bool | None = Field(default=None, description="Whether the question of the user is answered now.")
    rollout: bool | None = Field(
        default=None, description="Record token ids and operations for training. Default: the server's `--rollout`."
    )


class EditFields(BaseModel):
    """One of the vendor's edits, with the vendor's names and defaults."""

    model_config = ConfigDict(extra="allow")
    type: EditType


class ContextManagementFields(BaseModel):
    """Edits of the conversation, in front of the model."""

    model_config = ConfigDict(extra="forbid")
    edits: list[EditFields] | None = None


class SessionFields(BaseModel):
    """What a request may have beside vLLM's fields."""

    session_id: str | None = Field(
        default=None,
        min_length=1,
        max_length=MAX_SESSION_ID_CHARS,
        description="The session, any text. The header `X-Session-ID` names it, too.",
        examples=["agent-7"],
    )
    acm: AcmFields | None = Field(default=None, description="How it is served. It needs a session.")
    context_management: ContextManagementFields | None = Field(
        default=None, description="Anthropic's edits. They count in /v1/messages and /v1/chat/completions."
    )
