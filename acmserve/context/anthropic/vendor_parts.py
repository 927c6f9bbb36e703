"""What only the vendor's own service runs, written down so that any model can read it: server tools and their blocks.

    assistant [server_tool_use web_search {"query": ..}, web_search_tool_result [..], text]
    assistant [text "[web_search called with {..}]",     text "[web_search_tool_result: ..]", text]

    tools [{"type": "memory_20250818", "name": "memory"}, {"type": "web_search_20250305", "name": "web_search"}]
    tools [{"name": "memory", "description": .., "input_schema": ..}]

A conversation that began at the vendor has such blocks, and goes on here. Tools that the *client* carries out (memory,
bash, the editor) get the schema that the vendor's models know by heart. Tools that the vendor's *servers* carry out
cannot be called here, so the model is not offered them.

Pure. It touches nothing that is spelled as vLLM takes it, and nothing that it does not know: vLLM refuses that by name.
A block of the vendor's that is nested deeper than a strict body may be is refused.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from acmserve.errors import InvalidRequest
from acmserve.validation import MAX_JSON_DEPTH, short_ascii

_COMMANDS = {"type": "string", "description": "What to do."}
_PATH = {"type": "string", "description": "The path of the file or folder."}
_TEXT = {"type": "string"}
_LINE = {"type": "integer"}
_FILE_TOOL = {
    "path": _PATH,
    "view_range": {"type": "array", "items": _LINE},
    "file_text": _TEXT,
    "old_str": _TEXT,
    "new_str": _TEXT,
    "insert_line": _LINE,
    "insert_text": _TEXT,
}


def _file_schema(commands: Sequence[str], **more: Any) -> dict[str, Any]:
    properties = {"command": {**_COMMANDS, "enum": list(commands)}, **_FILE_TOOL, **more}
    return {"type": "object", "properties": properties, "required": ["command"]}


CLIENT_TOOLS: Mapping[str, tuple[str, dict[str, Any]]] = {
    "memory": (
        "Read and write files below /memories, which outlast this conversation.",
        _file_schema(("view", "create", "str_replace", "insert", "delete", "rename"), old_path=_PATH, new_path=_PATH),
    ),
    "bash": (
        "Run a command in a shell that stays open between calls.",
        {"type": "object", "properties": {"command": _TEXT, "restart": {"type": "boolean"}}},
    ),
    "text_editor": (
        "View, create and edit files.",
        _file_schema(("view", "create", "str_replace", "insert", "undo_edit")),
    ),
    "computer": (
        "Use the screen, the mouse and the keyboard.",
        {"type": "object", "properties": {"action": _TEXT}, "required": ["action"], "additionalProperties": True},
    ),
}
SERVER_TOOLS = ("web_search", "web_fetch", "code_execution", "tool_search_tool", "mcp_toolset", "advisor")


def plain_blocks(messages: object) -> Any:
    """The messages without blocks of server tools. The very object where there is none. Raises InvalidRequest."""
    if not isinstance(messages, list) or not any(_is_vendors(block) for m in messages for block in _blocks(m)):
        return messages
    return [_plain_message(message) for message in messages]


def plain_tools(tools: object) -> tuple[Any, list[str]]:
    """The tools that a model can be offered, and the names of those that nobody carries out here."""
    if not isinstance(tools, list):
        return tools, []
    kept, left_out = [], []
    for tool in tools:
        kind = tool.get("type") if isinstance(tool, Mapping) else None
        if not isinstance(kind, str) or "input_schema" in tool:
            kept.append(tool)
        elif kind.startswith(SERVER_TOOLS):
            left_out.append(str(tool.get("name") or kind))
        else:
            family = next((name for name in CLIENT_TOOLS if kind.startswith(f"{name}_")), None)
            kept.append(tool if family is None else _described(tool, family))
    is_same = len(kept) == len(tools) and all(new is old for new, old in zip(kept, tools, strict=True))
    return tools if is_same else kept, left_out


def _described(tool: Mapping[str, Any], family: str) -> dict[str, Any]:
    description, schema = CLIENT_TOOLS[family]
    return {"name": tool.get("name") or family, "description": description, "input_schema": schema}


def _plain_message(message: Any) -> Any:
    if not any(_is_vendors(block) for block in _blocks(message)):
        return message
    return {**message, "content": [_plain(block) for block in message["content"]]}


def _is_vendors(block: object) -> bool:
    kind = block.get("type") if isinstance(block, Mapping) else None
    if not isinstance(kind, str) or kind in ("tool_use", "tool_result"):
        return False
    return kind.endswith(("_tool_use", "_tool_result")) or kind in ("search_result", "container_upload")


def _plain(block: Any) -> Any:
    """The block as a text, if it is the vendor's. What only the vendor can read in it is left out."""
    if not _is_vendors(block):
        return block
    kind = block["type"]
    _check_depth(block)
    if kind.endswith("_tool_use"):
        return _text(f"[{block.get('name')} called with {_json(block.get('input') or {})}]")
    if kind == "container_upload":
        return _text(f"[file {block.get('file_id')}]")
    shown = {name: value for name, value in block.items() if name not in ("type", "tool_use_id", "cache_control")}
    return _text(f"[{kind}: {_json(_readable(shown.get('content') if len(shown) == 1 else shown))}]")


def _check_depth(block: Mapping[str, Any]) -> None:
    """Raise InvalidRequest for a block that is nested too deeply to be walked. It goes level by level itself."""
    level: list[Any] = [block]
    for _ in range(MAX_JSON_DEPTH):
        items = [item for each in level for item in (each.values() if isinstance(each, Mapping) else each)]
        level = [item for item in items if isinstance(item, Mapping | list)]
        if not level:
            return
    raise InvalidRequest(
        "messages",
        f"holds a {short_ascii(block['type'])} that is nested deeper than {MAX_JSON_DEPTH} levels.",
        "Send the inner part as JSON text.",
    )


def _readable(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {name: _readable(item) for name, item in value.items() if not str(name).startswith("encrypted_")}
    return [_readable(item) for item in value] if isinstance(value, list) else value


def _json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)


def _text(text: str) -> dict[str, str]:
    return {"type": "text", "text": text}


def _blocks(message: object) -> list[Any]:
    content = message.get("content") if isinstance(message, Mapping) else None
    return content if isinstance(content, list) else []
