"""One request as a client sends it, and what such requests have in common: our words, a tool, a call and its result."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

RULES = "You mend boats. Read before you write. " * 12
RESULT = "The mill stands by the river, and seven boats lie at its pier. " * 6
COMMAND = {"command": "cat boats.txt"}
ASKED, ASKED_AGAIN = "How many boats are there?", "And how many mills?"
Json = dict[str, Any]


@dataclass(frozen=True)
class Shape:
    """One request. `side` is false for those of the main conversation."""

    name: str
    path: str
    body: Json
    headers: Mapping[str, str] = field(default_factory=dict)
    side: bool = False


def function(name: str, **properties: str) -> Json:
    """A function whose properties are all required, as JSON types by name."""
    schema = {"type": "object", "properties": {key: {"type": kind} for key, kind in properties.items()}}
    return {"name": name, "description": "Run a command.", "parameters": schema | {"required": list(properties)}}


def called_by_chat(name: str, result: Any, **assistant: Any) -> list[Json]:
    """A call of a chat's assistant, with the other fields of its message, and the result."""
    call = {"id": "call-1", "type": "function", "function": {"name": name, "arguments": json.dumps(COMMAND)}}
    return [
        {"role": "assistant", **assistant, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "call-1", "content": result},
    ]
