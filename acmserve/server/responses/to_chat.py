"""A request of /v1/responses as the chat of a session.

    instructions I                    -->  system I
    message user [input_text]              user "text"
    reasoning, message, function_call      assistant (reasoning, content, tool_calls)
    function_call_output                   tool
    tools: function, custom, namespace     functions, as vLLM shows them to the model

Items become messages by vLLM's own rules. Parts are spelled as chats spell them, so that one conversation has one
identity on every route. What a chat cannot say is named by `inexpressible`, and such a request is vLLM's alone.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from acmserve.server.chat.instructions import place_instructions
from acmserve.server.models.message_roles import MessageRoles
from acmserve.server.responses.items import INSTRUCTION_ROLES
from acmserve.server.vllm.responses import ResponsesRequest, chat_messages, chat_tools, continues_answer, tool_types

_SAME = (
    *("model", "temperature", "top_p", "top_k", "min_p", "presence_penalty", "frequency_penalty", "repetition_penalty"),
    *("seed", "stop", "stop_token_ids", "ignore_eos", "logit_bias", "skip_special_tokens", "priority", "user"),
    *("include_stop_str_in_output", "include_reasoning", "parallel_tool_calls", "structured_outputs", "watermarking"),
    *("vllm_xargs", "kv_transfer_params", "ec_transfer_params", "chat_template_kwargs", "mm_processor_kwargs"),
    *("media_io_kwargs", "cache_salt"),
)
"""Fields that mean the same in a chat."""

_RUN_BY_VLLM = frozenset({"web_search_preview", "code_interpreter", "container", "mcp"})
_TEXTS = ("input_text", "output_text", "text", "refusal")
_OWN = ("type", "id", "status", "phase")


def inexpressible(request: ResponsesRequest, serving: Any) -> str | None:
    """Why a chat cannot give this answer. None where it can. `serving` is vLLM's handler of responses."""
    choice = request.tool_choice
    reasons = {
        "background mode is vLLM's own": bool(request.background),
        "the model speaks Harmony, whose channels a chat does not have": bool(serving.use_harmony),
        "previous_input_messages are tokens of vLLM's own": bool(request.previous_input_messages),
        "enable_response_messages shows vLLM's own messages": request.enable_response_messages,
        "the server runs a tool that was asked for": serving.tool_server is not None
        and not _RUN_BY_VLLM.isdisjoint(tool_types(request)),
        "this tool_choice has no form in a chat": not isinstance(choice, str)
        and choice.type not in ("function", "custom"),
        "an item of the input has no form in a chat": not all(_is_sayable(item) for item in _items(request)),
    }
    return next((reason for reason, holds in reasons.items() if holds), None)


def to_chat_body(
    request: ResponsesRequest,
    body: Mapping[str, Any],
    roles: MessageRoles,
    *,
    begins: bool = True,
    parses_calls: bool = True,
) -> dict[str, Any]:
    """The body of the chat. `request` has the items to be converted, `body` the fields as they were sent.

    Without `begins` the items go on from what the session holds. The instructions lead a conversation in any case.
    Without `parses_calls` the server reads no calls out of an answer, and vLLM refuses a chat that leaves them to it.
    """
    chat = {name: body[name] for name in _SAME if body.get(name) is not None}
    chat["model"] = body.get("model") or request.model
    spoken = [_plain_message(message) for message in chat_messages(request)]
    head = [{"role": "system", "content": request.instructions}] if request.instructions else []
    if begins:
        chat["messages"] = place_instructions([*head, *spoken], roles)
    else:
        chat["messages"] = [*head, *place_instructions(spoken, roles, begins=False)]
    if request.max_output_tokens is not None:
        chat["max_completion_tokens"] = request.max_output_tokens
    if request.reasoning is not None and request.reasoning.effort is not None:
        chat["reasoning_effort"] = request.reasoning.effort
    if request.truncation == "auto":
        chat["truncate_prompt_tokens"] = -1
    if request.is_include_output_logprobs():
        chat |= {"logprobs": True, "top_logprobs": request.top_logprobs}
    if continues_answer(request):
        chat |= {"continue_final_message": True, "add_generation_prompt": False}
    if request.stream:
        chat |= {"stream": True, "stream_options": {"include_usage": True, "continuous_usage_stats": True}}
    return chat | _tools(request, parses_calls) | _format(request)


def _tools(request: ResponsesRequest, parses_calls: bool) -> dict[str, Any]:
    tools = chat_tools(request)
    if not tools:
        return {}
    choice = request.tool_choice
    if choice == "auto" and not parses_calls:
        # Not "none": a server may leave the tools out of the prompt there.
        return {"tools": tools, "tool_choice": None}
    named = (
        choice if isinstance(choice, str) else {"type": "function", "function": {"name": getattr(choice, "name", "")}}
    )
    return {"tools": tools, "tool_choice": named}


def _format(request: ResponsesRequest) -> dict[str, Any]:
    wanted = None if request.text is None else request.text.format
    if wanted is None or wanted.type == "text":
        return {}
    if wanted.type == "json_object":
        return {"response_format": {"type": "json_object"}}
    schema = {"name": wanted.name, "schema": wanted.schema_, "strict": wanted.strict}
    return {"response_format": {"type": "json_schema", "json_schema": schema}}


def _plain_message(message: Mapping[str, Any]) -> dict[str, Any]:
    """A message as a chat spells it."""
    plain = {name: value for name, value in message.items() if name not in _OWN and value is not None}
    content = plain.get("content")
    if isinstance(content, str) or content is None:
        return plain
    parts = [_plain_part(part) for part in content]
    if len(parts) == 1 and parts[0]["type"] == "text":
        return {**plain, "content": parts[0]["text"]}
    if plain.get("role") in (*INSTRUCTION_ROLES, "tool") and all(part["type"] == "text" for part in parts):
        return {**plain, "content": "\n".join(part["text"] for part in parts)}
    return {**plain, "content": parts}


def _plain_part(part: Mapping[str, Any]) -> dict[str, Any]:
    kind = part.get("type")
    if kind in _TEXTS:
        return {"type": "text", "text": part.get("text") or part.get("refusal") or ""}
    if kind == "input_image":
        detail = {"detail": part["detail"]} if part.get("detail") not in (None, "auto") else {}
        return {"type": "image_url", "image_url": {"url": part.get("image_url"), **detail}}
    return dict(part)


def _is_sayable(item: Mapping[str, Any]) -> bool:
    """Whether an item, and every part of it, has a form in a chat."""
    kind = item.get("type") or "message"
    known = ("message", "reasoning", "function_call", "function_call_output", "custom_tool_call")
    if kind not in (*known, "custom_tool_call_output"):
        return False
    content = item.get("output") if kind.endswith("_output") else item.get("content")
    parts: Sequence[Any] = content if isinstance(content, list) else ()
    kinds = (*_TEXTS, "reasoning_text", "image_url", "input_audio")
    return all(
        isinstance(part, Mapping)
        and (part.get("type") in kinds or (part.get("type") == "input_image" and bool(part.get("image_url"))))
        for part in parts
    )


def _items(request: ResponsesRequest) -> list[Mapping[str, Any]]:
    if isinstance(request.input, str):
        return []
    return [item if isinstance(item, Mapping) else item.model_dump() for item in request.input]
