"""Carries out on the store what was chosen for a request's thread: side threads are sessions beside the main one.

    NEW        agent-7~task-1a2b   made, empty but for what agent-7 knows of redactions
    FORK       agent-7~task-1a2b   begins as agent-7 is, with its edits, and goes by its name in the engine
    RETELL     agent-7~task-1a2b   made as a new one is, and goes by the name of agent-7 in the engine, too
    TAKE OVER  agent-7             what it was goes on as agent-7~task-1a2b, a new session has its id and its budget
                                   its branches go with it
    left       agent-7~agent-00ff  deleted with its branches: too many side threads
    failed     agent-7~task-1a2b   its session is taken back, but for one that took agent-7 over

A request that is running in a session whose id was taken over is answered. Its answer is not recorded.

It knows the store and what was served, no routes. It chooses nothing.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace

from acmserve.context.session.branches.fork import fork_thread, retell_thread, take_over, with_parent_at
from acmserve.context.session.branches.parent import mark_of
from acmserve.context.session.branches.thread import Thread
from acmserve.context.session.state import Author, SessionState
from acmserve.context.storage.session import Key, Session
from acmserve.context.storage.session_store import SessionStore
from acmserve.errors import Conflict, NotFound, StorageFailed
from acmserve.server.exchange.served_prompts import ServedContexts
from acmserve.server.identity.fingerprint import Fingerprint, fingerprint_of, unit_of, with_answer
from acmserve.server.identity.placement import NOTHING, KnownThread, Placement
from acmserve.server.identity.prompt import read_prompt, read_units
from acmserve.server.identity.threads import MAIN
from acmserve.server.sessions.family import branches_of, members_of, sides_of
from acmserve.server.sessions.sessions import engine_id_of


class ThreadSessions:
    """`moving` is the session that gives up its id now, so that nobody takes it for one that is gone."""

    def __init__(self, store: SessionStore, served: ServedContexts) -> None:
        self._store = store
        self._served = served
        self.moving: Key | None = None

    def settle(self, tenant: str, placement: Placement) -> None:
        """Make the session of a thread what was chosen. Raises `StorageFailed` where one cannot be read."""
        for session_id in placement.left:
            self._leave((tenant, session_id))
        taken = None if placement.moved is None else self._move(tenant, placement)
        place = _place(placement)
        if place is None:
            return
        key = (tenant, placement.thread.session_id)
        is_new = not self._store.has(*key)
        session = self._store.create(*key) if is_new else self._store.get(*key)
        if taken is not None:
            session.suite = taken.suite
        before = session.state if taken is None else take_over(taken.state, place)
        state = self._begun(tenant, placement.forked_from, place, before)
        if placement.forked_from is not None and not is_new:
            # Another conversation begins in the session: what branched off the one before has no parent any more.
            for head in branches_of(self._store, session):
                self._delete(head.key)
        if placement.forked_from is not None and self._store.has(tenant, placement.forked_from):
            main = self._store.get(tenant, placement.forked_from)
            session.suite = main.suite
            self._served.share(main.key, session.key)
        if state != session.state:
            # Where there is no room for the copy, the thread begins with its request alone.
            with suppress(Conflict):
                self._store.save(session, state)

    def foresee(self, tenant: str, placement: Placement) -> SessionState:
        """The state that a thread's session would have after `settle`. Nothing is made, and nothing counts as use.

        Raises `StorageFailed` where one cannot be read.
        """
        is_new, place = placement.before is None, _place(placement)
        state = self.state_of(tenant, placement.thread.session_id)
        if is_new:
            state = take_over(state, place) if placement.is_main else SessionState()
        return state if place is None else self._begun(tenant, placement.forked_from, place, state)

    def state_of(self, tenant: str, session_id: str) -> SessionState:
        """The state of a session, the empty one where there is none. It counts as no use. Raises `StorageFailed`."""
        with suppress(NotFound):
            return self._store.peek(tenant, session_id).state
        return SessionState()

    def _begun(self, tenant: str, forked_from: str | None, place: Thread, state: SessionState) -> SessionState:
        """The state, in which a thread's session is, with which its next request begins there."""
        if forked_from is not None and self._store.has(tenant, forked_from):
            return fork_thread(self._store.peek(tenant, forked_from).state, place)
        # What a stored thread began with cannot be told any more: one that is no fork may repeat its words, too.
        if (place.is_fork or not state.entries) and self._store.has(tenant, place.family):
            main = self._store.peek(tenant, place.family).state
            if main.redacted and main.digest_key != state.digest_key:
                return retell_thread(main, place)
        return replace(state, thread=place)

    def discard_empty(self, tenant: str, placement: Placement) -> None:
        """Take back a session that was made for a request that has failed. What was set for an id stays with it.

        One that took an id over stays, empty: the session that had the id is found by it, and is deleted with it.
        """
        moved, session_id = placement.moved, placement.thread.session_id
        if moved is not None and self._store.has(tenant, moved.session_id):
            return
        if self._store.has(tenant, session_id):
            session = self._store.get(tenant, session_id)
            place = session.state.thread
            if not session.state.entries and place is not None and not (place.name == MAIN and _has_settings(session)):
                self._store.discard(session)

    def load(self, tenant: str, family: str) -> list[KnownThread]:
        """The threads of a session id that are stored, main and side, the one used longest ago first."""
        if not self._store.has(tenant, family):
            return []
        found = []
        for session_id in [*(head.session_id for head in reversed(sides_of(self._store, tenant, family))), family]:
            with suppress(StorageFailed, NotFound):
                found.append(_known(family, self._store.peek(tenant, session_id)))
        return found

    def has_no_threads(self, tenant: str, session_id: str, *, is_use: bool) -> bool:
        """Whether a session is a branch, or a side thread itself. Raises `StorageFailed`."""
        if not self._store.has(tenant, session_id):
            return False
        state = (self._store.get if is_use else self._store.peek)(tenant, session_id).state
        return state.parent is not None or (state.thread is not None and state.thread.family != session_id)

    def drop_forks(self, session: Session) -> list[Session]:
        """Something was redacted in a session: its forks, which hold the text, too, begin anew.

        They go by its name in the engine, also where it was a main thread and another one has its id now. Branches of
        them go, and those that it had then. One that it has now refuses the redaction. Side threads that may be forks,
        and go by names of their own, begin anew, too. Those are returned.
        """
        thread = session.state.thread or Thread(session.session_id, MAIN, session.session_id)
        if session.state.parent is not None or thread.is_fork:
            return []
        mark, retold = mark_of(session.state.digest_key), self._retold(session)
        keys = {side.key for side in retold}
        names = {thread.engine_id, *(side.session_id for side in retold)}
        for head in self._store.list(session.tenant):
            is_copy = head.key in keys or head.parent_mark == mark or (head.thread is not None and head.thread.is_fork)
            if is_copy and engine_id_of(head.session_id, head.thread, head.parent) in names:
                self._delete(head.key)
        return retold

    def _retold(self, main: Session) -> list[Session]:
        """Side threads that began with what was redacted in a main thread, and nobody knows what else they repeat."""
        found = []
        for head in sides_of(self._store, main.tenant, main.session_id):
            with suppress(StorageFailed, NotFound):
                side = self._store.peek(*head.key)
                has_own_name = engine_id_of(head.session_id, head.thread, head.parent) == head.session_id
                if has_own_name and side.state.digest_key == main.state.digest_key:
                    found.append(side)
        return found

    def _move(self, tenant: str, placement: Placement) -> Session | None:
        """Give what the main session was another id. It keeps its edits, and its name in the engine.

        Returns what it was, None where there was none.
        """
        key = (tenant, placement.thread.session_id)
        assert placement.moved is not None
        if not self._store.has(*key):
            return None
        old = self._store.get(*key)
        thread = Thread(placement.moved.family, placement.moved.name, placement.moved.engine_id)
        self.moving = key
        try:
            self._store.discard(old)
        finally:
            self.moving = None
        if old.state.entries:
            moved = self._store.create(tenant, placement.moved.session_id)
            moved.suite = old.suite
            with suppress(Conflict):
                self._store.save(moved, replace(old.state, thread=thread))
                self._move_branches(old, moved, thread)
        return old

    def _move_branches(self, old: Session, moved: Session, thread: Thread) -> None:
        """Let the branches of a session know it by its other id. One that cannot be changed is nobody's any more."""
        for head in branches_of(self._store, old):
            with suppress(NotFound, StorageFailed, Conflict):
                branch = self._store.get(*head.key)
                self._store.save(branch, with_parent_at(branch.state, moved.session_id, thread))

    def _leave(self, key: Key) -> None:
        """Delete a side thread with its branches. Of one that cannot be read nobody knows them."""
        with suppress(NotFound, StorageFailed):
            for head in members_of(self._store, self._store.peek(*key)):
                self._delete(head.key)
        self._delete(key)

    def _delete(self, key: Key) -> None:
        """The store tells whoever listens where the file cannot be written."""
        if self._store.has(*key):
            with suppress(StorageFailed):
                self._store.delete(*key)


