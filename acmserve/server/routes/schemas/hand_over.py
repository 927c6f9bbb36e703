"""What an export of a session holds, and an import takes, as pydantic models. Part of the OpenAPI document."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field

from acmserve.plan.request import MAX_SESSION_ID_CHARS

MAX_SESSIONS = 1_000
_SessionId = Annotated[str, Field(min_length=1, max_length=MAX_SESSION_ID_CHARS)]


class _Exported(BaseModel):
    model_config = ConfigDict(extra="forbid")


class ExportedModel(_Exported):
    """The model for which the session's prompts are written."""

    name: str = Field(description="What clients call it. The other server has to serve it under this name, too.")
    tokenizer: str = Field(description="A digest of its vocabulary, and of a text in its tokens.")
    chat_template: str = Field(description="A digest of the chat template and its settings.")
    architecture: str = Field(description="Its class and its sizes. Weights are not read.")


class ExportedOutput(_Exported):
    """An answer that was sampled in other tokens than the tokenizer would choose for its text."""

    text: str = Field(description="The answer.")
    token_ids: list[int] = Field(description="The tokens, which the next prompt repeats.")


class ExportedSession(_Exported):
    """A session, one of its branches, or one of its side threads."""

    session_id: _SessionId = Field(description="It stays the same.")
    suite: str = Field(min_length=1, max_length=256, description="The tool suite of the session.")
    created_at: float = Field(ge=0, allow_inf_nan=False, description="Seconds since 1970, UTC.")
    state: str = Field(description="Transcript, fragments, edits, budget and branches, as JSON in a text.")
    turns: str = Field(description="What the last turns cost, with their receipts, as JSON in a text.")
    outputs: list[ExportedOutput] = Field(max_length=1_000, description="Empty for most sessions.")


class SessionExport(_Exported):
    """A session as it travels to another server."""

    object: Literal["acm.session_export"] = Field(description="The kind of object.")
    version: int = Field(description="Of this format.")
    session_id: _SessionId = Field(description="The session, the first one of `sessions`.")
    exported_at: float = Field(ge=0, description="Seconds since 1970, UTC.")
    model: ExportedModel = Field(description="What the other server has to serve, too.")
    sessions: list[ExportedSession] = Field(
        min_length=1, max_length=MAX_SESSIONS, description="The session, then its branches and its side threads."
    )
