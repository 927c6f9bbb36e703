"""What an answer says of what it used: context tools, budget, branches, map. And what its history lost.

For the OpenAPI document alone. The answers are written where each of these works.
"""

from __future__ import annotations

from typing import Any, Literal

from pydantic import BaseModel, Field

from acmserve.server.routes.schemas.budget import EvictedEpisode, StageView, SummaryCost, Unmet
from acmserve.server.routes.schemas.storage import StorageView


class OperationView(BaseModel):
    """A call of a context tool that was carried out."""

    tool: str = Field(description="The name that the model called.")
    arguments: Any = Field(description="Its arguments, parsed where they are JSON.")
    result: str = Field(description="What the model reads of it.")
    is_error: bool = Field(description="Whether the call was wrong. Then nothing has changed.")
    fragment_ids: list[str] = Field(description="Fragments that it made or changed.")
    changed: bool = Field(description="Whether the model sees another conversation now.")


class FormatErrorView(BaseModel):
    """A tool call of the model that nobody can read."""

    step: int = Field(ge=0, description="The step of the loop, from 0.")
    error: str = Field(description="What is wrong with it.")


class DroppedEditView(BaseModel):
    """An edit that the client's history did not keep."""

    kind: str = Field(
        description="`fragment`, `redaction`, `branch`, `turn`, `omission` or `search_results`: what was lost."
    )
    id: str = Field(description="The fragment, the call or the turn. Empty where there is none.")
    reason: str = Field(description="Why it was lost.")


class BranchUseView(BaseModel):
    """A branch that the answer opened, worked in or closed."""

    branch_id: str = Field(description="Id of the call that opened it.")
    description: str = Field(description="What it is for, in the model's words.")
    state: Literal["open", "returned", "failed"] = Field(description="How it stands now.")
    num_calls: int = Field(ge=0, description="Tool calls of the model in it.")
    num_tokens: int = Field(ge=0, description="Tokens of its own messages, about.")


class MapUseView(BaseModel):
    """The context map that the prompt had."""

    external_context_id: str = Field(description="The external context that it is about.")
    placement: Literal["head", "tail"] = Field(description="Where it stands: see `acm.map`.")
    version: int = Field(ge=0, description="The version that was read.")
    tokens: int = Field(ge=0, description="Tokens of its text.")
    budget: int = Field(ge=1, description="The most tokens that it may have.")
    frozen: bool = Field(description="Whether no model changes it any more.")
    storage: StorageView | None = Field(default=None, description="Why the server's file lacks the map.")


class SummaryUse(SummaryCost):
    """A summary that was written for the budget, and what its prompt had in the cache."""

    kept_tokens: int | None = Field(default=None, description="Tokens of the input that were kept (appended).")
    moved_tokens: int | None = Field(default=None, description="Tokens of the input that were moved (appended).")


class BudgetReportView(BaseModel):
    """What the budget demanded in front of a prompt."""

    max_tokens: int = Field(ge=1, description="The most tokens that the prompt may have.")
    policy: str = Field(description="The policy that chose what goes.")
    tokens: int = Field(ge=0, description="Tokens that the prompt was served with.")
    evicted_tokens: int = Field(ge=0, description="Tokens that were taken out for this prompt.")
    evicted: list[EvictedEpisode] = Field(description="What was taken out, in order.")
    unmet: Unmet | None = Field(description="Why the prompt is over its budget. Null where it is not.")
    stages: list[StageView] | None = Field(default=None, description="What each policy of a chain freed, in order.")
    summary: SummaryUse | None = Field(default=None, description="The summary that a model wrote, if any.")
    unknown_media: int | None = Field(
        default=None, ge=1, description="Pictures and sounds whose tokens were not known before."
    )