def _has_settings(session: Session) -> bool:
    """Whether anything was set for a session, or redacted in it."""
    state = session.state
    return bool(state.budget or state.precompute or state.observation_rule or state.redacted)


def _place(placement: Placement) -> Thread | None:
    """A session's place in its family. None for a main thread that goes by its own name."""
    known = placement.thread
    if known.name == MAIN and known.engine_id == known.session_id:
        return None
    return Thread(known.family, known.name, known.engine_id, known.is_fork)


def _known(family: str, session: Session) -> KnownThread:
    """A stored session as a thread."""
    thread = session.state.thread or Thread(family, MAIN, session.session_id)
    conversation = stored_conversation(session.state)
    return KnownThread(family, thread.name, session.session_id, thread.engine_id, conversation, is_fork=thread.is_fork)


def stored_conversation(state: SessionState) -> Fingerprint:
    """What would be remembered of the last request in a transcript, and of its answer. Nobody knows its tools."""
    held = [entry for entry in state.entries if entry.origin is not Author.INTERNAL]
    has_answer = len(held) > 1 and held[-1].origin is Author.ANSWER
    asked = held[:-1] if has_answer else held
    prompt = read_prompt({"messages": [entry.message for entry in asked]})
    if prompt is None:
        return NOTHING
    given = (unit_of(read_units(entry.message)) for entry in asked if entry.origin is Author.ANSWER)
    conversation = fingerprint_of(prompt, ours=next(filter(None, given), 0), knows_tools=False)
    return with_answer(conversation, held[-1].message) if has_answer else conversation
