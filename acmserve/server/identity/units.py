"""Cuts messages into units, each what a client keeps as one text, and hashes them.

    {"role": "assistant", "content": "Look. ", "tool_calls": [read({"at": 3})]}     u0 "Look."   u1 read({"at":3})
    {"role": "tool", "content": [{"type": "text", "text": "seven"}]}                u2 "seven"

A string and a list with that text are the same. `cache_control`, ids of calls, the spelling of their JSON and
whitespace at the ends do not count. A text that is added to a message leaves its other texts as they were. Reasoning is
no unit, because clients keep or drop it as they like.

Decision: writing the arguments of calls in one spelling was the dearest part, and a client resends each call as it was.
So a call that came lately is known by the hash of its spelling, and only new calls are parsed. What is kept for that
are hashes and lengths, no text, and each tenant knows its own calls alone. In `texts` a call has the spelling of its
client.

Hashes are Python's own, with the key of the process, and live in memory only. It reads whatever is there. What is wrong
with a message is for others to say.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from acmserve.server.http.tenants import TENANT

MAX_LATELY_CALLED = 16_384
"""Calls that are known by their spelling."""
_TEXTS = ("text", "input_text", "output_text")
_SILENT = ("thinking", "redacted_thinking", "reasoning", "compaction")
_MAX_DEPTH = 4
_write_json = json.JSONEncoder(sort_keys=True, ensure_ascii=False, separators=(",", ":")).encode
_lately_called: dict[int, tuple[int, int]] = {}


@dataclass(slots=True)
class UnitReader:
    """Collects units: text, whether the model wrote it, hash, and characters of each.

    `num_spelled` counts the calls that were not known by their spelling.
    """

    units: list[tuple[str, bool, int, int]] = field(default_factory=list)
    num_spelled: int = 0

    def read(self, message: object) -> None:
        """Take in a message, or an item of /v1/responses."""
        if type(message) is not dict and not isinstance(message, Mapping):
            return
        kind = message.get("type")
        if kind is not None and kind in _SILENT:
            return
        is_answer = message.get("role") == "assistant" or (isinstance(kind, str) and kind.endswith("_call"))
        content = message.get("content")
        if content is not None:
            self.read_content(content, is_answer)
        if "arguments" in message and "name" in message:
            self._call(message["name"], message["arguments"], is_answer)
        if "output" in message:
            self.read_content(message["output"], False)
        calls = message.get("tool_calls")
        for call in calls if isinstance(calls, list) else ():
            function = call.get("function") if type(call) is dict or isinstance(call, Mapping) else None
            if type(function) is dict or isinstance(function, Mapping):
                self._call(function.get("name"), function.get("arguments"), True)

    def read_content(self, content: object, is_answer: bool, depth: int = 0) -> None:
        """Take in a content: a string, or a list of parts."""
        if isinstance(content, str):
            text = content.strip()
            if text:
                self.units.append((text, is_answer, hash((text, is_answer)), len(text)))
            return
        for part in content if isinstance(content, list) else ():
            if isinstance(part, str):
                self.read_content(part, is_answer)
            elif isinstance(part, Mapping):
                self._part(part, is_answer, depth)

    def _part(self, part: Mapping[str, Any], is_answer: bool, depth: int) -> None:
        kind = part.get("type")
        if kind in _SILENT:
            return
        if kind in _TEXTS:
            self.read_content(part.get("text"), is_answer)
        elif kind == "tool_use":
            self._call(part.get("name"), part.get("input"), True)
        elif kind == "tool_result" and depth < _MAX_DEPTH:
            self.read_content(part.get("content"), False, depth + 1)
        else:
            text = _as_text({name: part[name] for name in part if name != "cache_control"})
            self.units.append((text, is_answer, hash((text, is_answer)), len(text)))

    def _call(self, name: object, arguments: object, is_answer: bool) -> None:
        """One unit for a call, whether its arguments came as an object or as JSON in whatever spelling."""
        is_text = isinstance(arguments, str)
        written = f"{name}({str(arguments).strip() if is_text else _as_python(arguments)})"
        spelling = hash((TENANT.get(), written, is_text, is_answer))
        known = _lately_called.get(spelling)
        if known is None:
            self.num_spelled += 1
            text = _in_one_spelling(name, arguments)
            known = _lately_called[spelling] = hash((text, is_answer)), len(text)
            if len(_lately_called) > MAX_LATELY_CALLED:
                del _lately_called[next(iter(_lately_called))]
        self.units.append((written, is_answer, *known))


def _in_one_spelling(name: object, arguments: object) -> str:
    if isinstance(arguments, str):
        arguments = _parsed(arguments.strip())
    return f"{name}({arguments if isinstance(arguments, str) else _as_text(arguments)})"


def _parsed(text: str) -> object:
    if not text.startswith("{"):
        return text
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return text


def _as_text(value: object) -> str:
    try:
        return _write_json(value)
    except (TypeError, ValueError, RecursionError):
        return type(value).__name__


def _as_python(value: object) -> str:
    """Another spelling of the same, which is fast to write and is compared with itself only."""
    try:
        return repr(value)
    except RecursionError:
        return type(value).__name__
