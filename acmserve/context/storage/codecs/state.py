"""A session's state as one JSON object, and read back from it: what a file holds is checked field by field.

    rows (`rows.py`) --state_value--> {"version": 4, "entries": [...], ...} --state_from--> state, equal to the byte

It knows no file. `where` names one for errors.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from acmserve.context.eviction.budget_json import parse_budget
from acmserve.context.eviction.registry import known
from acmserve.context.session.fragment import Fragment, Piece, Visibility
from acmserve.context.session.precompute_options import parse_precompute
from acmserve.context.session.rollout.lines import record_from, rollout_rows, row_value
from acmserve.context.session.state import Author, SearchHit, SessionState, TranscriptEntry
from acmserve.context.storage.codecs.branch import relations_from
from acmserve.context.storage.codecs.omissions import omissions_from
from acmserve.context.storage.codecs.redacted_text import redacted_from
from acmserve.context.storage.codecs.rows import (
    entry_value,
    fragment_rows,
    fragment_value,
    hit_value,
    limit_values,
)
from acmserve.context.transcript.call_arguments import ArgumentPart
from acmserve.context.transcript.message import Place
from acmserve.context.transcript.observations import parse_observations
from acmserve.errors import AcmError, IntegrityError
from acmserve.validation import check_number

VERSION = 4
FIRST_VERSION = 1
REMEDY = "Restore it from a backup, or move it away to start without the sessions in it."

_MAX_KEY_BYTES = 64
# Keys as files of acmserve 0.1 spell them.
_RENAMED = {"shed": "omissions", "ahead": "precompute"}


def state_value(state: SessionState) -> dict[str, Any]:
    """The whole state as a JSON object."""
    return {
        "version": VERSION,
        "entries": [entry_value(entry) for entry in state.entries],
        "fragments": [fragment_value(fragment) for fragment in fragment_rows(state)],
        "limits": limit_values(state),
        "rollout": [row_value(row) for row in rollout_rows(state.rollout)],
        "hits": [hit_value(hit) for hit in state.hits],
        "num_ids": state.num_ids,
        "num_turns": state.num_turns,
        "digest_key": state.digest_key.hex(),
    }


def state_from(value: Any, where: str) -> SessionState:
    """The state that `state_value` made a value of, now or in an older version. `where` says where it comes from.

    Raises `AcmError` naming `where` when the value is of another version, or damaged.
    """
    try:
        version = _field(value, "version", int)
        if not FIRST_VERSION <= version <= VERSION:
            raise AcmError(f"{where} has version {version}, this acmserve reads version {VERSION}. {REMEDY}")
        return read_state(value)
    except (ValueError, TypeError, KeyError, IntegrityError) as error:
        raise damaged(where, error) from None


def read_state(value: Any) -> SessionState:
    """The state of a value whose version is one that is read.

    Raises `ValueError`, `TypeError`, `KeyError` or `IntegrityError` for a damaged one, and `AcmError` for a policy that
    is not loaded.
    """
    key = bytes.fromhex(_field(value, "digest_key", str))
    if not 0 < len(key) <= _MAX_KEY_BYTES:
        raise ValueError(f"digest_key has {len(key)} bytes")
    fragments = [_is(item, "fragment", dict) for item in _field(value, "fragments", list)]
    limits = _limits(_field(value, "limits", list) if _field(value, "version", int) > FIRST_VERSION else [])
    state = SessionState(
        entries=tuple(_entry(item) for item in _field(value, "entries", list)),
        fragments=tuple(_fragment(item) for item in fragments if "redacted" not in item),
        redacted=tuple(redacted_from(item["redacted"]) for item in fragments if "redacted" in item),
        hits=_hits(_field(value, "hits", list)),
        num_ids=_count(value, "num_ids"),
        num_turns=_count(value, "num_turns"),
        digest_key=key,
        rollout=record_from(_is(value.get("rollout", []), "rollout", list)),
        **limits,
    )
    state.check_integrity()
    return state


def _check_loaded(policy: object) -> None:
    """Raise `AcmError` for a policy of another package that this server was not started with."""
    if isinstance(policy, str) and ":" in policy and policy not in known():
        remedy = f"Start the server with --eviction-policy {policy}."
        raise AcmError(f"A stored session has a budget of the policy {policy!a}, which is not loaded. {remedy}")


def _limits(rows: Sequence[Any]) -> dict[str, Any]:
    """The fields of a state that `limit_values` wrote."""
    if not rows:
        return {}
    [row] = ({_RENAMED.get(key, key): value for key, value in row.items()} for row in rows)
    budget = _field(row, "budget", dict, type(None))
    if budget is not None:
        _check_loaded(budget.get("policy"))
        budget = parse_budget(budget, _is(budget.get("max_tokens"), "max_tokens", int))
    return {
        "omissions": omissions_from(_field(row, "omissions", dict)),
        "budget": budget,
        **relations_from(row),
        "precompute": None if "precompute" not in row else parse_precompute(_is(row["precompute"], "precompute", dict)),
        "observation_rule": parse_observations(row["observations"], "observations") if "observations" in row else None,
    }


def damaged(where: str, error: Exception) -> AcmError:
    """The error of a value that cannot be read, with the remedy."""
    return AcmError(f"{where} is damaged: {error}. {REMEDY}")


def _entry(value: Any) -> TranscriptEntry:
    return TranscriptEntry(
        message=_field(value, "message", dict),
        origin=Author(_field(value, "origin", str)),
        digest=bytes.fromhex(_field(value, "digest", str)),
        turn=_field(value, "turn", int),
        sealed=_field(value, "sealed", bool),
        is_observation=_is(value.get("observation", False), "observation", bool),
    )


def _fragment(value: Any) -> Fragment:
    shown = _field(value, "shown", list, type(None))
    return Fragment(
        fragment_id=_field(value, "id", str),
        role=_field(value, "role", str),
        pieces=tuple(_piece(item) for item in _field(value, "pieces", list)),
        num_tokens=_field(value, "num_tokens", int),
        visibility=Visibility(_field(value, "visibility", str)),
        shown=None if shown is None else tuple(_is(text, "shown", str) for text in shown),
        focus=_field(value, "focus", str, type(None)),
        summaries=tuple(_summary(item) for item in _field(value, "summaries", list)),
        waits=_is(value.get("waits", False), "waits", bool),
        more=_is(value.get("more", ""), "more", str),
    )


def _summary(value: Any) -> tuple[str, str]:
    focus, text = _is(value, "summary", list)
    return _is(focus, "focus", str), _is(text, "summary", str)


def _piece(value: Any) -> Piece:
    entry, part, start, end = _is(value, "piece", list)
    return Piece(_place(entry, part), _is(start, "start", int), _is(end, "end", int))


def _hits(values: Sequence[Any]) -> tuple[SearchHit, ...]:
    """The search results. Equal steps of their paths are one text, however long and however many."""
    steps: dict[Any, Any] = {}
    return tuple(_hit(value, steps) for value in values)


def _hit(value: Any, steps: dict[Any, Any]) -> SearchHit:
    search_id, entry, part, start, end = _is(value, "hit", list)
    if type(part) is list:
        part = [steps.setdefault(step, step) if type(step) is str else step for step in part]
    place = _place(entry, part)
    return SearchHit(_is(search_id, "id", str), place, _is(start, "start", int), _is(end, "end", int))


def _place(entry: Any, part: Any) -> Place:
    if type(part) is list and part:
        path = tuple(_is(step, "step", str, int) for step in part[1:])
        return Place(_is(entry, "entry", int), ArgumentPart(_is(part[0], "call", int), path))
    return Place(_is(entry, "entry", int), _is(part, "part", int, type(None)))


def _field(value: Any, name: str, *kinds: type) -> Any:
    if name not in _is(value, f"what has {name!r}", dict):
        raise ValueError(f"{name!r} is missing")
    return _is(value[name], name, *kinds)


def _count(value: Any, name: str) -> int:
    number: int = _field(value, name, int)
    if number < 0:
        raise ValueError(f"{name} is {number}")
    return number


def _is(value: Any, name: str, *kinds: type) -> Any:
    """`value`, when it is of one of these very types (True is no number)."""
    if type(value) not in kinds:
        raise TypeError(f"{name} is {type(value).__name__}, not {' or '.join(kind.__name__ for kind in kinds)}")
    check_number(value, name)
    return value
