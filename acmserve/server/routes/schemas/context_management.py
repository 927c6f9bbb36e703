"""`context_management` as requests send it and answers say it, as pydantic models. Part of the OpenAPI document alone.

Two vendors use the name. Anthropic's is an object with `edits`, for /v1/messages and /v1/chat/completions. OpenAI's is
a list of entries, for /v1/responses.
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, GetPydanticSchema
from pydantic_core import core_schema

from acmserve.context.eviction.clearing_edits import CLEAR_THINKING, CLEAR_TOOL_USES, COMPACT
from acmserve.server.routes.schemas.used import SummaryUse

_EDITS = [CLEAR_TOOL_USES, CLEAR_THINKING, COMPACT]
EditType = Annotated[str, GetPydanticSchema(lambda *_: core_schema.literal_schema(_EDITS))]


class EditFields(BaseModel):
    """One of the vendor's edits, with the vendor's names and defaults."""

    model_config = ConfigDict(extra="allow")
    type: EditType = Field(description="The edit, by the vendor's name. Its options stand beside it.")


class ContextManagementFields(BaseModel):
    """Edits of the conversation, in front of the model."""

    model_config = ConfigDict(extra="forbid")
    edits: list[EditFields] | None = Field(default=None, description="The edits, in any order.")


class CompactionEntry(BaseModel):
    """When a conversation of /v1/responses is compacted."""

    model_config = ConfigDict(extra="forbid")
    type: Literal["compaction"] = Field(description="The only entry that there is.")
    compact_threshold: int | None = Field(
        default=None, ge=1, description="Tokens above which a summary is written. Default: a share of the window."
    )


class CompactionFields(BaseModel):
    """The field that only /v1/responses has."""

    context_management: list[CompactionEntry] | None = Field(
        default=None, max_length=1, description="OpenAI's compaction. It needs a session."
    )


class AppliedEditView(BaseModel):
    """An edit that is in force, with the vendor's counters."""

    model_config = ConfigDict(extra="allow")
    type: str = Field(description="The edit.")
    cleared_tool_uses: int | None = Field(default=None, ge=0, description="Tool results that are left out.")
    cleared_thinking_turns: int | None = Field(default=None, ge=0, description="Turns whose thinking is left out.")
    cleared_input_tokens: int | None = Field(default=None, ge=0, description="Tokens that are left out.")
    summary: SummaryUse | None = Field(default=None, description="The summary of a compaction, and what it cost.")


class ContextManagementView(BaseModel):
    """What the edits of a request did."""

    applied_edits: list[AppliedEditView] | None = Field(
        default=None, description="Edits that cleared something, in the vendor's form."
    )
    unmet: str | None = Field(default=None, description="Why there is no summary.")
