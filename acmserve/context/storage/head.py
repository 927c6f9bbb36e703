"""What is known of a session without its text: its row in the file, and what a list of sessions shows.

It stands in the file beside the session, so that a list, a search for branches and the bounds read no transcript.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from acmserve.context.session.precompute_options import PrecomputeOptions, parse_precompute
from acmserve.context.session.state import SessionState
from acmserve.context.storage.session import Key, Session


@dataclass(frozen=True, slots=True)
class SessionHead:
    """`parent` and `parent_mark` name the session that this one is a branch of, see `context.session.parent`."""

    key: Key
    suite: str
    created_at: float
    used_at: float
    num_bytes: int
    num_messages: int
    num_fragments: int
    num_hidden_fragments: int
    parent: str | None = None
    parent_mark: str | None = None
    precompute: PrecomputeOptions | None = None

    @property
    def session_id(self) -> str:
        """The id that the client knows."""
        return self.key[1]


def head_of(session: Session) -> SessionHead:
    """The head of a session that is in memory."""
    return SessionHead(
        session.key, session.suite, session.created_at, session.used_at, session.num_bytes, *_counts(session.state)
    )


def head_value(state: SessionState) -> list[Any]:
    """What the row of a session has beside its own columns, as a JSON array."""
    *counts, precompute = _counts(state)
    return [*counts, None if precompute is None else precompute.as_dict()]


def head_from(
    key: Key, suite: str, created_at: float, used_at: float, num_bytes: int, value: Sequence[Any]
) -> SessionHead:
    """The head of a row. Raises `TypeError` or `ValueError` for a value that `head_value` did not make."""
    num_messages, num_fragments, num_hidden, parent, mark, precompute = value
    if any(type(number) is not int for number in (num_messages, num_fragments, num_hidden)):
        raise TypeError(f"its head counts {value[:3]!a}")
    options = None if precompute is None else parse_precompute(precompute)
    return SessionHead(
        key, suite, created_at, used_at, num_bytes, num_messages, num_fragments, num_hidden, parent, mark, options
    )


def _counts(state: SessionState) -> tuple[int, int, int, str | None, str | None, PrecomputeOptions | None]:
    parent = state.parent
    return (
        len(state.entries),
        len(state.fragments),
        sum(fragment.hidden for fragment in state.fragments),
        None if parent is None else parent.session_id,
        None if parent is None else parent.mark,
        state.precompute,
    )
