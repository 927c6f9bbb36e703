"""Values of `context_management` that must be refused, each with the field that the refusal names."""

from __future__ import annotations

from typing import Any

TOOLS = "clear_tool_uses_20250919"
THINKING = "clear_thinking_20251015"
COMPACT = "compact_20260112"
FIRST = "context_management.edits[0]"


def _tools(**options: Any) -> dict[str, Any]:
    return {"edits": [{"type": TOOLS} | options]}


def _thinking(keep: Any) -> dict[str, Any]:
    return {"edits": [{"type": THINKING, "keep": keep}]}


def _compact(**options: Any) -> dict[str, Any]:
    return {"edits": [{"type": COMPACT} | options]}


BAD_VALUES: list[tuple[Any, str]] = [
    ("clear", "context_management"),
    ([], "context_management"),
    ({"edit": []}, "context_management.edit"),
    ({"edits": {"type": TOOLS}}, "context_management.edits"),
    ({"edits": ["clear"]}, FIRST),
    ({"edits": [{}]}, f"{FIRST}.type"),
    ({"edits": [{"type": 7}]}, f"{FIRST}.type"),
    ({"edits": [{"type": "clear_tool_uses_20240101"}]}, f"{FIRST}.type"),
    ({"edits": [{"type": "compact_20250101"}]}, f"{FIRST}.type"),
    ({"edits": [{"type": COMPACT}, {"type": COMPACT}]}, "context_management.edits"),
    ({"edits": [{"type": COMPACT}, {"type": THINKING}]}, "context_management.edits"),
    ({"edits": [{"type": TOOLS}, {"type": TOOLS}]}, "context_management.edits"),
    ({"edits": [{"type": TOOLS}, {"type": THINKING}]}, "context_management.edits"),
    (_tools(keeps=3), f"{FIRST}.keeps"),
    (_tools(trigger=100), f"{FIRST}.trigger"),
    (_tools(trigger={"type": "tokens", "value": 1}), f"{FIRST}.trigger.type"),
    (_tools(trigger={"type": "input_tokens"}), f"{FIRST}.trigger.value"),
    (_tools(trigger={"type": "input_tokens", "value": 0}), f"{FIRST}.trigger.value"),
    (_tools(trigger={"type": "input_tokens", "value": 10**20}), f"{FIRST}.trigger.value"),
    (_tools(trigger={"type": "input_tokens", "value": 1, "at": 2}), f"{FIRST}.trigger.at"),
    (_tools(keep=3), f"{FIRST}.keep"),
    (_tools(keep={"type": "input_tokens", "value": 3}), f"{FIRST}.keep.type"),
    (_tools(keep={"type": "tool_uses", "value": -1}), f"{FIRST}.keep.value"),
    (_tools(keep={"type": "tool_uses", "value": 2.5}), f"{FIRST}.keep.value"),
    (_tools(keep={"type": "tool_uses", "value": True}), f"{FIRST}.keep.value"),
    (_tools(keep={"type": "tool_uses", "value": "3"}), f"{FIRST}.keep.value"),
    (_tools(clear_at_least={"type": "tool_uses", "value": 3}), f"{FIRST}.clear_at_least.type"),
    (_tools(exclude_tools="read"), f"{FIRST}.exclude_tools"),
    (_tools(exclude_tools=[1]), f"{FIRST}.exclude_tools"),
    (_tools(clear_tool_inputs="yes"), f"{FIRST}.clear_tool_inputs"),
    (_tools(clear_tool_inputs=1), f"{FIRST}.clear_tool_inputs"),
    (_tools(clear_tool_inputs=[None]), f"{FIRST}.clear_tool_inputs"),
    (_thinking("none"), f"{FIRST}.keep"),
    (_thinking(2), f"{FIRST}.keep"),
    (_thinking({"type": "thinking_turns", "value": 0}), f"{FIRST}.keep.value"),
    (_thinking({"type": "tool_uses", "value": 1}), f"{FIRST}.keep.type"),
    (_compact(keep=3), f"{FIRST}.keep"),
    (_compact(trigger=50_000), f"{FIRST}.trigger"),
    (_compact(trigger={"type": "tool_uses", "value": 3}), f"{FIRST}.trigger.type"),
    (_compact(trigger={"type": "input_tokens", "value": 0}), f"{FIRST}.trigger.value"),
    (_compact(trigger={"type": "input_tokens", "value": "50k"}), f"{FIRST}.trigger.value"),
    (_compact(pause_after_compaction=1), f"{FIRST}.pause_after_compaction"),
    (_compact(pause_after_compaction="no"), f"{FIRST}.pause_after_compaction"),
    (_compact(instructions=["be short"]), f"{FIRST}.instructions"),
]
