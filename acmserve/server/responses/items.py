"""Items of the Responses API: what they say, told from their JSON.

    message (user, system, developer, assistant)   reasoning   function_call   function_call_output   compaction ...
    |------- words ---------------------------|    |----- an answer ------|    |---- a result ----|

`plain_items` spells what vLLM reads only in part: the parts of an answer become one text, so that nothing of it is
lost. Reasoning that only its vendor can read is left out.

Pure. It knows JSON, neither chats nor vLLM.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

Item = Mapping[str, Any]

INSTRUCTION_ROLES = ("system", "developer")
_CALLS = ("function_call", "custom_tool_call")
_OUTPUTS = ("function_call_output", "custom_tool_call_output")
_TO_BE_CONTINUED = ("in_progress", "incomplete")
"""vLLM goes on with such an answer. It reads the status of an output message alone, whose content is a list."""


def as_items(given: object) -> list[Any]:
    """`input` as a list of items. A text is what the user says."""
    if isinstance(given, str):
        return [{"type": "message", "role": "user", "content": given}]
    return list(given) if isinstance(given, list) else []


def plain_items(items: Sequence[Any]) -> list[Any]:
    """The items as vLLM reads them whole."""
    return [plain for item in items if (plain := _plain(item)) is not None]


def role_of(item: object) -> str | None:
    """The role of a message. None for any other item."""
    if not isinstance(item, Mapping) or item.get("type", "message") != "message":
        return None
    role = item.get("role")
    return role if isinstance(role, str) else None


def is_answer(item: object) -> bool:
    """Whether a model wrote it."""
    kind = item.get("type") if isinstance(item, Mapping) else None
    return role_of(item) == "assistant" or kind == "reasoning" or kind in _CALLS


def is_result(item: object) -> bool:
    """Whether a tool said it."""
    return isinstance(item, Mapping) and item.get("type") in _OUTPUTS


def leading_instructions(items: Sequence[Any]) -> list[Any]:
    """What stands in front of the conversation."""
    end = next((i for i, item in enumerate(items) if role_of(item) not in INSTRUCTION_ROLES), len(items))
    return list(items[:end])


def being_answered(items: Sequence[Any]) -> list[Any]:
    """What the next answer is about, word for word: the last question, and the calls whose results just came."""
    start = max((index for index, item in enumerate(items) if is_answer(item)), default=-1) + 1
    pending = items[start:]
    if any(role_of(item) == "user" for item in pending) and not any(is_result(item) for item in pending):
        return list(pending)
    while start > 0 and is_answer(items[start - 1]):
        start -= 1
    asked = next((item for item in reversed(items[:start]) if role_of(item) == "user"), None)
    return [*([] if asked is None else [asked]), *items[start:]]


def items_of(messages: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Messages of a chat as items. Images and other parts stay in their message as the chat has them."""
    items: list[dict[str, Any]] = []
    for message in messages:
        if message.get("role") == "tool":
            output = {"call_id": message.get("tool_call_id"), "output": _text(message.get("content"))}
            items.append({"type": "function_call_output", **output})
            continue
        if message.get("content"):
            content = message["content"]
            said = _text(content) if message.get("role") == "assistant" else content
            items.append({"type": "message", "role": message.get("role"), "content": said})
        for call in message.get("tool_calls") or ():
            function = call["function"]
            named = {"call_id": call.get("id"), "name": function["name"], "arguments": function["arguments"]}
            items.append({"type": "function_call", **named})
    return items


def _plain(item: Any) -> Any:
    if not isinstance(item, Mapping):
        return item
    if role_of(item) == "assistant" and isinstance(item.get("content"), list):
        text = _text(item["content"])
        said = {"type": "message", "role": "assistant"}
        if item.get("status") in _TO_BE_CONTINUED:
            return {**item, **said, "content": [{"type": "output_text", "text": text, "annotations": []}]}
        return {**said, "content": text}
    if item.get("type") == "reasoning":
        thought = "\n".join(part for part in (_text(item.get("content")), _text(item.get("summary"))) if part)
        own = _text(item.get("content")) or thought
        return {**_without(item, "encrypted_content"), **_thought(own)} if own else None
    return item


def _thought(text: str) -> dict[str, Any]:
    return {"summary": [], "content": [{"type": "reasoning_text", "text": text}]}


def _without(item: Item, name: str) -> dict[str, Any]:
    return {key: value for key, value in item.items() if key != name}


def _text(content: object) -> str:
    """The texts of a content, joined. A refusal is one."""
    if isinstance(content, str):
        return content
    if not isinstance(content, list):
        return ""
    parts = (part.get("text") or part.get("refusal") for part in content if isinstance(part, Mapping))
    return "".join(part for part in parts if isinstance(part, str))
