"""All sessions of a server: found by tenant and id, bounded in number, bytes and time, written through to a file.

    memory    the sessions used last                     pushed out, a session stays in the file
    file      all of them, with a bound of its own       pushed out, expired or deleted, a session is gone

Who is pushed out says `fair_share.py`. Nobody pushes out a session that is in use. A session that is only in the file
is read when it is asked for. Without a file, what leaves memory is gone.

The file is written with best effort. Where that fails, memory changes all the same, and `Session.unsaved` says why. The
session is then written whole with its next save, or beside the save of another one. `on_gone` hears of sessions that
are gone, `on_leave` of those that left memory only, `on_failure` of every write that failed, `on_saved` of every new
state.

Decision: a request says that it uses a session by holding a `SessionUse`, which ends when nothing refers to it any
more. A stream that nobody ever reads has no other end. It takes no locks: one thread at a time.
"""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Callable, Collection, Sequence
from contextlib import suppress
from functools import partial
from itertools import chain, takewhile
from weakref import WeakValueDictionary

from acmserve.context.session.state import SessionState
from acmserve.context.session.turns.history import TurnHistory
from acmserve.context.storage.codecs.rows import StateChange, plan_change, plan_turns, plan_whole, with_turns
from acmserve.context.storage.fair_share import plan_victims
from acmserve.context.storage.forward_clock import forward
from acmserve.context.storage.head import SessionHead, head_of
from acmserve.context.storage.refusals import check_room, check_sessions, not_found, over_bounds, taken
from acmserve.context.storage.session import Key, Session, SessionLimits, SessionUse, ignore
from acmserve.context.storage.session_names import SessionNames
from acmserve.context.storage.sqlite import Archive
from acmserve.context.storage.stored_sessions import StoredSessions
from acmserve.errors import Conflict, NotFound, StorageFailed

_EMPTY = SessionState()
_MAX_HEALED = 8  # written beside another session, once the file can be written again


