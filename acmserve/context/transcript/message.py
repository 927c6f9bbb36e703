"""One message of a conversation, as OpenAI's chat protocol writes it: its texts, and its identity.

A message stays the JSON object that the client sent. Nothing here copies or repairs it. Two decisions:

- The *texts* of a message are its content string, or the text parts of its content list. A `Place` names one of them,
  or a string in the arguments of a tool call (`call_arguments.py`). Images are neither folded nor searched.
- The *identity* of a message is a keyed digest of what a client keeps of it. Clients resend their history in slightly
  other words (`"tool_calls": null`, JSON arguments spaced anew). So fields that are null or empty do not count, neither
  does anything but role, content, name, tool calls and tool call id. The key is the session's own: a redacted text is
  kept as a digest only, and nobody may guess it from a table.

It knows neither sessions nor tokens.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import total_ordering
from typing import Any

from acmserve.context.transcript.call_arguments import ArgumentPart, argument_at, with_arguments

Message = Mapping[str, Any]
Part = int | ArgumentPart | None
"""One text of a message: None for a content that is a string, a number for a part of a content list."""

FOLDABLE_ROLES = ("user", "assistant", "tool", "function")
_IDENTITY = ("role", "content", "name", "tool_call_id")


@total_ordering
@dataclass(frozen=True, slots=True)
class Place:
    """One text of a conversation: part `part` of entry `entry`. The content stands in front of the arguments."""

    entry: int
    part: Part = None

    def __lt__(self, other: Place) -> bool:
        return self._order < other._order

    @property
    def _order(self) -> tuple[int, int, tuple[object, ...]]:
        if isinstance(self.part, ArgumentPart):
            return self.entry, self.part.call, self.part.path
        return self.entry, -1, (-1 if self.part is None else self.part,)


def texts(message: Message) -> list[tuple[Part, str]]:
    """The texts of a message's content: (None, content) for a string, (index, text) for every text part of a list."""
    content = message.get("content")
    if isinstance(content, str):
        return [(None, content)] if content else []
    if not isinstance(content, list):
        return []
    return [(index, text) for index, part in enumerate(content) if (text := _part_text(part))]


def text_at(message: Message, part: Part) -> str:
    """The text at `part` of a message. "" where there is none."""
    if isinstance(part, ArgumentPart):
        return argument_at(message, part)
    content = message.get("content")
    if part is None:
        return content if isinstance(content, str) else ""
    return _part_text(content[part]) if isinstance(content, list) and 0 <= part < len(content) else ""


def _part_text(part: object) -> str:
    text = part.get("text") if isinstance(part, Mapping) else part
    return text if isinstance(text, str) else ""


def with_texts(message: Message, changed: Mapping[Part, str]) -> dict[str, Any]:
    """A copy of the message with some of its texts exchanged. Everything else is the same object."""
    copy = dict(message)
    arguments = {part: text for part, text in changed.items() if isinstance(part, ArgumentPart)}
    if arguments:
        copy["tool_calls"] = with_arguments(message, arguments)
    if None in changed:
        copy["content"] = changed[None]
        return copy
    in_list = [(part, text) for part, text in changed.items() if isinstance(part, int)]
    if in_list:
        parts = list(message["content"])
        for index, text in in_list:
            parts[index] = text if isinstance(parts[index], str) else {**parts[index], "text": text}
        copy["content"] = parts
    return copy


def digest_message(message: Message, key: bytes) -> bytes:
    """The identity of a message, 16 bytes. `key` (1 to 64 bytes) is the session's.

    Arguments of a call may spell half of a surrogate pair, as `\\ud800`. Raises what `json` raises for a message that
    cannot be written down: TypeError, ValueError, RecursionError.
    """
    kept: dict[str, Any] = {name: message[name] for name in _IDENTITY if message.get(name)}
    calls = message.get("tool_calls")
    if calls:
        kept["tool_calls"] = [_call_identity(call) for call in calls] if isinstance(calls, list) else calls
    canonical = json.dumps(kept, sort_keys=True, ensure_ascii=False, separators=(",", ":"))
    return hashlib.blake2b(canonical.encode("utf-8", "surrogatepass"), key=key, digest_size=16).digest()


def _call_identity(call: object) -> object:
    """A tool call without its spelling: arguments that are JSON compare as values."""
    function = call.get("function") if isinstance(call, Mapping) else None
    if not isinstance(call, Mapping) or not isinstance(function, Mapping):
        return call
    arguments = function.get("arguments")
    with contextlib.suppress(ValueError, RecursionError):
        arguments = json.loads(arguments) if isinstance(arguments, str) else arguments
    return [call.get("id"), function.get("name"), arguments]
