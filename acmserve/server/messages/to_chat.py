"""A request of /v1/messages as the chat of a session: vLLM's conversion, instructions in place, our fields beside it.

    system [blocks]            -->  system S
    user [text]                     user
    system X                        system X, or a mark in the user's message (see `chat/instructions.py`)
    assistant [thinking, text,      assistant (content, reasoning, tool_calls)
               tool_use]
    user [tool_result, text]        tool | user

What the conversion makes of a history depends on its messages alone, so a session recognises it at every turn. Edits
that clear go with the chat, whose session carries them out. A `compact` edit stays here: its summary is the client's.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from acmserve.context.eviction.clearing_edits import COMPACT
from acmserve.server.chat.instructions import place_instructions
from acmserve.server.chat.options import ChatRequest, SessionCall
from acmserve.server.models.message_roles import MessageRoles
from acmserve.server.options.context_management import FIELD
from acmserve.server.vllm.messages import chat_request


async def to_chat_request(call: SessionCall, request: Any, serving: Any, roles: MessageRoles) -> ChatRequest:
    """The chat of a call. `request` is vLLM's, the call's own or another one. Raises what pydantic raises."""
    converted = await chat_request(serving, request)
    body = converted.model_dump(mode="json", by_alias=True, exclude_none=True, exclude_unset=True)
    if not body.get("tools"):
        _drop_tools(body)
    if converted.tool_choice is None:
        # Of a chat the default is "none", and vLLM reads calls out of an answer where there is no choice.
        body.setdefault("tool_choice", None)
    body["messages"] = place_instructions(body["messages"], roles)
    if call.body.get(FIELD) is not None:
        body[FIELD] = _clearing(call.body[FIELD])
    return call.chat(body)


def _drop_tools(body: dict[str, Any]) -> None:
    """A chat refuses an empty list of tools, and "auto" without any. A call that is asked for stays, and is refused.

    No choice means "auto" to vLLM.
    """
    body.pop("tools", None)
    if body.get("tool_choice") == "auto":
        body["tool_choice"] = None


def _clearing(asked: Mapping[str, Any]) -> dict[str, Any]:
    """`context_management`, which has been checked, without its summary."""
    return {**asked, "edits": [edit for edit in asked.get("edits") or () if edit["type"] != COMPACT]}
