"""A tool suite as a deployment would write it, for a model that knows other names and words."""

from __future__ import annotations

from typing import Any


def parameter(name: str, **schema: Any) -> dict[str, Any]:
    return {name: {"type": "string", "description": name, **schema}}


def tool(operation: str, name: str, properties: dict[str, Any], **more: Any) -> dict[str, Any]:
    parameters = {"type": "object", "properties": properties, "required": list(properties)}
    return {"operation": operation, "name": name, "description": f"To {name}.", "parameters": parameters, **more}


OWN_SUITE: dict[str, Any] = {
    "version": 1,
    "name": "mine",
    "summary": "four tools",
    "tools": [
        tool("fragment", "cut", {**parameter("start_marker"), **parameter("end_marker")}),
        tool("fold", "hide", parameter("piece"), arguments={"fragment_id": "piece"}),
        tool("restore", "show", parameter("fragment_id")),
        tool("search", "grep", parameter("query")),
    ],
    "markers": {"folded": "<{id} {tokens}>", "summarized": "<{id}> {summary}", "continued": "<{id}>"},
    "results": {"fold": "Hidden: {ids}. {{{result}}}"},
    "prompts": {"mine": "Cut and hide."},
}
