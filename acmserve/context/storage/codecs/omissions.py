"""A `Omissions` as a JSON value and back, for the archive of sessions.

    {"gone": [[3, 9]], "entries": {"11": {"text": true, "calls": [0], "notes": ["[explored a: ...]"]}}}

Only what is set is written, and numbers are in order, so that equal omissions are equal bytes.
"""

from __future__ import annotations

from typing import Any

from acmserve.context.transcript.omissions import MessageOmissions, Omissions
from acmserve.validation import check_number

_FLAGS = ("reasoning", "text")
_CALLS = ("calls", "cleared", "inputs")


def omissions_value(omissions: Omissions) -> dict[str, Any]:
    """The omissions as a JSON object."""
    return {
        "gone": [list(span) for span in omissions.gone],
        "entries": {str(entry): _entry_value(omissions.entries[entry]) for entry in sorted(omissions.entries)},
    }


def omissions_from(value: Any) -> Omissions:
    """The omissions that `omissions_value` made a value of.

    Raises `TypeError` or `ValueError` for any other value, and `IntegrityError` for ranges that cannot be.
    """
    gone = tuple((_number(start), _number(end)) for start, end in _list(value["gone"]))
    omissions = Omissions(gone, {int(entry): _entry_from(kept) for entry, kept in _dict(value["entries"]).items()})
    omissions.check_integrity()
    return omissions


def _entry_value(kept: MessageOmissions) -> dict[str, Any]:
    fields: dict[str, Any] = {name: True for name in _FLAGS if getattr(kept, name)}
    fields |= {name: sorted(getattr(kept, name)) for name in _CALLS if getattr(kept, name)}
    fields |= {"notes": list(kept.notes)} if kept.notes else {}
    fields |= {"summary": kept.summary} if kept.summary else {}
    return fields | ({"summary_end": kept.summary_end} if kept.summary_end else {})


def _entry_from(value: Any) -> MessageOmissions:
    unknown = set(_dict(value)) - {*_FLAGS, *_CALLS, "notes", "summary", "summary_end"}
    if unknown or any(value.get(name, True) is not True for name in _FLAGS):
        raise ValueError(f"what is taken out of a message is {sorted(value)}")
    notes = _list(value.get("notes", []))
    if not all(isinstance(note, str) for note in (*notes, value.get("summary", ""))):
        raise TypeError("a note or a summary is no text")
    calls, cleared, inputs = (frozenset(_number(item) for item in _list(value.get(name, []))) for name in _CALLS)
    summary, end = value.get("summary", ""), _number(value.get("summary_end", 0))
    return MessageOmissions("reasoning" in value, "text" in value, calls, cleared, inputs, tuple(notes), summary, end)


def _number(value: Any) -> int:
    if type(value) is not int:
        raise TypeError(f"{type(value).__name__} where a number should be")
    check_number(value, "what is taken out")
    return value


def _list(value: Any) -> list[Any]:
    if not isinstance(value, list):
        raise TypeError(f"{type(value).__name__} where a list should be")
    return value


def _dict(value: Any) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise TypeError(f"{type(value).__name__} where an object should be")
    return value
