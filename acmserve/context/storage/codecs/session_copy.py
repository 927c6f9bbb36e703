"""A session as it travels to another server: one JSON object, and read back from it.

    Session, sampled outputs --copy_value--> {"session_id": ..., "state": "{...}", ...} --copy_from--> SessionCopy

Decision: state and turns are JSON inside of a text, as the file would hold them. Messages may be nested deeper, or hold
characters, than a strict body can. What another version wrote is refused by its number, and nothing is guessed.

A copy may be made up, so what grows later, and what a store does not count, has bounds that no session reaches.

It knows no tenant: a copy becomes the session of whoever brings it in. It knows no file.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from acmserve.context.session.state import MAX_SEARCH_HITS, SessionState
from acmserve.context.session.turns.history import NO_TURNS, TurnHistory
from acmserve.context.storage.codecs.rows import limit_values, pack, sizes_of
from acmserve.context.storage.codecs.state import FIRST_VERSION, VERSION, read_state, state_value
from acmserve.context.storage.codecs.turns import num_turn_rows, turn_rows, turns_from
from acmserve.context.transcript.call_arguments import ArgumentPart
from acmserve.errors import AcmError, Conflict, IntegrityError, InvalidRequest
from acmserve.validation import echo_json

MAX_COUNT = 2**53
"""Of every number in a copy that is a count. It is far from what a column of a file holds, and grows from here."""
MAX_UNCOUNTED_BYTES = 2**20
"""Of what a store does not count: what is taken out, branches, search results. So much more than what it counts."""
_HIT_BYTES = 32
_AGAIN = "Export the session again."
_FREE = ("message", "arguments", "budget")  # clients write their own numbers there
_UNREADABLE = (ValueError, TypeError, LookupError, AttributeError, ArithmeticError, RecursionError, IntegrityError)

SampledOutput = tuple[str, Sequence[int]]
"""An answer's text, and the tokens that were sampled for it."""


@dataclass(frozen=True, slots=True)
class SessionCopy:
    """`outputs` are the answers whose tokens a tokenizer would choose differently. The next prompt needs them."""

    session_id: str
    suite: str
    created_at: float
    state: SessionState
    turns: TurnHistory
    outputs: tuple[SampledOutput, ...] = ()

    @property
    def num_bytes(self) -> int:
        """What it will count for in a store."""
        return sizes_of(self.state, self.turns).num_bytes


def copy_value(copy: SessionCopy) -> dict[str, Any]:
    """A copy as a JSON object of texts and numbers."""
    rows = turn_rows(NO_TURNS, copy.turns)
    return {
        "session_id": copy.session_id,
        "suite": copy.suite,
        "created_at": copy.created_at,
        "state": json.dumps(state_value(copy.state)),
        "turns": json.dumps([rows.get(position) for position in range(num_turn_rows(copy.turns))]),
        "outputs": [{"text": text, "token_ids": list(token_ids)} for text, token_ids in copy.outputs],
    }


def copy_from(value: Mapping[str, Any], where: str) -> SessionCopy:
    """The copy that `copy_value` made a value of. Its fields have the right types, their contents are checked here.

    Raises `InvalidRequest` naming the field below `where`, and `Conflict` where this server lacks what it needs.
    """
    state = _parsed(value["state"], f"{where}.state")
    version = state.get("version") if isinstance(state, dict) else None
    if type(version) is not int or not FIRST_VERSION <= version <= VERSION:
        raise InvalidRequest(
            f"{where}.state",
            f"has version {str(version)[:20]!a}, this acmserve reads {FIRST_VERSION} to {VERSION}.",
            "Import it into a server of the acmserve that exported it, or of a later one.",
        )
    try:
        read = read_state(state)
    except _UNREADABLE as error:
        raise _damaged(f"{where}.state", error) from None
    except AcmError as error:
        raise Conflict(f"{where}.state", str(error)) from None
    rows = _parsed(value["turns"], f"{where}.turns")
    if not isinstance(rows, list):
        raise _damaged(f"{where}.turns", TypeError(f"{type(rows).__name__} is no list"))
    try:
        turns = turns_from(rows)
    except _UNREADABLE as error:
        raise _damaged(f"{where}.turns", error) from None
    _check_counts(state, f"{where}.state")
    _check_counts(rows, f"{where}.turns")
    outputs = tuple((output["text"], tuple(output["token_ids"])) for output in value["outputs"])
    copy = SessionCopy(value["session_id"], value["suite"], value["created_at"], read, turns, outputs)
    _check_bounds(copy, f"{where}.state")
    return copy


def _check_counts(value: object, where: str) -> None:
    """Raise `InvalidRequest` for an integer that is no count. What clients wrote is not looked at."""
    waiting: list[tuple[str, Any]] = [("", value)]
    while waiting:
        name, found = waiting.pop()
        named = found.items() if isinstance(found, dict) else ((name, item) for item in found)
        for key, item in named:
            if isinstance(item, dict | list):
                waiting += [(key, item)] if key not in _FREE else []
            elif type(item) is int and abs(item) > MAX_COUNT:
                raise _too_large(where, f"{str(key)[:40]!a} {echo_json(item)}", MAX_COUNT)


def _check_bounds(copy: SessionCopy, where: str) -> None:
    """Raise `InvalidRequest` where a copy brings more than a session has of what nobody counts."""
    state = copy.state
    if state.budget is not None and state.budget.max_tokens > MAX_COUNT:
        raise _too_large(where, f"'max_tokens' {state.budget.max_tokens}", MAX_COUNT)
    if len(state.hits) > MAX_SEARCH_HITS:
        raise _too_large(where, f"{len(state.hits):,} hits", MAX_SEARCH_HITS)
    num_bytes, most = _num_uncounted_bytes(state), MAX_UNCOUNTED_BYTES + copy.num_bytes
    if num_bytes > most:
        raise _too_large(where, f"{num_bytes:,} bytes of omissions, branches and hits", most)


def _too_large(where: str, what: str, most: int) -> InvalidRequest:
    return InvalidRequest(where, f"has {what}, the most is {most:,}.", _AGAIN)


def _num_uncounted_bytes(state: SessionState) -> int:
    """Bytes that no row counts. Hits share the steps of their paths, which stand in the messages once, too.

    A budget is left out, since its own route takes any.
    """
    limits = [{name: part for name, part in row.items() if name != "budget"} for row in limit_values(state)]
    parts = (hit.place.part for hit in state.hits)
    steps = {step for part in parts if isinstance(part, ArgumentPart) for step in part.path if isinstance(step, str)}
    ids = sum(_HIT_BYTES + len(hit.search_id) for hit in state.hits)
    return sum(len(pack(row)) for row in limits) + ids + sum(len(pack(step)) for step in steps)


def _parsed(text: str, where: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise _damaged(where, error) from None


def _damaged(where: str, error: Exception) -> InvalidRequest:
    if isinstance(error, InvalidRequest):
        return error
    return InvalidRequest(where, f"is damaged: {str(error)[:200]!a}.", _AGAIN)