class SessionStore:
    """The sessions in memory, and in `archive` where one is given. It belongs to the store from then on."""

    def __init__(
        self,
        limits: SessionLimits | None = None,
        archive: Archive | None = None,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self.limits = limits or SessionLimits()
        self.on_gone: Callable[[Key], None] = ignore
        self.on_leave: Callable[[Key], None] = ignore
        self.on_failure: Callable[[StorageFailed], None] = ignore
        self.on_saved: Callable[[Session], None] | None = None
        self.names = SessionNames()
        self._clock = forward(clock)
        self._sessions: OrderedDict[Key, Session] = OrderedDict()
        self.num_bytes = 0
        self._uses: WeakValueDictionary[Key, SessionUse] = WeakValueDictionary()
        self._stored: StoredSessions | None = None
        self._pending: list[tuple[Callable[[Key], None], Key]] = []
        if archive is not None:
            try:
                self._stored = StoredSessions(archive)
                self._load(self._stored)
            except BaseException:
                # Raised again as it is. The archive belongs to a store that there will not be.
                archive.close()
                raise

    def __len__(self) -> int:
        """Sessions in memory."""
        return len(self._sessions)

    def behind(self) -> Sequence[Session]:
        """Sessions whose copies in the file are behind. None of them without a file."""
        return [session for session in self._sessions.values() if session.unsaved is not None]

    def get(self, tenant: str, session_id: str) -> Session:
        """The session, which counts as use. Raises `NotFound`, and `StorageFailed` where it cannot be read."""
        key, now = (tenant, session_id), self._clock()
        if (session := self.peek(*key)) is not self._sessions.get(key):
            self.num_bytes += session.num_bytes
            self._sessions[key] = session
        session.used_at = now
        self._sessions.move_to_end(key)
        self._push_out(self._victims(key, self._size_of(key)))
        self._tell()
        if self._stored is not None:
            self._stored.touch(key, now)
        return session

    def peek(self, tenant: str, session_id: str) -> Session:
        """The session, which counts as no use. One that only the file has is a copy. Raises what `get` does."""
        if self.has(*(key := (tenant, session_id))):
            if self._stored is None or key in self._sessions:
                return self._sessions[key]
            with suppress(NotFound):
                return self._stored.read(key)
            self._erase([key], at_once=True)
        raise self._not_found(session_id)

    def use(self, session: Session) -> SessionUse:
        """Keep a session in memory, until nothing refers to what this returns."""
        return self._uses.setdefault(session.key, SessionUse())

    def open(self, tenant: str, session_id: str) -> Session:
        """The session, made when there is none."""
        with suppress(NotFound):
            return self.get(tenant, session_id)
        return self.create(tenant, session_id)

    def create(self, tenant: str, session_id: str | None = None) -> Session:
        """A new session. Without an id it gets a random one. Raises `Conflict` when the id is taken."""
        session_id = self.names.settle(tenant, session_id)
        if self.has(tenant, session_id):
            raise taken(session_id)
        now = self._clock()
        session = Session(tenant, session_id, created_at=now, used_at=now)
        self._write(session, session.state, session.turns, plan_change(_EMPTY, session.state))
        return session

    def save(self, session: Session, state: SessionState) -> None:
        """Set the state of a session, and push out others where the bounds demand it.

        Raises `Conflict` when it would be too large even without its turns, and `NotFound` when it is gone.
        """
        self._check_held(session)
        self._write(session, state, session.turns, plan_change(session.state, state))

    def record(self, session: Session, turns: TurnHistory) -> None:
        """Set what is recorded of the turns of a session. Raises what `save` does."""
        self._check_held(session)
        self._write(session, session.state, turns, plan_turns(session.state, session.turns, turns))

    def has(self, tenant: str, session_id: str) -> bool:
        """Whether there is a session of this name. Does not count as use."""
        key = (tenant, session_id)
        used_at = self._used_at(key)
        if used_at is None or self._clock() - used_at < self.limits.ttl_seconds or key in self._uses:
            return used_at is not None
        self._erase([key], at_once=False)
        return False

    def holds(self, session: Session) -> bool:
        """Whether this very session is still in memory."""
        return self._sessions.get(session.key) is session and self.has(*session.key)

    def delete(self, tenant: str, session_id: str) -> None:
        """Drop a session, its text in the file included. Raises `NotFound`.

        Raises `StorageFailed` where the file may still hold the text. The session is gone all the same. Call it again.
        """
        if not self.has(*(key := (tenant, session_id))) and not self.is_erasing(*key):
            raise self._not_found(session_id)
        if (failure := self._erase([key], at_once=True)) is not None:
            raise failure

    def is_erasing(self, tenant: str, session_id: str) -> bool:
        """Whether a session was deleted whose text the file may still hold."""
        return self._stored is not None and self._stored.is_erasing((tenant, session_id))

    def check_room(self, session: Session, num_bytes: int, without: Collection[Key]) -> None:
        """Raise `Conflict` where so much does not fit beside other accounts. What is `without` is about to go."""
        check_room(session, num_bytes, {k: s for k, s in self._sessions.items() if k not in without}, self.limits)

    def discard(self, session: Session) -> None:
        """Take back a session that was made a moment ago. What of it is in the file goes when it can be written."""
        if self._sessions.get(session.key) is session:
            self._erase([session.key], at_once=True)

    def list(self, tenant: str) -> list[SessionHead]:
        """The sessions of a tenant, also those that are only in the file, the one used last first. Is no use."""
        self._erase(self._expired(self._clock()), at_once=False)
        heads = {} if self._stored is None else self._stored.heads(tenant)
        heads |= {key: head_of(session) for key, session in self._sessions.items() if key[0] == tenant}
        return sorted(heads.values(), key=lambda head: head.used_at)[::-1]

    def close(self) -> None:
        """Write what the file lacks, and when each session was used last, and give the file back."""
        if self._stored is not None:
            self._stored.heal(self.behind(), self._tried)
            self._tried(self._stored.close)
            self._stored = None

    def check_integrity(self) -> None:
        """Raise `IntegrityError` with the numbers when bounds, sizes or file disagree. Reads everything: slow."""
        last = next(reversed(self._sessions.values()), None)
        if last is not None and self._victims(last.key, last.num_bytes):
            raise over_bounds(len(self), self.num_bytes, self.limits)
        check_sessions(self._sessions, self.num_bytes)
        if self._stored is not None:
            self._stored.check_integrity(tuple(self._sessions.values()))

    def _load(self, stored: StoredSessions) -> None:
        """Read the sessions used last, as many as memory holds, and drop what is out of time or too much."""
        now, erase = self._clock(), partial(stored.erase, at_once=False)
        self._tried(partial(erase, self._expired(now)))
        kept = stored.newest(self.limits.memory)
        self._tried(partial(erase, plan_victims(stored.sizes(), self.limits.file, kept.__contains__)))
        for key in reversed(kept):
            session = self._sessions[key] = stored.read(key)
            session.used_at = min(session.used_at, now)
            self.num_bytes += session.num_bytes

    def _used_at(self, key: Key) -> float | None:
        """When a session was used last. None where there is none."""
        if key in self._sessions:
            return self._sessions[key].used_at
        return None if self._stored is None else self._stored.used_at(key)

    def _expired(self, now: float, keep: Key | None = None) -> Sequence[Key]:
        """Sessions whose time is over. Both lists are in the order of use."""
        orders = (self._sessions, () if self._stored is None else self._stored)
        old = (takewhile(lambda key: now - (self._used_at(key) or 0.0) >= self.limits.ttl_seconds, o) for o in orders)
        return tuple(dict.fromkeys(key for key in chain(*old) if key != keep and key not in self._uses))

    def _victims(self, keep: Key, num_bytes: int) -> Sequence[Key]:
        """What leaves memory when `keep` is there with so many bytes."""
        total = self.num_bytes + num_bytes - self._size_of(keep)
        if len(self) + (keep not in self._sessions) <= self.limits.max_sessions and total <= self.limits.max_bytes:
            return ()
        sizes = {key: session.num_bytes for key, session in self._sessions.items()} | {keep: num_bytes}
        return plan_victims(sizes, self.limits.memory, lambda key: key == keep or key in self._uses)

    def _write(self, session: Session, state: SessionState, turns: TurnHistory, change: StateChange) -> None:
        now, sizes = self._clock(), change.sizes(session.sizes)
        num_bytes = sizes.num_bytes
        try:
            if self.num_bytes + num_bytes - self._size_of(session.key) > self.limits.max_bytes:
                check_room(session, num_bytes, self._sessions, self.limits)
        except Conflict:
            if (emptied := turns.emptied()) == turns:
                raise
            self._write(session, state, emptied, with_turns(change, session.turns, emptied))
            return
        self._erase(self._expired(now, session.key), at_once=False)
        dropped: Sequence[Key] = ()
        failure = None
        if self._stored is not None:
            dropped = self._stored.plan_victims(self.limits.file, session.key, num_bytes, self._uses.__contains__)
            written = change if session.unsaved is None else plan_whole(state, turns)
            failure = self._tried(partial(self._stored.save, session, state, now, written, dropped))
        victims = self._victims(session.key, num_bytes)
        self.num_bytes += num_bytes - self._size_of(session.key)
        session.state, session.turns, session.used_at, session.sizes = state, turns, now, sizes
        self._sessions[session.key] = session
        self._sessions.move_to_end(session.key)
        if self._stored is not None and failure is None:
            self._stored.saved(session)
            self._forget(dropped)
            told = [session.key] if change.removes_text or session.unsaved is not None else []
            unflushed = self._tried(partial(self._stored.flush, told))
            failure = unflushed if told else None
        session.unsaved = failure
        self._push_out([key for key in victims if key in self._sessions])
        if self._stored is not None and failure is None:
            self._stored.heal(self.behind()[:_MAX_HEALED], self._tried)
        self._tell()
        if self.on_saved is not None:
            self.on_saved(session)

    def _size_of(self, key: Key) -> int:
        return self._sessions[key].sizes.num_bytes if key in self._sessions else 0

    def _push_out(self, keys: Sequence[Key]) -> None:
        """Let sessions leave memory. They are gone where the file does not have what they are."""
        for key in keys:
            session, stored = self._sessions[key], self._stored
            if stored is not None and session.unsaved is not None:
                stored.heal([session], self._tried)
                if stored.is_behind(session):
                    self._tried(partial(stored.erase, [key], at_once=False))
            self._forget([key], left=stored is not None and not stored.is_behind(session))

    def _erase(self, keys: Sequence[Key], *, at_once: bool) -> StorageFailed | None:
        """Drop sessions from memory and from the file."""
        stored = self._stored if keys else None
        failure = None if stored is None else self._tried(partial(stored.erase, keys, at_once=at_once))
        self._forget(keys)
        if stored is not None and failure is None:
            stored.heal([session for session in self.behind() if not stored.is_behind(session)], self._tried)
        self._tell()
        return failure

    def _forget(self, keys: Sequence[Key], *, left: bool = False) -> None:
        """Take sessions out of memory. They are gone for good, or have only `left` it."""
        for key in keys:
            self.num_bytes -= self._size_of(key)
            self._sessions.pop(key, None)
            self._pending.append((self.on_leave if left else self.on_gone, key))

    def _tell(self) -> None:
        """Let the listeners hear of what happened, now that everything is done."""
        pending, self._pending = self._pending, []
        for listener, key in pending:
            listener(key)

    def _tried(self, write: Callable[[], None]) -> StorageFailed | None:
        """Why the file could not be written. None where it was."""
        try:
            write()
        except StorageFailed as failure:
            self.on_failure(failure)
            return failure.bare()
        return None

    def _check_held(self, session: Session) -> None:
        if self._sessions.get(session.key) is not session:
            raise self._not_found(session.session_id)

    def _not_found(self, session_id: str) -> NotFound:
        return not_found(session_id, self.limits, has_file=self._stored is not None)
