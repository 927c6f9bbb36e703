"""Reads `context_management` of a request: the vendor's edits, with the vendor's names and defaults.

    {"edits": [{"type": "clear_thinking_20251015", "keep": {"type": "thinking_turns", "value": 1} | "all"},
               {"type": "clear_tool_uses_20250919",
                "trigger": {"type": "input_tokens" | "tool_uses", "value": 100000},
                "keep": {"type": "tool_uses", "value": 3}, "clear_at_least": {"type": "input_tokens", "value": n},
                "exclude_tools": [names], "clear_tool_inputs": true | [names]},
               {"type": "compact_20260112", "trigger": {"type": "input_tokens", "value": 150000},
                "pause_after_compaction": false, "instructions": "..."}]}

Strict: an unknown key or edit is refused by its path. An edit that is dropped in silence is a prompt that grows without
bound. JSON null means "not given". The vendor wants thinking cleared first, so another order is refused too. A summary
is written of what the clearing edits left, wherever it stands. The vendor's least trigger of a summary is 50,000
tokens. Here any is allowed, since many served models have smaller windows.

Pure: it knows JSON values, not HTTP.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from acmserve.context.eviction.clear_thinking import ClearThinking
from acmserve.context.eviction.clear_tool_uses import ClearToolUses
from acmserve.context.eviction.clearing_edits import (
    CLEAR_THINKING,
    CLEAR_TOOL_USES,
    COMPACT,
    Compact,
    VendorEdit,
)
from acmserve.errors import InvalidRequest
from acmserve.validation import check_object, echo

FIELD = "context_management"
MAX_VALUE = 2**31 - 1
_KEYS = {
    CLEAR_TOOL_USES: ("type", "trigger", "keep", "clear_at_least", "exclude_tools", "clear_tool_inputs"),
    CLEAR_THINKING: ("type", "keep"),
    COMPACT: ("type", "trigger", "pause_after_compaction", "instructions"),
}
_DEFAULTS = ClearToolUses()


def parse_context_management(body: Mapping[str, Any]) -> tuple[VendorEdit, ...] | None:
    """The edits of a request, in order. None when it has no `context_management`. Raises InvalidRequest."""
    asked = body.get(FIELD)
    if asked is None:
        return None
    edits = check_object(asked, FIELD, known=("edits",)).get("edits")
    if edits is None:
        return ()
    if not isinstance(edits, list):
        raise InvalidRequest(f"{FIELD}.edits", f"must be a list of edits, not {_named(edits)}.")
    parsed = tuple(_parse_edit(edit, f"{FIELD}.edits[{index}]") for index, edit in enumerate(edits))
    kinds = [type(edit) for edit in parsed]
    if len(set(kinds)) < len(kinds):
        raise InvalidRequest(f"{FIELD}.edits", "names an edit twice.", "Send each type of edit once.")
    if ClearThinking in kinds[1:]:
        raise InvalidRequest(
            f"{FIELD}.edits", f"{CLEAR_THINKING} must come first.", "Put it in front of the other edits."
        )
    return parsed


def _parse_edit(value: object, field: str) -> VendorEdit:
    if not isinstance(value, Mapping):
        raise InvalidRequest(field, f"must be an object with a `type`, not {_named(value)}.")
    kind = value.get("type")
    if not isinstance(kind, str) or kind not in _KEYS:
        raise InvalidRequest(
            f"{field}.type",
            f"unknown edit {_named(kind)}.",
            f"Choose {CLEAR_THINKING}, {CLEAR_TOOL_USES} or {COMPACT}.",
        )
    edit = check_object(value, field, _KEYS[kind])
    if kind == COMPACT:
        return _parse_compact(edit, field)
    return _parse_thinking(edit, field) if kind == CLEAR_THINKING else _parse_tool_uses(edit, field)


def _parse_compact(edit: Mapping[str, Any], field: str) -> Compact:
    trigger, pause, instructions = edit.get("trigger"), edit.get("pause_after_compaction"), edit.get("instructions")
    trigger_tokens = Compact().trigger_tokens
    if trigger is not None:
        trigger_tokens = _measure(trigger, f"{field}.trigger", ("input_tokens",), least=1)[1]
    if pause is not None and not isinstance(pause, bool):
        raise InvalidRequest(f"{field}.pause_after_compaction", f"must be true or false, not {_named(pause)}.")
    if instructions is not None and not isinstance(instructions, str):
        raise InvalidRequest(f"{field}.instructions", f"must be a text, not {_named(instructions)}.")
    return Compact(trigger_tokens, bool(pause), (instructions or "").strip())


def _parse_thinking(edit: Mapping[str, Any], field: str) -> ClearThinking:
    keep = edit.get("keep")
    if keep is None:
        return ClearThinking()
    if keep == "all" or (isinstance(keep, Mapping) and keep.get("type") == "all" and len(keep) == 1):
        return ClearThinking(None)
    if isinstance(keep, str):
        raise InvalidRequest(f"{field}.keep", f'must be "all" or a number of thinking_turns, not {_named(keep)}.')
    return ClearThinking(_measure(keep, f"{field}.keep", ("thinking_turns",), least=1)[1])


def _parse_tool_uses(edit: Mapping[str, Any], field: str) -> ClearToolUses:
    trigger_tokens, trigger_uses = _DEFAULTS.trigger_tokens, _DEFAULTS.trigger_uses
    keep, clear_at_least = _DEFAULTS.keep, _DEFAULTS.clear_at_least
    if edit.get("trigger") is not None:
        kind, value = _measure(edit["trigger"], f"{field}.trigger", ("input_tokens", "tool_uses"), least=1)
        trigger_tokens, trigger_uses = (value, None) if kind == "input_tokens" else (None, value)
    if edit.get("keep") is not None:
        keep = _measure(edit["keep"], f"{field}.keep", ("tool_uses",))[1]
    if edit.get("clear_at_least") is not None:
        clear_at_least = _measure(edit["clear_at_least"], f"{field}.clear_at_least", ("input_tokens",))[1]
    inputs: bool | frozenset[str] = False
    if isinstance(edit.get("clear_tool_inputs"), bool):
        inputs = edit["clear_tool_inputs"]
    elif edit.get("clear_tool_inputs") is not None:
        inputs = _names(edit["clear_tool_inputs"], f"{field}.clear_tool_inputs", "true, false or a list of tool names")
    excluded = edit.get("exclude_tools")
    names = frozenset[str]() if excluded is None else _names(excluded, f"{field}.exclude_tools", "a list of tool names")
    return ClearToolUses(trigger_tokens, trigger_uses, keep, clear_at_least, names, inputs)


def _measure(value: object, field: str, kinds: tuple[str, ...], least: int = 0) -> tuple[str, int]:
    """An object `{"type": one of kinds, "value": a whole number from least on}`."""
    measure = check_object(value, field, known=("type", "value"))
    kind, amount = measure.get("type"), measure.get("value")
    if not isinstance(kind, str) or kind not in kinds:
        raise InvalidRequest(f"{field}.type", f"must be {' or '.join(kinds)}, not {_named(kind)}.")
    if isinstance(amount, bool) or not isinstance(amount, int):
        raise InvalidRequest(f"{field}.value", f"must be a whole number, not {_named(amount)}.")
    if not least <= amount <= MAX_VALUE:
        raise InvalidRequest(f"{field}.value", f"must be from {least} to {MAX_VALUE}, not {_named(amount)}.")
    return kind, amount


def _names(value: object, field: str, expected: str) -> frozenset[str]:
    if not isinstance(value, list) or not all(isinstance(name, str) for name in value):
        raise InvalidRequest(field, f"must be {expected}, not {_named(value)}.")
    return frozenset(value)


def _named(value: object) -> str:
    return "nothing" if value is None else echo(value)
