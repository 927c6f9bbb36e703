"""What the routes of a transcript give, message by message, as pydantic models. Part of the OpenAPI document."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import BaseModel, Field

from acmserve.server.routes.schemas.sessions import ContextFragment

MAX_ROWS = 10_000
MAX_PREVIEW_CHARS = 120


class TranscriptRow(BaseModel):
    """One message in short: what it weighs, and what became of it."""

    index: int = Field(ge=0, description="Its number, as in `GET .../context`.")
    role: str = Field(description="Whose message it is.")
    origin: Literal["client", "answer", "internal"] = Field(description="Who wrote it, as in `GET .../context`.")
    state: Literal["whole", "hidden", "evicted"] = Field(
        description="`hidden`: a fragment of it is folded, summarized or redacted. `evicted`: an eviction took out its "
        "text, or all of it."
    )
    num_tokens: int = Field(ge=0, description="Tokens of its texts as the model sees them.")
    num_tokens_original: int = Field(ge=0, description="The same with nothing hidden. What was redacted is gone.")
    fragments: list[str] = Field(description="Its fragments that are hidden now.")
    branch: str | None = Field(description="The branch that it belongs to.")
    kv: str | None = Field(description="What the next turn finds of its KV, as in `GET .../context`.")
    preview: str = Field(description="How its text begins.")


class TranscriptPage(BaseModel):
    """A range of messages in short."""

    object: Literal["list"] = Field(default="list", description="The kind of object.")
    data: list[TranscriptRow] = Field(description="In the order of the conversation.")
    num_messages: int = Field(ge=0, description="Messages in the whole transcript.")
    has_more: bool = Field(description="Whether messages follow.")


class TranscriptMessage(TranscriptRow):
    """One message: as it was sent, and as the model sees it."""

    sent: dict[str, Any] = Field(description="The message with nothing hidden. What was redacted is its marker.")
    shown: dict[str, Any] | None = Field(description="As the model sees it; null where nothing is left of it.")
    cut: list[ContextFragment] = Field(description="The fragments that have a piece in it.")
