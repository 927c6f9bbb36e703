"""The texts in the arguments of a message's tool calls: string values of a JSON object, each by its path.

    arguments   {"path": "a.py", "edits": [{"new": "import os\\n..."}]}     JSON text, or an object
    part        call 0, path ("edits", 0, "new")                            the value as it reads, without escapes
    changed     {"path": "a.py", "edits": [{"new": "[folded ...]"}]}        no other character differs

A path stays where a client spells the JSON anew, or puts the keys in another order. So texts are in the order of their
paths. Arguments are one text with an empty path where they are no JSON object, or name a key twice. Nothing can be
exchanged in those, since no path would say where. A string with half of a surrogate pair is no text.

It knows neither messages as a whole nor what is hidden.
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

MIN_ARGUMENT_CHARS = 64
"""What is shorter is no text to fold or to search: its marker would be longer."""

_STRING_OR_SIGN = re.compile(r'"[^"\\]*(?:\\.[^"\\]*)*"|[{}\[\],]', re.DOTALL)
_ESCAPE = re.compile(r"\\(u[0-9a-fA-F]{4}|.)", re.DOTALL)
_CONTROLS = {"b": "\b", "f": "\f", "n": "\n", "r": "\r", "t": "\t"}
_MAX_NAMED = 60

Path = tuple[str | int, ...]


@dataclass(frozen=True, slots=True, order=True)
class ArgumentPart:
    """A string value in the arguments of call `call`. An empty path is the text of arguments that are no object."""

    call: int
    path: Path = ()


@dataclass(frozen=True, slots=True)
class _Literal:
    """A string value with its quotes: characters `[start, end)` of a JSON text."""

    path: Path
    start: int
    end: int
    text: str


def argument_texts(message: Mapping[str, Any], min_chars: int = 1) -> list[tuple[ArgumentPart, str]]:
    """The texts of at least `min_chars` characters in the arguments of all calls, in the order of their parts."""
    calls = message.get("tool_calls")
    if not isinstance(calls, list | tuple):
        return []
    found = [
        (ArgumentPart(number, path), text)
        for number, call in enumerate(calls)
        for path, text in _values(_arguments(call), min_chars)
        if len(text) >= min_chars and _is_text(text)
    ]
    return sorted(found)


def argument_at(message: Mapping[str, Any], part: ArgumentPart) -> str:
    """The text of a part. "" where there is none."""
    return arguments_of(message, part.call).get(part.path, "")


def arguments_of(message: Mapping[str, Any], number: int) -> dict[Path, str]:
    """The texts in the arguments of one call, by their paths. None where there is no such call."""
    calls = message.get("tool_calls")
    if not isinstance(calls, list | tuple) or not 0 <= number < len(calls):
        return {}
    return dict(_values(_arguments(calls[number]), 1))


def with_arguments(message: Mapping[str, Any], changed: Mapping[ArgumentPart, str]) -> list[Any]:
    """The tool calls of a message with some of its arguments' texts exchanged. Everything else is spelled as it was."""
    by_call: dict[int, dict[Path, str]] = {}
    for part, text in changed.items():
        by_call.setdefault(part.call, {})[part.path] = text
    calls = list(message["tool_calls"])
    for number, texts in by_call.items():
        function = calls[number]["function"]
        arguments = function["arguments"]
        if isinstance(arguments, str):
            new: object = _respelled(arguments, texts)
        else:
            new = _exchanged(arguments, (), texts, _around(texts))
        calls[number] = {**calls[number], "function": {**function, "arguments": new}}
    return calls


def without_arguments(message: Mapping[str, Any], numbers: Collection[int]) -> list[Any]:
    """The tool calls of a message, these with empty arguments."""
    calls = list(message["tool_calls"])
    for number in numbers:
        function = calls[number]["function"]
        empty: object = {} if isinstance(function["arguments"], Mapping) else "{}"
        calls[number] = {**calls[number], "function": {**function, "arguments": empty}}
    return calls


def unescaped(raw: str) -> str:
    """What a JSON text says, whether it is one or not: its escapes are read, its signs stay."""
    read = _ESCAPE.sub(_character, raw)
    return read.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")


def _character(escape: re.Match[str]) -> str:
    sign = escape[1]
    return chr(int(sign[1:], 16)) if len(sign) > 1 else _CONTROLS.get(sign, sign)


def part_name(message: Mapping[str, Any], part: ArgumentPart) -> str:
    """Where a text stands, in words: `argument content of write_file`."""
    name = _short(call_name_at(message, part.call)) or "a tool"
    if not part.path:
        return f"arguments of {name}"
    return f"argument {_short('.'.join(map(str, part.path)))} of {name}"


