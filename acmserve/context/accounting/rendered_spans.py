"""What the served template makes of each message: which of its parts it shows, and what it writes around them.

    messages    user "Fix it."    assistant reasoning "Hm." text "Look."    user "And now?"
    marked      user  M0          assistant reasoning  M1   text  M2        user  M3
    written     <|user|>M0<|end|><|assistant|>M2<|end|><|user|>M3<|end|><|assistant|>
    sizes       header + M0       footer + header + M2, reasoning 0         footer + header + M3

Every text is exchanged for a short mark, and the template writes the marked conversation. A mark that is missing is a
part that the template drops (most drop the reasoning of earlier turns). What stands between two marks belongs to the
message of the second. A mark that comes out escaped belongs to a text that the template prints as JSON. The real texts
are counted alone, so a conversation costs one short rendering. A mark holds a nonce that is drawn for each rendering.
So no text of a client can pass for one, and no number depends on it. What stands in front of the first mark and behind
the last (tools, generation prompt) belongs to no message.

Decision: a template is a program, so it is asked and not read. Tags that templates look for in a text stay in it.
The sum is off by a token or two at each seam: `ContextMeter.take_rendered` takes the whole prompt's count.
"""

from __future__ import annotations

import json
import re
import secrets
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any, Protocol

from acmserve.context.transcript.message import Message
from acmserve.context.transcript.parts import REASONING_FIELDS, Role, is_reasoning_part, role_of, tool_calls
from acmserve.context.transcript.token_counts import Count, EntrySize

_TAG = re.compile(r"(</?(?:think|thinking|tool_response|tool_call)>)")


class PromptRenderer(Protocol):
    """Writes the prompt of one request, whatever its messages: its tools and its template are those of the request."""

    def written(self, messages: Sequence[Message]) -> str | None:
        """The prompt as text, without media. None where the template does not take these messages."""

    def num_tokens(self, messages: Sequence[Message]) -> int | None:
        """Tokens of the prompt, without media. None where the template does not take these messages."""


class _Kind(Enum):
    TEXT = "text"
    REASONING = "reasoning"
    CALL = "call"


@dataclass(frozen=True, slots=True)
class _Mark:
    """What a mark stands for: a text of an entry. `call` is the number of its tool call."""

    entry: int
    kind: _Kind
    text: str
    call: int = 0


class _Marked:
    """Messages with a mark in the place of each text."""

    def __init__(self, messages: Sequence[Message]) -> None:
        self.marks: list[_Mark] = []
        self._begin = f"acm7q{secrets.token_hex(8)}q"
        self.pattern = re.compile(self._begin + r'(\d{1,7})q(\\*")?')
        self.messages = [self._message(entry, message) for entry, message in enumerate(messages)]

    def _message(self, entry: int, message: Message) -> Message:
        copy = dict(message)
        content = message.get("content")
        if isinstance(content, str):
            copy["content"] = self._text(entry, content)
        elif isinstance(content, list):
            copy["content"] = [self._part(entry, part) for part in content]
        for name in REASONING_FIELDS:
            if message.get(name):
                copy[name] = self._strings(message[name], lambda text: self._put(entry, _Kind.REASONING, text))
        calls = tool_calls(message) if role_of(message) is Role.ASSISTANT else ()
        if calls:
            copy["tool_calls"] = [self._call(entry, index, call) for index, call in enumerate(calls)]
        return copy

    def _part(self, entry: int, part: object) -> object:
        if is_reasoning_part(part):
            return self._strings(part, lambda text: self._put(entry, _Kind.REASONING, text))
        if isinstance(part, str):
            return self._text(entry, part)
        if isinstance(part, Mapping) and isinstance(part.get("text"), str):
            return {**part, "text": self._text(entry, part["text"])}
        return part

    def _text(self, entry: int, text: str) -> str:
        return "".join(
            piece if number % 2 else self._put(entry, _Kind.TEXT, piece)
            for number, piece in enumerate(_TAG.split(text))
        )

    def _call(self, entry: int, index: int, call: Mapping[str, Any]) -> Mapping[str, Any]:
        function = call.get("function")
        if not isinstance(function, Mapping):
            return call
        name = self._put(entry, _Kind.CALL, str(function.get("name", "")), index, quoted=False)
        return {**call, "function": {**function, "name": name, "arguments": self._arguments(entry, index, function)}}

    def _arguments(self, entry: int, index: int, function: Mapping[str, Any]) -> object:
        arguments = function.get("arguments")

        def put(text: str) -> str:
            return self._put(entry, _Kind.CALL, text, index)

        if not isinstance(arguments, str):
            return self._strings(arguments, put)
        try:
            read = json.loads(arguments)
        except (ValueError, RecursionError):
            return put(arguments)
        return json.dumps(self._strings(read, put), ensure_ascii=False)

    def _put(self, entry: int, kind: _Kind, text: str, call: int = 0, *, quoted: bool = True) -> str:
        if not text.strip():
            return text
        self.marks.append(_Mark(entry, kind, text, call))
        return f"{self._begin}{len(self.marks) - 1}q" + ('"' if quoted else "")

    def _strings(self, value: object, put: Callable[[str], str]) -> Any:
        """A JSON value with its strings exchanged. Types and signatures stay."""
        if isinstance(value, str):
            return put(value)
        if isinstance(value, list):
            return [self._strings(item, put) for item in value]
        if isinstance(value, Mapping):
            kept = {"type", "signature"}
            return {name: item if name in kept else self._strings(item, put) for name, item in value.items()}
        return value


def read_sizes(messages: Sequence[Message], renderer: PromptRenderer, count: Count) -> list[EntrySize] | None:
    """Tokens of each message by part, as the template shows it. None where it does not take the messages."""
    marked = _Marked(messages)
    written = renderer.written(marked.messages)
    if written is None:
        return None
    overheads = [0] * len(messages)
    parts = {kind: [0] * len(messages) for kind in (_Kind.TEXT, _Kind.REASONING)}
    calls = [[0] * len(tool_calls(m)) if role_of(m) is Role.ASSISTANT else [] for m in messages]
    glue: dict[str, int] = {}
    counted: dict[tuple[int, bool], int] = {}
    end = 0
    for found in marked.pattern.finditer(written):
        number, is_escaped = int(found.group(1)), (found.group(2) or "").startswith("\\")
        if number >= len(marked.marks):
            continue
        mark, between = marked.marks[number], written[end : found.start()]
        if end and between not in glue:
            glue[between] = count(between)
        num_between = glue[between] if end else 0
        end = found.end()
        if (number, is_escaped) not in counted:
            counted[number, is_escaped] = count(_as_json(mark.text) if is_escaped else mark.text)
        num_tokens = counted[number, is_escaped]
        if mark.kind is _Kind.CALL:
            calls[mark.entry][mark.call] += num_between + num_tokens
        else:
            overheads[mark.entry] += num_between
            parts[mark.kind][mark.entry] += num_tokens
    shown = zip(overheads, parts[_Kind.TEXT], parts[_Kind.REASONING], calls, strict=True)
    return [EntrySize(overhead, text, reasoning, tuple(own)) for overhead, text, reasoning, own in shown]


def _as_json(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)[1:-1]
