"""The token budget of a session: how large its conversation may be, where an eviction stops, and what it takes.

    {"max_tokens": "50%", "low_watermark": "auto", "policy": "cwl"}

    max_tokens ----------------------------   above this, evict down to the low watermark in one batch,
    low_watermark  --------------------       then grow for many turns while the prefix stays cached

Read from JSON that a person wrote: every wrong value is refused by its name, with what it may be. Tokens are written
as 80000, "80000", "80k" or "50%" (of the model's context window); a watermark also as a fraction of `max_tokens` (0.6,
"60%"). It does not evict: see `eviction.py`, `policies.py` and `compaction.py`; `watermark.py` finds "auto".
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from acmserve.context.schema.arguments import echo
from acmserve.errors import InvalidRequest

BULK_TOOLS = frozenset({"grep", "glob", "find", "ls", "search", "list_files", "list_directory", "rg"})
INTERMEDIATE_TOOLS = frozenset({"read", "bash", "read_file", "cat", "view", "shell"})
POLICIES = ("cwl", "pi-cwl", "clear_tool_uses", "recency", "compact")
DEFAULT_MAX_TOKENS = 80_000
AUTO = "auto"
_OPTIONS: Mapping[str, tuple[str, ...]] = {
    "bulk_tools": ("cwl", "pi-cwl"),
    "intermediate_tools": ("cwl", "pi-cwl"),
    "keep": ("clear_tool_uses",),
    "exclude_tools": ("clear_tool_uses",),
    "clear_tool_inputs": ("clear_tool_uses",),
    "instructions": ("compact",),
}
_KNOWN = ("max_tokens", "low_watermark", "policy", *_OPTIONS)
_TOKENS = re.compile(r"(?:(\d{1,12})|(\d{1,9}(?:\.\d{1,3})?)\s*k)", re.IGNORECASE)
_PERCENT = re.compile(r"(\d{1,3}(?:\.\d{1,6})?)\s*%")
_TOKENS_REMEDY = 'Give tokens, such as 80000 or "80k", or a share of the context window, such as "50%".'
_WATERMARK_REMEDY = 'Give "auto", tokens such as 60000 or "60k", or a share of max_tokens such as 0.6 or "60%".'


@dataclass(frozen=True, slots=True)
class Budget:
    """`low_watermark` is in tokens, None for `auto`. The rest are options of the policies."""

    max_tokens: int
    low_watermark: int | None = None
    policy: str = "cwl"
    bulk_tools: frozenset[str] = BULK_TOOLS
    intermediate_tools: frozenset[str] = INTERMEDIATE_TOOLS
    keep: int = 3
    exclude_tools: frozenset[str] = frozenset()
    clear_tool_inputs: bool = False
    instructions: str = ""

    def as_dict(self) -> dict[str, Any]:
        """The budget as JSON, in tokens; `parse_budget` reads it back equal."""
        fields: dict[str, Any] = {
            "max_tokens": self.max_tokens,
            "low_watermark": AUTO if self.low_watermark is None else self.low_watermark,
            "policy": self.policy,
        }
        for name, policies in _OPTIONS.items():
            if self.policy in policies:
                value = getattr(self, name)
                fields[name] = sorted(value) if isinstance(value, frozenset) else value
        return fields


def parse_budget(value: object, window: int, field: str = "budget") -> Budget:
    """The budget that `value` writes: an object, or just its `max_tokens`. `window` is the model's context in tokens.

    Raises `InvalidRequest` whose field is the path of the bad value, `budget.low_watermark`.
    """
    given = value if isinstance(value, Mapping) else {"max_tokens": value}
    for name in given:
        if name not in _KNOWN:
            raise InvalidRequest(f"{field}.{_name(name)}", "is not known.", f"Known: {', '.join(_KNOWN)}.")
    policy = given.get("policy", "cwl")
    if policy not in POLICIES:
        raise InvalidRequest(f"{field}.policy", f"{echo(policy)} is not known.", f"Choose {', '.join(POLICIES)}.")
    for name, policies in _OPTIONS.items():
        if name in given and policy not in policies:
            raise InvalidRequest(
                f"{field}.{name}", f"is no option of policy {policy}.", f"It goes with {' or '.join(policies)}."
            )
    asked = given.get("max_tokens", min(DEFAULT_MAX_TOKENS, window))
    max_tokens = _read_max(asked, window, f"{field}.max_tokens")
    watermark = _read_watermark(given.get("low_watermark", AUTO), max_tokens, f"{field}.low_watermark")
    return Budget(max_tokens, watermark, policy, **_read_options(given, field))


def _name(name: object) -> str:
    return echo(name).strip("'")


def _read_max(value: object, window: int, field: str) -> int:
    share = _percent(value)
    tokens = _tokens(value) if share is None else int(window * share)
    if tokens is None or tokens < 1:
        raise InvalidRequest(field, f"{echo(value)} is no number of tokens.", _TOKENS_REMEDY)
    if tokens > window:
        raise InvalidRequest(
            field, f"{tokens:,} is more than the model's context window of {window:,} tokens.", _TOKENS_REMEDY
        )
    return tokens


def _read_watermark(value: object, max_tokens: int, field: str) -> int | None:
    if value == AUTO:
        return None
    share = _percent(value)
    if isinstance(value, float) and 0 < value <= 1:
        share = value
    tokens = _tokens(value) if share is None else int(max_tokens * share)
    if tokens is None or tokens < 1:
        raise InvalidRequest(field, f"{echo(value)} is no watermark.", _WATERMARK_REMEDY)
    if tokens > max_tokens:
        raise InvalidRequest(field, f"{tokens:,} is above max_tokens, {max_tokens:,}.", _WATERMARK_REMEDY)
    return tokens


def _tokens(value: object) -> int | None:
    """A number of tokens, as an integer or as a string that writes one; None for anything else."""
    if isinstance(value, bool):
        return None
    if isinstance(value, int):
        return value
    if isinstance(value, float):
        return int(value) if math.isfinite(value) and value.is_integer() else None
    match = _TOKENS.fullmatch(value.strip().replace("_", "").replace(",", "")) if isinstance(value, str) else None
    if match is None:
        return None
    return int(match[1]) if match[1] is not None else round(float(match[2]) * 1000)


def _percent(value: object) -> float | None:
    """The share that "50%" writes, above 0 and up to 1; None for anything else."""
    match = _PERCENT.fullmatch(value.strip()) if isinstance(value, str) else None
    share = float(match[1]) / 100 if match is not None else 0.0
    return share if 0 < share <= 1 else None


def _read_options(given: Mapping[str, Any], field: str) -> dict[str, Any]:
    """The options of a policy that were given."""
    options: dict[str, Any] = {}
    for name in ("bulk_tools", "intermediate_tools", "exclude_tools"):
        if name in given:
            options[name] = _tool_names(given[name], f"{field}.{name}")
    if "keep" in given:
        keep = given["keep"]
        if isinstance(keep, bool) or not isinstance(keep, int) or keep < 0:
            raise InvalidRequest(f"{field}.keep", f"{echo(keep)} is no count.", "Give how many tool results to keep.")
        options["keep"] = keep
    for name, kind, remedy in (
        ("clear_tool_inputs", bool, "Give true or false."),
        ("instructions", str, "Give what the summary is to keep, as a text."),
    ):
        if name in given:
            if not isinstance(given[name], kind):
                raise InvalidRequest(f"{field}.{name}", f"{echo(given[name])} is not allowed.", remedy)
            options[name] = given[name]
    both = options.get("bulk_tools", frozenset()) & options.get("intermediate_tools", frozenset())
    if both:
        raise InvalidRequest(
            f"{field}.bulk_tools",
            f"{', '.join(sorted(both))} is named as an intermediate tool too.",
            "Name a tool in one of the two lists.",
        )
    return options


def _tool_names(value: object, field: str) -> frozenset[str]:
    if not isinstance(value, list | tuple) or not all(isinstance(name, str) and name for name in value):
        raise InvalidRequest(field, f"{echo(value)} is no list of tool names.", 'Give for instance ["grep", "glob"].')
    return frozenset(value)