def as_json(text: str) -> str:
    """A text as it stands between the quotes of a JSON string."""
    return json.dumps(text, ensure_ascii=False)[1:-1]


def written_text(text: str, part: object) -> str:
    """A text as a template writes it: that of a part of arguments as JSON."""
    return as_json(text) if isinstance(part, ArgumentPart) else text


def call_name_at(message: Mapping[str, Any], number: int) -> str:
    """The name of a tool that is called. "" where the call has none."""
    call = message["tool_calls"][number]
    function = call.get("function") if isinstance(call, Mapping) else None
    return str(function.get("name") or "") if isinstance(function, Mapping) else ""


def _short(text: str) -> str:
    printable = "".join(sign if sign.isprintable() else " " for sign in text)
    return printable if len(printable) <= _MAX_NAMED else printable[: _MAX_NAMED - 3] + "..."


def _arguments(call: object) -> object:
    function = call.get("function") if isinstance(call, Mapping) else None
    return function.get("arguments") if isinstance(function, Mapping) else None


def _values(arguments: object, min_chars: int) -> Iterator[tuple[Path, str]]:
    if isinstance(arguments, Mapping):
        yield from _strings(arguments)
    elif isinstance(arguments, str) and len(arguments) >= min_chars:
        literals = _literals(arguments)
        if literals is None:
            yield (), arguments
        else:
            yield from ((literal.path, literal.text) for literal in literals)


def _strings(arguments: Mapping[Any, Any]) -> Iterator[tuple[Path, str]]:
    """The strings in an object."""
    waiting: list[tuple[Path, object]] = [((), arguments)]
    while waiting:
        path, value = waiting.pop()
        if isinstance(value, str):
            yield path, value
        elif isinstance(value, Mapping):
            waiting += [((*path, key), item) for key, item in value.items() if isinstance(key, str)]
        elif isinstance(value, list | tuple):
            waiting += [((*path, number), item) for number, item in enumerate(value)]


def _literals(raw: str) -> list[_Literal] | None:
    """The string values of a JSON object. None where the text is none, or names a key twice."""
    try:
        value = json.loads(raw, object_pairs_hook=_each_once, parse_constant=_refuse)
    except (ValueError, RecursionError):
        return None
    if not isinstance(value, dict):
        return None
    found: list[_Literal] = []
    path: list[str | int | None] = []
    for token in _STRING_OR_SIGN.finditer(raw):
        sign = token[0]
        if sign in ("{", "["):
            path.append(None if sign == "{" else 0)
        elif sign in ("}", "]"):
            path.pop()
        elif sign == ",":
            last = path[-1]
            path[-1] = last + 1 if isinstance(last, int) else None
        elif path[-1] is None:
            path[-1] = json.loads(sign)
        else:
            known = tuple(step for step in path if step is not None)
            found.append(_Literal(known, token.start(), token.end(), json.loads(sign)))
    return found


def _respelled(raw: str, texts: Mapping[Path, str]) -> str:
    """A JSON text with some of its string values exchanged."""
    literals = _literals(raw) or []
    parts, position = [], 0
    for literal in literals:
        if literal.path in texts:
            parts += [raw[position : literal.start], json.dumps(texts[literal.path], ensure_ascii=False)]
            position = literal.end
    return "".join([*parts, raw[position:]])


def _around(paths: Collection[Path]) -> set[Path]:
    """The paths of the objects and lists in which something of these paths stands."""
    found: set[Path] = set()
    for path in paths:
        while path and (path := path[:-1]) not in found:
            found.add(path)
    return found


def _exchanged(value: Any, path: Path, texts: Mapping[Path, str], around: Collection[Path]) -> Any:
    """An object with some of its strings exchanged. What is not `around` one of them is the very object."""
    if path in texts:
        return texts[path]
    if path not in around:
        return value
    if isinstance(value, Mapping):
        return {key: _exchanged(item, (*path, key), texts, around) for key, item in value.items()}
    return [_exchanged(item, (*path, number), texts, around) for number, item in enumerate(value)]


def _each_once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        raise ValueError("a key comes twice")
    return found


def _refuse(constant: str) -> Any:
    raise ValueError(f"{constant} is no JSON")


def _is_text(text: str) -> bool:
    """Whether a string can be written as UTF-8."""
    return text.isascii() or not any("\ud800" <= sign <= "\udfff" for sign in text)
