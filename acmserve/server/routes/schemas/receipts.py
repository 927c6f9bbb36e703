"""What an answering request may ask for beside vLLM's fields, and what its answer carries, as pydantic models.

For the OpenAPI document alone. Requests are read by `server/options`, which says in words what is wrong with them.
"""

from __future__ import annotations

from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from acmserve.context.tools.suites import PRESETS, SUITES, describe
from acmserve.plan.request import MAX_SESSION_ID_CHARS
from acmserve.server.routes.schemas.budget import BudgetRequest
from acmserve.server.routes.schemas.context_management import ContextManagementFields
from acmserve.server.routes.schemas.sessions import Fidelity
from acmserve.server.routes.schemas.storage import StorageView
from acmserve.server.routes.schemas.suites import AnySuite
from acmserve.server.routes.schemas.used import (
    BranchUseView,
    BudgetReportView,
    DroppedEditView,
    FormatErrorView,
    MapUseView,
    OperationView,
)


class MoveView(BaseModel):
    """KV that was moved: tokens `[src_start, src_start + num_tokens)` of an earlier prompt, to `dst_start`."""

    dst_start: int = Field(ge=0, description="Its first token in this prompt.")
    src_start: int = Field(ge=0, description="Its first token in the earlier one.")
    num_tokens: int = Field(ge=1, description="How many tokens were moved.")


class EditBoundariesView(BaseModel):
    """What a model with windows or recurrent states keeps of the prompt for later edits."""

    kept: int = Field(ge=0, description="Places up to which an edited prompt is found again.")
    wanted: int = Field(ge=0, description="Places that the messages of the prompt ask for.")
    kv_bytes: int = Field(ge=0, description="KV cache that the kept ones take.")


class ReceiptView(BaseModel):
    """What really happened to the prompt. `kept_tokens + moved_tokens + computed_tokens = prompt_tokens`."""

    fidelity: Fidelity = Field(description="What was asked for.")
    prompt_tokens: int = Field(ge=0, description="Tokens of the whole prompt.")
    kept_tokens: int = Field(ge=0, description="KV that stood in the cache where it was needed.")
    moved_tokens: int = Field(ge=0, description="KV that was moved from an earlier context.")
    computed_tokens: int = Field(ge=0, description="Prefilled.")
    precomputed_tokens: int = Field(ge=0, description="Of the kept ones: computed before they were asked for.")
    loaded_tokens: int = Field(
        default=0, ge=0, description="Of the kept and moved ones: their KV came back from host memory."
    )
    repaired_tokens: int = Field(ge=0, description="Of the computed ones: moved KV could have served them.")
    chosen: Fidelity | None = Field(description="What `auto` chose.")
    reason: str | None = Field(description="Why `auto` chose it.")
    moves: list[MoveView] = Field(description="Each piece that was moved, in the order of the prompt.")
    fallback_reason: str | None = Field(description="Why a move was refused.")
    edit_boundaries: EditBoundariesView | None = Field(
        description="For models with windows or recurrent states. Null where the model keeps every prefix."
    )
    transition_norm: float | None = Field(
        description="For moved recurrent states: at most this part of a difference between two states is left behind "
        "the moved tokens. Null where no state was moved."
    )


class WaitingEditView(BaseModel):
    """An edit that was accepted and does not stand in the prompt yet."""

    fragment_id: str = Field(description="The fragment that was edited.")
    state: Literal["folded", "summarized"] = Field(description="What becomes of it.")
    reason: str = Field(description="Why it waits.")
    computed_tokens: int = Field(ge=0, description="What its commit would cost alone, in tokens computed.")


class CommitsView(BaseModel):
    """When edits of the model take effect in the prompt."""

    waiting: list[WaitingEditView] = Field(description="Edits that the prompt does not show yet.")
    committed: list[str] = Field(description="Fragments whose edits took effect.")
    reason: str | None = Field(description="`cheapest`, `in_front` (of a change), `room`, `turn_end`, or null.")


class StepView(BaseModel):
    """One step of the tool loop."""

    receipt: ReceiptView | None = Field(description="What happened to its prompt.")
    operations: list[OperationView] = Field(description="The calls of context tools, with their results.")
    branch: str | None = Field(default=None, description="The branch that the step was made in.")
    budget: BudgetReportView | None = Field(default=None, description="What the budget demanded in front of it.")
    commit: CommitsView | None = Field(
        default=None, description="Edits that its prompt did not show yet, or first did."
    )
    prompt_token_ids: list[int] | None = Field(default=None, description="Its prompt, with `return_token_ids`.")
    token_ids: list[int] | None = Field(default=None, description="What was sampled, with `return_token_ids`.")
    logprobs: list[float] | None = Field(default=None, description="Those of the sampled tokens, with `logprobs`.")


