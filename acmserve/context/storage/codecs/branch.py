"""Branches of a session, and the session that it is a branch of, as JSON values and back, for the archive."""

from __future__ import annotations

from dataclasses import asdict, fields
from typing import Any

from acmserve.context.session.branch import Branch
from acmserve.context.session.parent import Parent


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


_COUNTS = ("call_entry", "result_entry", "start", "num_calls", "num_tokens", "num_entries", "num_messages")


def _checked(kind: type[Branch] | type[Parent], value: Any, types: dict[str, type]) -> dict[str, Any]:
    """The fields of an object, each of its type. Text where `types` names none. Only `end` may be null."""
    names = {field.name for field in fields(kind)}
    if not isinstance(value, dict) or value.keys() != names:
        raise ValueError(f"a {kind.__name__.lower()} has {sorted(value) if isinstance(value, dict) else value!a}")
    for name, item in value.items():
        if type(item) is not types.get(name, str) and not (name == "end" and item is None):
            raise TypeError(f"{name} of a {kind.__name__.lower()} is {type(item).__name__}")
    return value
