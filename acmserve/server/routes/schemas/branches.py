"""What the routes of branches take and give, as pydantic models. See `sessions.py`."""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, ConfigDict, Field

from acmserve.context.session.branches.branch_tool import MAX_DESCRIPTION_CHARS, MAX_MESSAGE_CHARS, MAX_PROMPT_CHARS
from acmserve.server.routes.schemas.storage import StorageView


class NewBranch(BaseModel):
    """A branch to make."""

    model_config = ConfigDict(extra="forbid")
    description: str = Field(
        min_length=1,
        max_length=MAX_DESCRIPTION_CHARS,
        description="What the branch is for, in a few words.",
        examples=["find the port"],
    )
    prompt: str = Field(
        min_length=1,
        max_length=MAX_PROMPT_CHARS,
        description="The task. Send it to the branch yourself, as a message of the user.",
        examples=["Which port does the server open? Look into serve.py."],
    )


class ReturnRequest(BaseModel):
    """What a branch returns."""

    model_config = ConfigDict(extra="forbid")
    message: str = Field(
        min_length=1,
        max_length=MAX_MESSAGE_CHARS,
        description="What the main conversation is to know; all that stays of the branch.",
        examples=["8000, set in serve.py:40."],
    )


class BranchInfo(BaseModel):
    """One branch of a session."""

    object: Literal["acm.branch"] = Field(default="acm.branch", description="The kind of object.")
    branch_id: str = Field(description="Of a branch that is a session: its `session_id`. Else the id of the call.")
    session_id: str = Field(description="The session that it is a branch of.")
    kind: Literal["session", "call"] = Field(
        description="`session`: made by a request, and a session of its own while it is open. `call`: opened by the "
        "model inside the session."
    )
    state: Literal["open", "returned", "failed"] = Field(
        description="`open`, `returned` with its message, or `failed`."
    )
    description: str = Field(description="What it is for, in a few words.")
    prompt: str = Field(description="Its task.")
    num_calls: int = Field(ge=0, description="Tool calls of the model in the branch.")
    num_tokens: int = Field(ge=0, description="Tokens of its own messages, about.")
    num_messages: int | None = Field(
        description="Messages that the branch has from its parent's client: send these first, as they were, then the "
        "branch's own. Null where the branch is no session."
    )
    message: str | None = Field(description="Its result in the main conversation; null while it is open.")
    storage: StorageView | None = Field(
        default=None, description="Why the server's file lacks the branch, or what it returned. Null where it does not."
    )


class BranchList(BaseModel):
    """The branches of a session: those that have ended in the order of the conversation, then those that are open."""

    object: Literal["list"] = Field(default="list", description="The kind of object.")
    data: list[BranchInfo] = Field(description="The branches.")
