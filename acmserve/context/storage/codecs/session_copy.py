"""A session as it travels to another server: one JSON object, and read back from it.

    Session, sampled outputs --copy_value--> {"session_id": ..., "state": "{...}", ...} --copy_from--> SessionCopy

Decision: state and turns are JSON inside of a text, as the file would hold them. Messages may be nested deeper, or hold
characters, than a strict body can. What another version wrote is refused by its number, and nothing is guessed.

It knows no tenant: a copy becomes the session of whoever brings it in. It knows no file.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from acmserve.context.session.state import SessionState
from acmserve.context.session.turns.history import NO_TURNS, TurnHistory
from acmserve.context.storage.codecs.rows import sizes_of
from acmserve.context.storage.codecs.state import FIRST_VERSION, VERSION, read_state, state_value
from acmserve.context.storage.codecs.turns import num_turn_rows, turn_rows, turns_from
from acmserve.errors import AcmError, Conflict, IntegrityError, InvalidRequest

_AGAIN = "Export the session again."
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
    try:
        turns = turns_from(_parsed(value["turns"], f"{where}.turns"))
    except _UNREADABLE as error:
        raise _damaged(f"{where}.turns", error) from None
    outputs = tuple((output["text"], tuple(output["token_ids"])) for output in value["outputs"])
    return SessionCopy(value["session_id"], value["suite"], value["created_at"], read, turns, outputs)


def _parsed(text: str, where: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise _damaged(where, error) from None


def _damaged(where: str, error: Exception) -> InvalidRequest:
    if isinstance(error, InvalidRequest):
        return error
    return InvalidRequest(where, f"is damaged: {str(error)[:200]!a}.", _AGAIN)
