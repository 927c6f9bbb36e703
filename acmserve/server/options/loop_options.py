"""What a chat request says about the tool loop on the server: the loop's keys of its `acm` object.

    "acm": {"tools": ["sculptor", "branch"], "max_tool_calls": 20, "first_call_required": true, "preset": "unified",
            "branch": {"max_tokens": 16000, "max_branches": 10}, "commit": "cheapest"}

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
MAX_BOUND = 2**31
BRANCH_BOUNDS = {"max_tokens": "a quarter of the window", "max_branches": "any number"}
"""The bounds of branches, with what holds where they are left out."""


@dataclass(frozen=True, slots=True)
class LoopOptions:
    """`suites` are the tools that the model gets, `preset` the prompt that teaches them (None: the client's own).

    `max_tool_calls` bounds the context tool calls of one answer. The step after the last one has to answer.
    `branch_tokens` bounds one branch. None: a share of the context window. `commit` is when edits take effect.
    `max_branches` bounds how many the model opens in the whole session. None: any number.
    """

    suites: tuple[str, ...]
    max_tool_calls: int
    first_call_required: bool = False
    preset: str | None = None
    branch_tokens: int | None = None
    commit: str = "now"
    max_branches: int | None = None


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
    bounds = _branch_bounds(given["branch"], suites) if "branch" in given else {}
    return LoopOptions(
        suites=suites,
        max_tool_calls=_count(given.get("max_tool_calls", default_max_tool_calls)),
        first_call_required=check_boolean(given.get("first_call_required", False), "acm.first_call_required"),
        preset=None if preset is None else _preset(preset, suites),
        branch_tokens=bounds.get("max_tokens"),
        commit=_one_of(given.get("commit", "now"), "acm.commit", COMMITS),
        max_branches=bounds.get("max_branches"),
    )


def check_most_tool_calls(number: int) -> None:
    """Raise `InvalidRequest` for a default that no request may have. Each request without its own would be refused."""
    if not 1 <= number <= MAX_TOOL_CALLS:
        raise InvalidRequest(
            "--max-tool-calls", f"must be from 1 to {MAX_TOOL_CALLS}, not {number}.", "Give a number in that range."
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


def _branch_bounds(value: object, suites: Collection[str]) -> dict[str, int]:
    """The bounds that are given. The others have their defaults."""
    if BRANCHES not in suites:
        raise InvalidRequest("acm.branch", f"has no meaning without the tools '{BRANCHES}' in acm.tools.")
    given = check_object(value, "acm.branch", BRANCH_BOUNDS)
    return {key: _bound(given[key], key) for key in BRANCH_BOUNDS if given.get(key) is not None}


def _bound(value: object, key: str) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= MAX_BOUND:
        unit = key.removeprefix("max_")
        raise InvalidRequest(
            f"acm.branch.{key}",
            f"must be a number of {unit}, at least 1, not {echo(value)}.",
            f"Leave it out for {BRANCH_BOUNDS[key]}.",
        )
    return value


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
