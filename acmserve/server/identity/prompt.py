"""What a request says, cut into units that can be recognised one by one: for every route, in one shape.

    system      leading system and developer messages, `system` of /v1/messages, `instructions` of /v1/responses
    tools       the set of their names
    units       each text, tool call and tool result of the messages, in order      u0 u1 u2 u3 ...
    chain       a hash over all units up to there                                   c0 c1 c2 c3 ...

A unit is what a client keeps as one text. So a string and a list with that text are the same. `cache_control`, ids of
calls, the spelling of their JSON and whitespace at the ends do not count, and a text that is added to a message leaves
its other texts as they were. Reasoning is no unit, because clients keep or drop it as they like.

Hashes are Python's own, with the key of the process. They live in memory only. The cost is one pass over the text.
Pure. It knows JSON bodies, neither sessions nor tenants.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from acmserve.server.identity.system_text import SystemText

_INSTRUCTING = ("system", "developer")
_TEXTS = ("text", "input_text", "output_text")
_SILENT = ("thinking", "redacted_thinking", "reasoning", "compaction")
_MAX_DEPTH = 4


@dataclass(frozen=True)
class PromptUnits:
    """`texts`, `answers` and `digests` go together: the texts of the units, whether the model wrote them, their hashes.

    `tools` is a hash of the names, 0 where there are none.
    """

    system: SystemText
    tools: int
    texts: tuple[str, ...]
    answers: tuple[bool, ...]
    digests: tuple[int, ...] = field(init=False)
    chain: tuple[int, ...] = field(init=False)

    def __post_init__(self) -> None:
        digests = tuple(map(hash, zip(self.texts, self.answers, strict=True)))
        chain, last = [], 0
        for digest in digests:
            last = hash((last, digest))
            chain.append(last)
        object.__setattr__(self, "digests", digests)
        object.__setattr__(self, "chain", tuple(chain))

    def __len__(self) -> int:
        """Units."""
        return len(self.texts)

    @cached_property
    def weights(self) -> dict[int, int]:
        """Characters of each unit, by hash."""
        return dict(zip(self.digests, map(len, self.texts), strict=True))

    @cached_property
    def num_chars(self) -> int:
        """Characters of all units."""
        return sum(map(len, self.texts))

    @property
    def begins(self) -> bool:
        """Whether it is the first turn of a conversation: the model has said nothing in it."""
        return not any(self.answers)


def read_prompt(body: object) -> PromptUnits | None:
    """The prompt of a request of /v1/chat/completions, /v1/messages or /v1/responses. None where there is none.

    Reads whatever is there. What is wrong with a message is for others to say.
    """
    if not isinstance(body, Mapping):
        return None
    given = body.get("messages") if body.get("messages") is not None else body.get("input")
    messages: Sequence[Any] = [{"role": "user", "content": given}] if isinstance(given, str) else given or ()
    if not isinstance(messages, list) or not messages:
        return None
    num_leading = next((n for n, message in enumerate(messages) if not _is_instruction(message)), len(messages))
    head = [text for name in ("instructions", "system") for _, text in _content(body.get(name), False)]
    head += [text for message in messages[:num_leading] for _, text in _units(message)]
    units = [unit for message in messages[num_leading:] for unit in _units(message)]
    return PromptUnits(
        SystemText.of("\n".join(head)),
        _tools(body.get("tools")),
        tuple(text for _, text in units),
        tuple(is_answer for is_answer, _ in units),
    )


def read_units(message: object) -> tuple[int, ...]:
    """The hashes of the units of one message, as they stand in a prompt that has it."""
    return tuple(hash((text, is_answer)) for is_answer, text in _units(message))


def _is_instruction(message: object) -> bool:
    return isinstance(message, Mapping) and message.get("role") in _INSTRUCTING


def _units(message: object) -> Iterator[tuple[bool, str]]:
    """(whether the model wrote it, text) of every unit of a message, or of an item of /v1/responses."""
    if not isinstance(message, Mapping):
        return
    kind = message.get("type")
    if kind in _SILENT:
        return
    is_answer = message.get("role") == "assistant" or (isinstance(kind, str) and kind.endswith("_call"))
    yield from _content(message.get("content"), is_answer)
    if "name" in message and "arguments" in message:
        yield is_answer, _call(message["name"], message["arguments"])
    if "output" in message:
        yield from _content(message["output"], False)
    calls = message.get("tool_calls")
    for call in calls if isinstance(calls, list) else ():
        function = call.get("function") if isinstance(call, Mapping) else None
        if isinstance(function, Mapping):
            yield True, _call(function.get("name"), function.get("arguments"))


def _content(content: object, is_answer: bool, depth: int = 0) -> Iterator[tuple[bool, str]]:
    """The units of a content: a string, or a list of parts."""
    if isinstance(content, str):
        text = content.strip()
        if text:
            yield is_answer, text
        return
    for part in content if isinstance(content, list) else ():
        if isinstance(part, str):
            yield from _content(part, is_answer)
        elif isinstance(part, Mapping):
            yield from _part(part, is_answer, depth)


def _part(part: Mapping[str, Any], is_answer: bool, depth: int) -> Iterator[tuple[bool, str]]:
    kind = part.get("type")
    if kind in _SILENT:
        return
    if kind in _TEXTS:
        yield from _content(part.get("text"), is_answer)
    elif kind == "tool_use":
        yield True, _call(part.get("name"), part.get("input"))
    elif kind == "tool_result" and depth < _MAX_DEPTH:
        yield from _content(part.get("content"), False, depth + 1)
    else:
        yield is_answer, _as_text({name: part[name] for name in part if name != "cache_control"})


def _call(name: object, arguments: object) -> str:
    """One text for a call, whether its arguments came as an object or as JSON in whatever spelling."""
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
        return json.dumps(value, sort_keys=True, ensure_ascii=False, separators=(",", ":"))
    except (TypeError, ValueError, RecursionError):
        return type(value).__name__


def _tools(tools: object) -> int:
    """A hash of the tools' names. A tool without a name counts by its type."""
    if not isinstance(tools, list) or not tools:
        return 0
    named = [tool.get("function") or tool for tool in tools if isinstance(tool, Mapping)]
    return (
        hash(frozenset(str(tool.get("name") or tool.get("type")) for tool in named if isinstance(tool, Mapping))) or 1
    )
