"""Conversations in the Anthropic form: messages whose content is a list of blocks.

    user       [tool_result a, tool_result b, text]      entries:  tool a | tool b | user
    assistant  [thinking, text, tool_use c]                        assistant (content, tool_calls)

`to_chat` writes such a conversation down in OpenAI's form, so that outline, token counts and policies can read it. It
remembers where each entry came from. `render_blocks` takes out of the *blocks* what an `Omissions` of the entries says.
Nothing is converted back: blocks and messages of which nothing is taken are the very objects that came in.

`edit_blocks` is both with the vendor's edits between.

Decisions: `cache_control` marks are no content (clients move them from turn to turn). A message that had nothing but
reasoning, and loses it, is left out.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from acmserve.context.eviction.clearing_edits import EditedHistory, Memory, VendorEdit, Weights, edit_history
from acmserve.context.transcript.message import Message
from acmserve.context.transcript.omissions import NOTHING, PLACEHOLDER, MessageOmissions, Omissions
from acmserve.context.transcript.outline import Outline, Use
from acmserve.context.transcript.parts import Role, is_reasoning_part


@dataclass(frozen=True, slots=True)
class Chat:
    """`messages` are the entries. `places` has for each the index of its message, and of its block if a result."""

    messages: tuple[Message, ...]
    places: tuple[tuple[int, int | None], ...]


def edit_blocks(
    messages: Sequence[Message],
    edits: Sequence[VendorEdit],
    weights: Weights,
    memory: Memory | None = None,
) -> tuple[list[Message], EditedHistory]:
    """What is left of the messages after the edits. The arguments are those of `edit_history`."""
    chat = to_chat(messages)
    edited = edit_history(chat.messages, edits, weights, memory)
    return render_blocks(messages, chat, edited.outline, edited.omissions), edited


def to_chat(messages: Sequence[Message]) -> Chat:
    """The entries of a conversation in the Anthropic form, in order. Results come before the rest of their message."""
    found: list[tuple[Message, tuple[int, int | None]]] = []
    for index, message in enumerate(messages):
        blocks = _blocks(message)
        if message.get("role") == "assistant":
            found.append((_assistant(blocks), (index, None)))
            continue
        for position, block in enumerate(blocks):
            if block.get("type") == "tool_result":
                found.append((_result(block), (index, position)))
        rest = [_bare(block) for block in blocks if block.get("type") != "tool_result"]
        if rest or not blocks:
            found.append(({"role": message.get("role"), "content": rest}, (index, None)))
    return Chat(tuple(message for message, _ in found), tuple(place for _, place in found))


def _blocks(message: Message) -> list[Mapping[str, Any]]:
    content = message.get("content")
    if isinstance(content, str):
        return [{"type": "text", "text": content}]
    return list(content or ())


def _assistant(blocks: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    said: dict[str, Any] = {"role": "assistant"}
    said["content"] = [_bare(block) for block in blocks if block.get("type") != "tool_use"]
    calls = [
        {
            "id": block.get("id"),
            "type": "function",
            "function": {"name": block.get("name") or "", "arguments": block.get("input") or {}},
        }
        for block in blocks
        if block.get("type") == "tool_use"
    ]
    return said | ({"tool_calls": calls} if calls else {})


def _result(block: Mapping[str, Any]) -> dict[str, Any]:
    content = block.get("content")
    parts = [{"type": "text", "text": content}] if isinstance(content, str) else [_bare(part) for part in content or ()]
    return {"role": "tool", "tool_call_id": block.get("tool_use_id"), "content": parts}


def _bare(block: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in block.items() if name != "cache_control" and value is not None}


def render_blocks(messages: Sequence[Message], chat: Chat, outline: Outline, omissions: Omissions) -> list[Message]:
    """What is left of the messages. `chat` is theirs, `outline` that of its entries.

    Of omissions it does what the vendor's edits ask for: reasoning, results and arguments. It drops no calls.
    """
    if not omissions:
        return list(messages)
    cleared = {
        chat.places[result]
        for entry, kept in omissions.entries.items()
        for number in kept.cleared
        for result in outline.results(Use(entry, number))
    }
    assistants = {
        index: entry for entry, (index, _) in enumerate(chat.places) if outline.lines[entry].role is Role.ASSISTANT
    }
    rendered: list[Message] = []
    for index, message in enumerate(messages):
        entry = assistants.get(index)
        if entry is None or not omissions.is_gone(entry):
            kept = NOTHING if entry is None else omissions.entries.get(entry, NOTHING)
            rendered.append(_left(message, index, kept, cleared))
    return rendered


def _left(message: Message, index: int, kept: MessageOmissions, cleared: set[tuple[int, int | None]]) -> Message:
    """One message without what is taken out of it. The very object when that is nothing."""
    content = message["content"]
    if isinstance(content, str):
        return message
    left, num_calls = [], 0
    for position, block in enumerate(content):
        if kept.reasoning and is_reasoning_part(block):
            continue
        if (index, position) in cleared:
            left.append({**block, "content": PLACEHOLDER})
        elif block.get("type") == "tool_use":
            left.append({**block, "input": {}} if num_calls in kept.inputs else block)
            num_calls += 1
        else:
            left.append(block)
    is_whole = len(left) == len(content) and all(new is old for new, old in zip(left, content, strict=True))
    return message if is_whole else {**message, "content": left}
