"""One chat message as the `/v1/acm` routes take it.

Unlike every other field of a request, a message may carry anything that OpenAI's protocol or a chat template knows. It
is kept as it was sent.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Self

from pydantic import BaseModel, ConfigDict, Field, ModelWrapValidatorHandler, PrivateAttr, model_validator


class CalledFunction(BaseModel):
    """The function of a tool call."""

    model_config = ConfigDict(extra="allow")
    name: str = Field(default="", description="Name of the function.")
    arguments: str | dict[str, Any] | None = Field(default=None, description="Arguments, as JSON text or an object.")


class MessageToolCall(BaseModel):
    """One call in the `tool_calls` of an assistant's message."""

    model_config = ConfigDict(extra="allow")
    id: str | None = Field(default=None, description="Id that the tool message repeats as `tool_call_id`.")
    function: CalledFunction = Field(default_factory=CalledFunction, description="What is called.")


class Message(BaseModel):
    """One chat message, as in `POST /v1/chat/completions`. Further fields are kept as they are."""

    model_config = ConfigDict(extra="allow")
    role: str = Field(min_length=1, max_length=64, description="`system`, `user`, `assistant`, `tool`, ...")
    content: str | list[str | dict[str, Any]] | None = Field(
        default=None, description="The text, or a list of parts such as `{'type': 'text', 'text': ...}`."
    )
    name: str | None = Field(default=None, description="Name of the author.")
    tool_calls: list[MessageToolCall] | None = Field(default=None, description="Calls made by the assistant.")
    tool_call_id: str | None = Field(default=None, description="The call that a tool message answers.")
    _given: Mapping[str, Any] = PrivateAttr(default_factory=dict)

    @model_validator(mode="wrap")
    @classmethod
    def _keep_given(cls, given: Any, validate: ModelWrapValidatorHandler[Self]) -> Self:
        message = validate(given)
        if isinstance(given, Mapping):
            message._given = given
        return message

    @property
    def given(self) -> Mapping[str, Any]:
        """The message as the client sent it, the very object."""
        return self._given