class SpeculationView(BaseModel):
    """Tokens of a draft, and how many of them the exact answer begins with."""

    drafted_tokens: int = Field(ge=0, description="Tokens that were drafted while the prompt was prefilled.")
    accepted_tokens: int = Field(ge=0, description="Of these, how many were verified and are the answer's first ones.")
    reason: str | None = Field(description="Why nothing was verified. Null where a draft was.")


_FOUND_BY = "The place of its id, `content`, `summary`: it goes on from one, or `new`: nothing was found."


class FoundFields(BaseModel):
    """The session that a request was looked up in, which gave no receipt."""

    session_id: str | None = Field(default=None, description="The session. One that is not there yet has no name.")
    found_by: str = Field(description=_FOUND_BY)
    thread: str | None = Field(default=None, description="The side thread of the session that the request goes on in.")


class ReceiptFields(BaseModel):
    """The session of an answer and its receipt. Fields that were not used are missing."""

    model_config = ConfigDict(extra="allow")
    session_id: str = Field(description="The session that the request went to.")
    found_by: str | None = Field(default=None, description=_FOUND_BY)
    thread: str | None = Field(default=None, description="The side thread of the session that the request went to.")
    receipt: ReceiptView | None = Field(description="Of a tool loop: that of its last step.")
    steps: list[StepView] | None = Field(default=None, description="The steps of a tool loop.")
    stopped_by: str | None = Field(default=None, description="What ended a tool loop.")
    format_errors: list[FormatErrorView] | None = Field(default=None, description="Tool calls that could not be read.")
    budget: BudgetReportView | None = Field(default=None, description="What the budget demanded, and its cost.")
    branches: list[BranchUseView] | None = Field(default=None, description="The branches that the answer touched.")
    commit: CommitsView | None = Field(
        default=None,
        description="Under `acm.commit: cheapest`: edits that the answer was given without, and the last "
        "that took effect.",
    )
    map: MapUseView | None = Field(default=None, description="The context map that was read.")
    dropped: list[DroppedEditView] | None = Field(
        default=None, description="Edits that the client's history did not keep."
    )
    storage: StorageView | None = Field(default=None, description="Why the server's file lacks this turn.")
    forgotten_by: int | None = Field(default=None, ge=1, description="Engines that acknowledged a redaction.")
    speculation: SpeculationView | None = Field(default=None, description="What became of the draft of the answer.")
    edits_not_applied: str | None = Field(default=None, description="Why vLLM answered without the session's edits.")


class AcmFields(BaseModel):
    """How a session request is served. Of these, `fidelity`, `repair` and `speculate` count in /v1/completions."""

    model_config = ConfigDict(extra="forbid")
    fidelity: Fidelity | None = Field(default=None, description="May KV be moved? Default: the server's `--fidelity`.")
    repair: dict[str, Any] | None = Field(
        default=None, description="What `repair` computes anew of each moved piece: `head_tokens`, `tail_tokens`, ..."
    )
    speculate: bool | None = Field(
        default=None,
        description="Draft an exact answer on moved KV and verify it. Default: the server's `--speculate`.",
    )
    tools: AnySuite | list[AnySuite] | None = Field(
        default=None, description=f"Context tools that run on the server: {describe(SUITES)}."
    )
    max_tool_calls: int | None = Field(default=None, ge=1, description="Calls of context tools in one answer.")
    first_call_required: bool | None = Field(default=None, description="Whether the first step has to call a tool.")
    preset: str | None = Field(default=None, description=f"The prompt that teaches the tools: {', '.join(PRESETS)}.")
    branch: dict[str, Any] | None = Field(
        default=None, description="Bounds: `max_tokens` of a branch, `max_branches` that the model may open."
    )
    commit: Literal["now", "cheapest"] | None = Field(
        default=None,
        description="When edits of the model take effect in its prompt: in the next step, or when that "
        "costs least. Default: `now`.",
    )
    budget: int | str | BudgetRequest | None = Field(default=None, description="Tokens that a prompt may have.")
    map: dict[str, Any] | None = Field(default=None, description="A context map: `external_context_id`, `budget`, ...")
    precompute: str | dict[str, Any] | None = Field(
        default=None, description="`off`, `heal`, `predict`, `exact`, or an object."
    )
    observations: str | list[str] | None = Field(
        default=None, description="Messages of the user that are results: `auto`, `user`, `off`, or how they begin."
    )
    query_finished: bool | Literal["final"] | None = Field(
        default=None,
        description="Whether the question of the user is answered now. `final`: an answer with FINAL(...) ends it.",
    )
    rollout: bool | None = Field(
        default=None, description="Record token ids and operations for training. Default: the server's `--rollout`."
    )


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
