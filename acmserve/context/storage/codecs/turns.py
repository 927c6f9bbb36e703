"""The turns of a session as rows, and back.

    row 0       totals, notes for the next turn, what the vendor's edits have cleared
    row 1 + i % MAX_TURNS       turn i, or null where it was dropped for its bytes

Decision: a ring. A turn writes two rows, and the oldest one is overwritten, so that nothing moves. It knows no file.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import fields
from typing import Any

from acmserve.context.session.turns.history import MAX_TURNS, NO_TURNS, TurnHistory, turn_size
from acmserve.context.session.turns.totals import TurnTotals
from acmserve.context.session.turns.turn import (
    EvictionKind,
    SessionTurn,
    TurnEdit,
    TurnEnd,
    TurnEviction,
    TurnOrigin,
    TurnPurpose,
)
from acmserve.validation import check_number

TURNS_VERSION = 1
_NONE = type(None)
_HEAD = {"version": (int,), "totals": (dict,), "edits": (list,), "evictions": (list,), "cleared": (dict,)}
_EDIT = {"kind": (str,), "fragment_ids": (list,), "tokens_saved": (int,), "by": (str,)}
_EVICTION = {"kind": (str,), "name": (str,), "tokens": (int,), "levels": (dict,)}
_ADDED_TOTALS = {"background_tokens": 0, "loaded_tokens": 0}
_ADDED: Mapping[str, Any] = {"branch": None}
"""What rows of an earlier time lack."""
_TURN = {
    "index": (int,),
    "created_at": (float,),
    "route": (str,),
    "step": (int, _NONE),
    "purpose": (str,),
    "branch": (str, _NONE),
    "request_id": (str,),
    "end": (str,),
    "receipt": (dict, _NONE),
    "edits": (list,),
    "evictions": (list,),
    "prompt_tokens": (int,),
    "output_tokens": (int,),
    "budget_tokens": (int, _NONE),
    "ttft_s": (float, _NONE),
    "total_s": (float,),
}


def turn_rows(old: TurnHistory, new: TurnHistory) -> dict[int, Any]:
    """The rows to write, by position, so that those of `old` become those of `new`."""
    if new == NO_TURNS:
        return {}
    known, first = old.next_index, new.next_index - len(new.turns)
    rows: dict[int, Any] = {_position(turn.index): None for turn in old.turns if turn.index < first}
    rows |= {_position(index): None for index in range(max(known, new.next_index - MAX_TURNS), first)}
    rows |= {_position(turn.index): turn.as_dict() for turn in new.turns if turn.index >= known}
    return {0: _head(new), **rows}


def num_turn_rows(history: TurnHistory) -> int:
    """Rows of a history."""
    return 0 if history == NO_TURNS else 1 + min(history.next_index, MAX_TURNS)


def turns_from(values: Sequence[Any]) -> TurnHistory:
    """The history of rows. Raises `ValueError`, `TypeError`, `KeyError` or `IntegrityError` for damaged ones."""
    if not values:
        return NO_TURNS
    head = _typed(values[0], _HEAD)
    if head["version"] != TURNS_VERSION:
        raise ValueError(f"its turns have version {head['version']}")
    turns = tuple(sorted((_turn(value) for value in values[1:] if value is not None), key=lambda turn: turn.index))
    history = TurnHistory(
        TurnTotals(**_typed(_ADDED_TOTALS | head["totals"], {total.name: (int,) for total in fields(TurnTotals)})),
        turns,
        _edits(head["edits"]),
        _evictions(head["evictions"]),
        _counts(head["cleared"]),
        tuple(map(turn_size, turns)),
    )
    history.check_integrity()
    return history


def _position(index: int) -> int:
    return 1 + index % MAX_TURNS


def _head(history: TurnHistory) -> dict[str, Any]:
    return {
        "version": TURNS_VERSION,
        "totals": history.totals.as_dict(),
        "edits": [edit.as_dict() for edit in history.edits],
        "evictions": [eviction.as_dict() for eviction in history.evictions],
        "cleared": dict(history.cleared),
    }


def _turn(value: Mapping[str, Any]) -> SessionTurn:
    given = _typed({**_ADDED, **value}, _TURN)
    return SessionTurn(
        created_at=given["created_at"],
        origin=TurnOrigin(given["route"], given["step"], TurnPurpose(given["purpose"]), given["branch"]),
        request_id=given["request_id"],
        receipt=given["receipt"],
        prompt_tokens=given["prompt_tokens"],
        output_tokens=given["output_tokens"],
        budget_tokens=given["budget_tokens"],
        first_token_seconds=given["ttft_s"],
        seconds=given["total_s"],
        end=TurnEnd(given["end"]),
        index=given["index"],
        edits=_edits(given["edits"]),
        evictions=_evictions(given["evictions"]),
    )


def _edits(values: Sequence[Mapping[str, Any]]) -> tuple[TurnEdit, ...]:
    given = [_typed(value, _EDIT) for value in values]
    return tuple(TurnEdit(one["kind"], _ids(one["fragment_ids"]), one["tokens_saved"], one["by"]) for one in given)


def _ids(values: Sequence[Any]) -> tuple[str, ...]:
    if not all(type(value) is str for value in values):
        raise TypeError("an id of a fragment is no text")
    return tuple(values)


def _evictions(values: Sequence[Mapping[str, Any]]) -> tuple[TurnEviction, ...]:
    given = [_typed(value, _EVICTION) for value in values]
    return tuple(
        TurnEviction(EvictionKind(one["kind"]), one["name"], one["tokens"], _counts(one["levels"])) for one in given
    )


def _counts(value: Mapping[str, Any]) -> dict[str, int]:
    return _typed(value, dict.fromkeys(value, (int,)))


def _typed(value: Mapping[str, Any], kinds: Mapping[str, tuple[type, ...]]) -> dict[str, Any]:
    """These fields of an object, each of one of its very types (True is no number)."""
    for name, allowed in kinds.items():
        if type(value[name]) not in allowed:
            raise TypeError(f"{name} of a turn is {type(value[name]).__name__}")
        check_number(value[name], f"{name} of a turn")
    return {name: value[name] for name in kinds}
