"""The time in which a tool loop runs in a session, for which it holds the session.

    undoable    the loop fails: the session is as before, and what others recorded meanwhile is recorded anew
    looping     an answer that belongs behind everything waits for the end of the loop
    loops       the session gives up its id: the loop goes on in memory (see `Sessions.save`)

The parent of a branch may go on under another id meanwhile. That is no doing of the loop, and is not undone. It does
not know what a loop does, and what is recorded.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace

from acmserve.context.session.state import SessionState
from acmserve.context.storage.session import Session
from acmserve.server.sessions.sessions import Sessions


@contextmanager
def undoable(sessions: Sessions, session: Session, before: SessionState) -> Iterator[Callable[[], None]]:
    """A loop runs in the session, which an exception undoes, and so does a call of what this yields.

    The session is as before then, but for its place in its family. Answers that were recorded meanwhile are recorded
    anew, as if no loop had been. In a session that is gone there is nothing to undo.
    """
    recorded = sessions.undoable[session.key] = []

    def undo() -> None:
        if not sessions.store.holds(session):
            return
        sessions.store.save(session, _in_place_of(session.state, before))
        for record_anew in recorded:
            record_anew()

    try:
        yield undo
    except Exception:
        # Raised again as it is, whatever it was. A cancelled turn is no failure: it leaves what was stored last.
        undo()
        raise
    finally:
        del sessions.undoable[session.key]


@contextmanager
def looping(sessions: Sessions, session: Session) -> Iterator[None]:
    """A loop runs in the session. What is answered behind everything meanwhile is recorded behind the loop."""
    behind = sessions.looping[session.key] = []
    sessions.loops[session] = sessions.num_removals
    try:
        yield
    finally:
        del sessions.looping[session.key], sessions.loops[session]
        for record in behind:
            record()


def _in_place_of(now: SessionState, before: SessionState) -> SessionState:
    """The state of before at the place that the session has now. The very object where that is the same."""
    if (now.parent, now.thread) == (before.parent, before.thread):
        return before
    return replace(before, parent=now.parent, thread=now.thread)
