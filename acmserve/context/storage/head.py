"""What is known of a session without its text: its row in the file, and what a list of sessions shows.

It stands in the file beside the session, so that a list, a search for branches and the bounds read no transcript.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from acmserve.context.session.branches.thread import Thread
from acmserve.context.session.precompute_options import PrecomputeOptions, parse_precompute
from acmserve.context.session.state import SessionState
from acmserve.context.session.turns.totals import TurnTotals
from acmserve.context.session.turns.turn import LastTurn
from acmserve.context.storage.codecs.branch import thread_from, thread_value
from acmserve.context.storage.session import Key, Session

_Counts = tuple[int, int, int, str | None, str | None, PrecomputeOptions | None, Thread | None]


@dataclass(frozen=True, slots=True)
class SessionHead:
    """`parent` and `parent_mark` name the session that this one is a branch of, see `context.session.branches.parent`.

    `thread` is its place in a family of threads, None for a session that is the only one of its family.

    `totals`, `last_turn` and `budget_tokens` are known of a session that was in memory since the server started. Rows
    do not have them. Of a budget the session's own counts.
    """

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
    thread: Thread | None = None
    totals: TurnTotals | None = field(default=None, compare=False)
    last_turn: LastTurn | None = field(default=None, compare=False)
    budget_tokens: int | None = field(default=None, compare=False)

    @property
    def session_id(self) -> str:
        """The id that the client knows."""
        return self.key[1]

    @property
    def thread_of(self) -> str | None:
        """The session that this one is a side thread of."""
        thread = self.thread if self.parent is None else None
        return None if thread is None or thread.family == self.session_id else thread.family


def head_of(session: Session) -> SessionHead:
    """The head of a session that is in memory."""
    return SessionHead(
        session.key,
        session.suite,
        session.created_at,
        session.used_at,
        session.num_bytes,
        *_counts(session.state),
        totals=session.turns.totals,
        last_turn=session.turns.last_turn,
        budget_tokens=None if session.state.budget is None else session.state.budget.max_tokens,
    )


def head_value(state: SessionState) -> list[Any]:
    """What the row of a session has beside its own columns, as a JSON array."""
    *counts, precompute, thread = _counts(state)
    value = [*counts, None if precompute is None else precompute.as_dict()]
    return value if thread is None else [*value, thread_value(thread)]


def head_from(
    key: Key, suite: str, created_at: float, used_at: float, num_bytes: int, value: Sequence[Any]
) -> SessionHead:
    """The head of a row. Raises `TypeError` or `ValueError` for a value that `head_value` did not make."""
    num_messages, num_fragments, num_hidden, parent, mark, precompute, *more = value
    if any(type(number) is not int for number in (num_messages, num_fragments, num_hidden)):
        raise TypeError(f"its head counts {value[:3]!a}")
    options = None if precompute is None else parse_precompute(precompute)
    thread = thread_from(more[0]) if more else None
    counts = (num_messages, num_fragments, num_hidden)
    return SessionHead(key, suite, created_at, used_at, num_bytes, *counts, parent, mark, options, thread)


def _counts(state: SessionState) -> _Counts:
    parent = state.parent
    return (
        len(state.entries),
        len(state.fragments),
        sum(fragment.hidden for fragment in state.fragments),
        None if parent is None else parent.session_id,
        None if parent is None else parent.mark,
        state.precompute,
        state.thread,
    )
