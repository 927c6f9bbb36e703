"""The reasoning of an assistant's message: where clients put it, and the message without it.

Three ways are in use: the fields `reasoning` and `reasoning_content` beside the content, and parts of a content list
whose type is `thinking`, `redacted_thinking` or `reasoning`. Reasoning that a model writes into its plain text stays
there: it is text to everybody else too.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from acmserve.context.transcript.message import Message

_FIELDS = ("reasoning", "reasoning_content", "thinking", "thinking_blocks")
_PART_TYPES = frozenset({"thinking", "redacted_thinking", "reasoning"})


def is_reasoning_part(part: object) -> bool:
    """Whether a part of a content list is reasoning."""
    return isinstance(part, Mapping) and part.get("type") in _PART_TYPES


def has_reasoning(message: Message) -> bool:
    """Whether a message carries any reasoning."""
    content = message.get("content")
    return any(message.get(name) for name in _FIELDS) or (
        isinstance(content, list) and any(is_reasoning_part(part) for part in content)
    )


def reasoning_texts(message: Message) -> list[str]:
    """The strings of a message's reasoning, for counting."""
    content = message.get("content")
    parts = [part for part in content if is_reasoning_part(part)] if isinstance(content, list) else []
    found: list[str] = []
    for value in (*(message.get(name) for name in _FIELDS), *parts):
        _collect(value, found)
    return found


def _collect(value: object, found: list[str]) -> None:
    if isinstance(value, str):
        found.append(value)
    elif isinstance(value, list):
        for item in value:
            _collect(item, found)
    elif isinstance(value, Mapping):
        for name, item in value.items():
            if name not in {"type", "signature"}:
                _collect(item, found)


def without_reasoning(message: Message) -> Message:
    """The message without its reasoning; the very object where it has none."""
    if not has_reasoning(message):
        return message
    kept: dict[str, Any] = {name: value for name, value in message.items() if name not in _FIELDS}
    content = kept.get("content")
    if isinstance(content, list):
        kept["content"] = [part for part in content if not is_reasoning_part(part)]
    return kept
