"""One message taken apart: its role, its texts, its reasoning, its tool calls.

    {"role": "assistant", "content": "Look.", "reasoning": "Hm.", "tool_calls": [grep(...)]}
    Parts(ASSISTANT, texts=("Look.",), reasoning=("Hm.",), calls=(CallParts("c1", "grep", "{...}"),))

Reasoning stands in fields beside the content: `reasoning`, `reasoning_content` or `thinking`. Or it stands in parts of
a content list, of type `thinking`, `redacted_thinking` or `reasoning`. Reasoning that a model writes into its plain
text stays there, because it is text to everybody else, too.

Decision: a batch of messages is read once, and the outline, the token counts and the episodes all take the result. It
does not know which result answers which call, nor what a text weighs. Which messages of the user are observations is
decided elsewhere (`observations.py`), and told by their positions.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any

from acmserve.context.transcript.media import media_keys
from acmserve.context.transcript.message import Message, texts

REASONING_FIELDS = ("reasoning", "reasoning_content", "thinking", "thinking_blocks")
_PART_TYPES = frozenset({"thinking", "redacted_thinking", "reasoning"})


class Role(Enum):
    """What a message is to somebody who wants to take something out."""

    PROTECTED = "protected"
    ASSISTANT = "assistant"
    RESULT = "result"


@dataclass(frozen=True, slots=True)
class CallParts:
    """One tool call. `arguments` are as the model wrote them: JSON text, or an object."""

    call_id: str
    name: str
    arguments: object


@dataclass(frozen=True, slots=True)
class Parts:
    """`texts` and `reasoning` are strings to be counted. `has_text` says whether the message says anything to a reader.

    `call_id` is the call that a result names. `calls` and `has_reasoning` are read for the assistant only. `media` are
    the keys of images and the like. An observation (`is_observation`) answers the text in front of it, not a call.
    """

    role: Role
    is_user: bool
    texts: tuple[str, ...]
    call_id: str
    has_text: bool = False
    has_reasoning: bool = False
    reasoning: tuple[str, ...] = ()
    calls: tuple[CallParts, ...] = ()
    media: tuple[bytes, ...] = ()
    is_observation: bool = False


def read_parts(messages: Iterable[Message], observations: Collection[int] = ()) -> list[Parts]:
    """The parts of each message, in order. `observations` are the positions of the user's that are results."""
    return [_read(message, is_observation=n in observations) for n, message in enumerate(messages)]


def read_calls(messages: Iterable[Message], observations: Collection[int] = ()) -> list[Parts]:
    """The parts that say which result answers which call, without the texts. Cheaper where a text is long."""
    return [
        Parts(
            Role.RESULT if number in observations else role,
            False,
            (),
            _id(message.get("tool_call_id")),
            calls=_calls(message) if role is Role.ASSISTANT else (),
            is_observation=number in observations,
        )
        for number, message in enumerate(messages)
        for role in (role_of(message),)
    ]


def _read(message: Message, *, is_observation: bool) -> Parts:
    role = Role.RESULT if is_observation else role_of(message)
    thinks = has_reasoning(message)
    said = without_reasoning(message) if thinks else message
    written = tuple(text for _, text in texts(said))
    call_id = _id(message.get("tool_call_id"))
    if role is not Role.ASSISTANT:
        is_user = message.get("role") == "user" and not is_observation
        return Parts(role, is_user, written, call_id, media=_media(message), is_observation=is_observation)
    reasoning = tuple(reasoning_texts(message)) if thinks else ()
    return Parts(role, False, written, call_id, _says(said), thinks, reasoning, _calls(message), _media(message))


def _media(message: Message) -> tuple[bytes, ...]:
    """The media of a message. Only a list of parts has any."""
    return media_keys(message) if isinstance(message.get("content"), list) else ()


def _calls(message: Message) -> tuple[CallParts, ...]:
    return tuple(
        [CallParts(_id(call.get("id")), call_name(call), call_arguments(call)) for call in tool_calls(message)]
    )


def role_of(message: Message) -> Role:
    """What may be taken out of a message, by its role."""
    if message.get("role") == "assistant" and not message.get("function_call"):
        return Role.ASSISTANT
    return Role.RESULT if message.get("role") == "tool" else Role.PROTECTED


def tool_calls(message: Message) -> Sequence[Mapping[str, Any]]:
    """The tool calls of a message. What is no object among them counts as a call without a name."""
    calls = message.get("tool_calls")
    return [call if isinstance(call, Mapping) else {} for call in calls] if isinstance(calls, list | tuple) else ()


def call_name(call: Mapping[str, Any]) -> str:
    """The name of the tool that is called."""
    function = call.get("function")
    return str(function.get("name", "")) if isinstance(function, Mapping) else ""


def call_arguments(call: Mapping[str, Any]) -> object:
    """The arguments as the model wrote them: JSON text, or an object."""
    function = call.get("function")
    return function.get("arguments") if isinstance(function, Mapping) else None


def _id(value: object) -> str:
    return value if isinstance(value, str) else ""


def has_text(message: Message) -> bool:
    """Whether a message says anything besides its reasoning and its calls."""
    return _says(without_reasoning(message))


def _says(message: Message) -> bool:
    content = message.get("content")
    if isinstance(content, list):
        return any(_part_says(part) for part in content)
    return bool(isinstance(content, str) and content.strip()) or bool(message.get("refusal") or message.get("audio"))


def _part_says(part: object) -> bool:
    text = part.get("text", part) if isinstance(part, Mapping) else part
    return bool(text.strip()) if isinstance(text, str) else bool(text)


def is_reasoning_part(part: object) -> bool:
    """Whether a part of a content list is reasoning."""
    return isinstance(part, Mapping) and part.get("type") in _PART_TYPES


def has_reasoning(message: Message) -> bool:
    """Whether a message carries any reasoning."""
    content = message.get("content")
    return any(message.get(name) for name in REASONING_FIELDS) or (
        isinstance(content, list) and any(is_reasoning_part(part) for part in content)
    )


def reasoning_texts(message: Message) -> list[str]:
    """The strings of a message's reasoning, for counting."""
    content = message.get("content")
    parts = [part for part in content if is_reasoning_part(part)] if isinstance(content, list) else []
    found: list[str] = []
    for value in (*(message.get(name) for name in REASONING_FIELDS), *parts):
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
    """The message without its reasoning. The very object where it has none."""
    if not has_reasoning(message):
        return message
    kept: dict[str, Any] = {name: value for name, value in message.items() if name not in REASONING_FIELDS}
    content = kept.get("content")
    if isinstance(content, list):
        kept["content"] = [part for part in content if not is_reasoning_part(part)]
    return kept
