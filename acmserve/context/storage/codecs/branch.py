"""Branches of a session, the session that it is a branch of and its thread, as JSON values and back."""

from __future__ import annotations

from dataclasses import asdict, fields
from typing import Any

from acmserve.context.session.branches.branch import Branch
from acmserve.context.session.branches.parent import Parent
from acmserve.context.session.branches.thread import Thread
from acmserve.context.session.state import SessionState
from acmserve.validation import check_number


def branch_value(branch: Branch) -> dict[str, Any]:
    """A branch as a JSON object."""
    return asdict(branch)


def branch_from(value: Any) -> Branch:
    """The branch that `branch_value` made a value of. Raises `TypeError` or `ValueError` for any other value."""
    return Branch(**_checked(Branch, value, {"failed": bool, "end": int, **dict.fromkeys(_COUNTS, int)}))


def parent_value(parent: Parent) -> dict[str, Any]:
    """What a session knows of its parent as a JSON object."""
    return asdict(parent)


def parent_from(value: Any) -> Parent:
    """The parent that `parent_value` made a value of. Raises `TypeError` or `ValueError` for any other value."""
    return Parent(**_checked(Parent, value, dict.fromkeys(_COUNTS, int)))


def thread_value(thread: Thread) -> dict[str, Any]:
    """A session's place in its family as a JSON object."""
    return asdict(thread)


def thread_from(value: Any) -> Thread:
    """The thread that `thread_value` made a value of. Raises `TypeError` or `ValueError` for any other value."""
    return Thread(**_checked(Thread, value, {"is_fork": bool}))


def relations_value(state: SessionState) -> dict[str, Any]:
    """The branches, the parent and the thread of a state, without what there is none of."""
    value: dict[str, Any] = {}
    if state.branches:
        value["branches"] = [branch_value(branch) for branch in state.branches]
    if state.parent is not None:
        value["parent"] = parent_value(state.parent)
    if state.thread is not None:
        value["thread"] = thread_value(state.thread)
    return value


def relations_from(row: dict[str, Any]) -> dict[str, Any]:
    """The fields of a state that `relations_value` wrote. Raises `TypeError` or `ValueError` for any other value."""
    branches = row.get("branches", [])
    if not isinstance(branches, list):
        raise TypeError(f"branches is {type(branches).__name__}, not list")
    return {
        "branches": tuple(branch_from(item) for item in branches),
        "parent": None if "parent" not in row else parent_from(row["parent"]),
        "thread": None if "thread" not in row else thread_from(row["thread"]),
    }


_COUNTS = ("call_entry", "result_entry", "start", "num_calls", "num_tokens", "num_entries", "num_messages")


def _checked(kind: type[Branch] | type[Parent] | type[Thread], value: Any, types: dict[str, type]) -> dict[str, Any]:
    """The fields of an object, each of its type. Text where `types` names none. Only `end` may be null."""
    names = {field.name for field in fields(kind)}
    if not isinstance(value, dict) or value.keys() != names:
        raise ValueError(f"a {kind.__name__.lower()} has {sorted(value) if isinstance(value, dict) else value!a}")
    for name, item in value.items():
        if type(item) is not types.get(name, str) and not (name == "end" and item is None):
            raise TypeError(f"{name} of a {kind.__name__.lower()} is {type(item).__name__}")
        check_number(item, f"{name} of a {kind.__name__.lower()}")
    return value
