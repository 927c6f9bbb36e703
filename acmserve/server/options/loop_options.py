"""What a chat request says about the tool loop on the server: the loop's keys of its `acm` object.

    "acm": {"tools": ["sculptor", "branch"], "max_tool_calls": 20, "first_call_required": true, "preset": "unified",
            "branch": {"max_tokens": 16000}, "commit": "cheapest"}

Pure: JSON values in, a frozen object out. It does not know who runs the loop. Without `tools` there is no loop, and the
other keys are refused, for their values would be dropped in silence. JSON null means "not given".
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

from acmserve.context.tools.suites import BRANCHES, PRESETS, SUITES, check_suites, find_preset, plain_presets
from acmserve.errors import InvalidRequest
from acmserve.validation import check_boolean, check_object, echo, listing

LOOP_KEYS = ("tools", "max_tool_calls", "first_call_required", "preset", "branch", "commit")
MAX_TOOL_CALLS = 100
COMMITS = ("now", "cheapest")
MAX_BRANCH_TOKENS = 2**31


@dataclass(frozen=True, slots=True)
class LoopOptions:
    """`suites` are the tools that the model gets, `preset` the prompt that teaches them (None: the client's own).

    `max_tool_calls` bounds the context tool calls of one answer. The step after the last one has to answer.
    `branch_tokens` bounds one branch. None: a share of the context window. `commit` is when edits take effect.
    """

    suites: tuple[str, ...]
    max_tool_calls: int
    first_call_required: bool = False
    preset: str | None = None
    branch_tokens: int | None = None
    commit: str = "now"


def parse_loop_options(acm: Mapping[str, Any], default_max_tool_calls: int) -> LoopOptions | None:
    """Read the loop's keys. Other keys of `acm` are not looked at. None without `tools`.

    Raises InvalidRequest. Its field is a dotted path, `acm.max_tool_calls`.
    """
    given = {key: acm[key] for key in LOOP_KEYS if acm.get(key) is not None}
    if not given:
        return None
    if "tools" not in given:
        raise InvalidRequest(
            f"acm.{next(iter(given))}", "has no meaning without acm.tools.", f"Send acm.tools: {listing(SUITES)}."
        )
    preset, suites = given.get("preset"), _suites(given["tools"])
    return LoopOptions(
        suites=suites,
        max_tool_calls=_count(given.get("max_tool_calls", default_max_tool_calls)),
        first_call_required=check_boolean(given.get("first_call_required", False), "acm.first_call_required"),
        preset=None if preset is None else _preset(preset, suites),
        branch_tokens=_branch_tokens(given["branch"], suites) if "branch" in given else None,
        commit=_one_of(given.get("commit", "now"), "acm.commit", COMMITS),
    )


def check_outside_loop(commit: str | None, field: str = "commit") -> None:
    """Raise `InvalidRequest` where edits outside of a loop are to wait: the next prompt is their cheapest moment."""
    if commit == "cheapest":
        raise InvalidRequest(
            field,
            "cannot be 'cheapest' here: an edit of this route takes effect with the session's next chat request.",
            "Leave it out: all that is edited between two requests is computed once. Edits wait in a loop on the "
            "server, by acm.tools and acm.commit of the chat request.",
        )


def _branch_tokens(value: object, suites: Collection[str]) -> int | None:
    if BRANCHES not in suites:
        raise InvalidRequest("acm.branch", f"has no meaning without the tools '{BRANCHES}' in acm.tools.")
    tokens = check_object(value, "acm.branch", ("max_tokens",)).get("max_tokens")
    is_count = isinstance(tokens, int) and not isinstance(tokens, bool) and 1 <= tokens <= MAX_BRANCH_TOKENS
    if tokens is not None and not is_count:
        raise InvalidRequest("acm.branch.max_tokens", f"must be a number of tokens, at least 1, not {echo(tokens)}")
    return tokens


def _suites(value: object) -> tuple[str, ...]:
    """One name, or a list of names."""
    names = value if isinstance(value, list) else [value]
    return check_suites([_one_of(name, "acm.tools", SUITES) for name in names], "acm.tools")


def _preset(value: object, suites: Collection[str]) -> str:
    """A prompt of the suites that are asked for, or of another one."""
    return find_preset(suites, value if value in tuple(PRESETS) else _one_of(value, "acm.preset", plain_presets()))


def _one_of(value: object, field: str, known: Collection[str]) -> str:
    if not isinstance(value, str) or value not in known:
        raise InvalidRequest(field, f"does not know {echo(value)}.", f"Choose {listing(known)}.")
    return value


def _count(value: object) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= MAX_TOOL_CALLS:
        raise InvalidRequest("acm.max_tool_calls", f"must be an integer from 1 to {MAX_TOOL_CALLS}, not {echo(value)}")
    return value
