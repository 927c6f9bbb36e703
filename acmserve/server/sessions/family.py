"""Which sessions go with which: a branch with its parent, a side thread with its main thread, and what goes with those.

    agent
    |-- acm-91..              a branch
    '-- agent~task-1a2b       a side thread
        '-- acm-4f..          a branch of that

A thread that takes an id over has the mark of the one that had it, and another name in the engine. So a branch has the
name of its parent there, too.

Whoever hands over or deletes a session asks here what goes with it. It reads the store, and changes nothing.
"""

from __future__ import annotations

from collections.abc import Sequence

from acmserve.context.session.branches.parent import mark_of
from acmserve.context.storage.head import SessionHead
from acmserve.context.storage.session import Session
from acmserve.context.storage.session_store import SessionStore
from acmserve.server.sessions.sessions import engine_id_of, engine_key


def branches_of(store: SessionStore, parent: Session) -> list[SessionHead]:
    """The sessions that are branches of this one, the oldest first. Some may be in the file only."""
    return _branches_in(store.list(parent.tenant), parent)


def sides_of(store: SessionStore, tenant: str, family: str) -> list[SessionHead]:
    """The side threads of a session id, the one used last first."""
    return [head for head in store.list(tenant) if head.thread_of == family]


def members_of(store: SessionStore, session: Session) -> list[SessionHead]:
    """The branches and side threads of a session, by id. What goes with those is not among them."""
    return _members_in(store.list(session.tenant), session)


def family_of(store: SessionStore, session: Session) -> list[Session]:
    """The session and all that goes with it. Whatever a session goes with stands in front of it."""
    heads, family, known = store.list(session.tenant), [session], {session.key}
    for member in family:
        new = [head.key for head in _members_in(heads, member) if head.key not in known]
        family += [store.get(*key) for key in new]
        known.update(new)
    return family


def _members_in(heads: Sequence[SessionHead], session: Session) -> list[SessionHead]:
    sides = [head for head in heads if head.thread_of == session.session_id]
    return sorted([*_branches_in(heads, session), *sides], key=lambda head: head.session_id)


def _branches_in(heads: Sequence[SessionHead], parent: Session) -> list[SessionHead]:
    wanted = (parent.session_id, mark_of(parent.state.digest_key), engine_key(parent)[1])
    found = [head for head in heads if head.parent is not None and _names_of(head) == wanted]
    return sorted(found, key=lambda head: head.created_at)


def _names_of(head: SessionHead) -> tuple[str | None, str | None, str]:
    """What a branch has in common with its parent: the id that it calls it by, its mark, and the name in the engine."""
    return head.parent, head.parent_mark, engine_id_of(head.session_id, head.thread, head.parent)
