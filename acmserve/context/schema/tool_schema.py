"""One function as an entry of the `tools` array of a chat request. It knows no tool."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

Schema = dict[str, Any]


def tool_schema(name: str, description: str, properties: Mapping[str, Schema], required: Sequence[str]) -> Schema:
    """A function that takes these properties and no others."""
    return {
        "type": "function",
        "function": {
            "name": name,
            "description": description,
            "parameters": {
                "type": "object",
                "properties": dict(properties),
                "required": list(required),
                "additionalProperties": False,
            },
        },
    }


def text(description: str) -> Schema:
    """A property that is a string."""
    return {"type": "string", "description": description}


def integer(default: int, minimum: int, maximum: int, description: str) -> Schema:
    """A property that is an integer within bounds."""
    return {
        "type": "integer",
        "default": default,
        "minimum": minimum,
        "maximum": maximum,
        "description": description,
    }


def choice(values: Sequence[str], default: str, description: str) -> Schema:
    """A property that is one of a few words."""
    return {"type": "string", "enum": list(values), "default": default, "description": description}
