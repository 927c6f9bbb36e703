"""The tools that a client offers, found in the rendered prompt, and calls of them that do what an errand asks.

A client's tool is known by the names of its parameters and not by its own name. Every client has a shell, and each
calls it otherwise. Required parameters that mean nothing here get a value of their type. Pure.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

COMMAND_NAMES = ("command", "cmd", "script")
PATH_NAMES = ("path", "file_path", "filePath", "absolute_path", "filename")
Call = tuple[str, Mapping[str, Any]]


@dataclass(frozen=True)
class Offered:
    """One function of the prompt's `<tools>`."""

    name: str
    properties: Mapping[str, Any]
    required: Sequence[str]

    def call(self, **given: Any) -> Call:
        """A call with these arguments, and the other required ones filled in."""
        filled = {name: _any_value(self.properties.get(name, {})) for name in self.required}
        return self.name, filled | given


def offered_tools(system: str) -> list[Offered]:
    """The functions between `<tools>` and `</tools>`, one JSON object a line."""
    listed = system.partition("\n<tools>\n")[2].rpartition("\n</tools>")[0]
    return [tool for line in listed.splitlines() for tool in _functions(json.loads(line))]


def command_call(tools: Sequence[Offered], command: str) -> Call | None:
    """A call of a shell."""
    for tool in tools:
        name = next((name for name in COMMAND_NAMES if name in tool.properties), None)
        if name is not None and "session_id" not in tool.required:
            is_list = tool.properties[name].get("type") == "array"
            return tool.call(**{name: ["bash", "-lc", command] if is_list else command})
    return None


def reading_call(tools: Sequence[Offered], path: str) -> Call | None:
    """A call that reads a file: by a shell where there is one."""
    call = command_call(tools, f"cat {path}")
    if call is not None:
        return call
    for tool in tools:
        name = next((name for name in PATH_NAMES if name in tool.properties), None)
        if name is not None and "read" in tool.name.lower():
            return tool.call(**{name: path})
    return None


def helper_call(tools: Sequence[Offered], words: str) -> Call | None:
    """A call that starts a sub-agent."""
    for tool in tools:
        name = next((name for name in ("prompt", "message", "input") if name in tool.properties), None)
        if name is not None and tool.name.lower().endswith(("task", "agent")) and "wait" not in tool.name:
            kind = {"subagent_type": _kind(tool)} if "subagent_type" in tool.properties else {}
            return tool.call(**{name: words}, **kind)
    return None


def waiting_call(tools: Sequence[Offered], agent: str) -> Call | None:
    """A call that waits for a sub-agent, where starting one does not."""
    tool = next((tool for tool in tools if tool.name.endswith("wait_agent")), None)
    return None if tool is None else tool.call(targets=[agent])


def _kind(tool: Offered) -> str:
    kinds = tool.properties["subagent_type"].get("enum")
    return str(kinds[0]) if kinds else {"task": "general", "Task": "general-purpose"}.get(tool.name, "general-purpose")


def _functions(tool: Mapping[str, Any]) -> Iterator[Offered]:
    for inner in tool.get("tools") or ():
        yield from _functions(inner)
    function = tool.get("function", tool)
    parameters = function.get("parameters") or {}
    if isinstance(function.get("name"), str) and not tool.get("tools"):
        yield Offered(function["name"], parameters.get("properties") or {}, parameters.get("required") or ())


def _any_value(schema: Mapping[str, Any]) -> Any:
    if "enum" in schema:
        return schema["enum"][0]
    return {"boolean": False, "integer": 1, "number": 1, "array": [], "object": {}}.get(
        str(schema.get("type")), "Read a file"
    )
