"""Which sessions go with which: a branch with its parent, a side thread with its main thread, and what goes with those.

    agent
    |-- acm-91..              a branch
    '-- agent~task-1a2b       a side thread
        '-- acm-4f..          a branch of that

A main thread that takes an id over has the mark of the one that had it, and another name in the engine. So the branches
of a main thread have its name there.

Whoever hands over or deletes a session asks here what goes with it. It reads the store, and changes nothing.
"""

from __future__ import annotations

from collections.abc import Sequence

from acmserve.context.session.branches.parent import mark_of
from acmserve.context.storage.head import SessionHead
from acmserve.context.storage.session import Session
from acmserve.context.storage.session_store import SessionStore
from acmserve.server.identity.threads import MAIN
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
    wanted = (parent.session_id, mark_of(parent.state.digest_key))
    found = [head for head in heads if (head.parent, head.parent_mark) == wanted and _is_named_as(head, parent)]
    return sorted(found, key=lambda head: head.created_at)


def _is_named_as(branch: SessionHead, parent: Session) -> bool:
    return (
        has_own_name(parent) or engine_id_of(branch.session_id, branch.thread, branch.parent) == engine_key(parent)[1]
    )


def has_own_name(parent: Session) -> bool:
    """Whether no other session can have the id of a parent and its mark.

    A side thread's id is taken over by none, and a fork that begins there anew deletes its branches. Its name in the
    engine may change, and its branches keep the old one.
    """
    thread = parent.state.thread
    return thread is not None and thread.name != MAIN
