"""All sessions of a server: found by tenant and id, bounded in number, bytes and time, written through to an archive.

    least recently used                                         most recently used
    [ s7 ][ s2 ][ s9 ] ........................................ [ s1 ]
      ^ dropped first, when there are too many, too many bytes, or their time is over

Every operation is all or nothing. The file is written first, then memory changes, then `on_drop` hears of the sessions
that are gone (deleted, pushed out, or out of time). Reads count as use too, but are written only with the next save, or
when the store is closed. It knows no HTTP and takes no locks: one thread at a time, as on a server's event loop.
"""

from __future__ import annotations

import secrets
import time
from collections import OrderedDict
from collections.abc import Callable, Sequence

from acmserve.context.session.state import SessionState
from acmserve.context.storage.session import Key, Session, SessionLimits
from acmserve.context.storage.sqlite import Archive, Stored
from acmserve.context.storage.state_codec import StateChange, entry_value, fragment_value, pack, plan_change
from acmserve.errors import Conflict, IntegrityError, NotFound

_EMPTY = SessionState()


class SessionStore:
    """The sessions in memory, and in `archive` where one is given. It belongs to the store from then on."""

    def __init__(
        self,
        limits: SessionLimits | None = None,
        archive: Archive | None = None,
        on_drop: Callable[[Session], None] | None = None,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self.limits = limits or SessionLimits()
        self._archive = archive
        self._on_drop = on_drop
        self._clock = clock
        self._sessions: OrderedDict[Key, Session] = OrderedDict()
        self._num_bytes = 0
        if archive is not None:
            try:
                self._load(archive)
            except BaseException:
                archive.close()
                raise

    def __len__(self) -> int:
        return len(self._sessions)

    @property
    def num_bytes(self) -> int:
        """Bytes of all sessions."""
        return self._num_bytes

    def get(self, tenant: str, session_id: str) -> Session:
        """The session, which counts as use. Raises `NotFound`."""
        session = self._find(tenant, session_id)
        if session is None:
            raise self._not_found(session_id)
        session.used_at = self._clock()
        self._sessions.move_to_end(session.key)
        return session

    def open(self, tenant: str, session_id: str) -> Session:
        """The session, made when there is none."""
        if self._find(tenant, session_id) is None:
            return self.create(tenant, session_id)
        return self.get(tenant, session_id)

    def create(self, tenant: str, session_id: str | None = None) -> Session:
        """A new session. Without an id it gets a random one. Raises `Conflict` when the id is taken."""
        if session_id is None:
            session_id = f"acm-{secrets.token_hex(12)}"
        if self._find(tenant, session_id) is not None:
            raise Conflict(
                "session_id", f"{session_id!a} exists already.", "Use it, delete it first, or choose another id."
            )
        now = self._clock()
        session = Session(tenant, session_id, created_at=now, used_at=now)
        self._write(session, session.state, plan_change(_EMPTY, session.state), now)
        return session

    def save(self, session: Session, state: SessionState) -> None:
        """Set the state of a session, and drop others where the bounds demand it.

        Raises `Conflict` when the session alone would be too large, and `NotFound` when it was dropped in the meantime.
        Raises `AcmError` when the archive cannot be written. The session then still has its old state.
        """
        if self._sessions.get(session.key) is not session:
            raise self._not_found(session.session_id)
        self._write(session, state, plan_change(session.state, state), self._clock())

    def has(self, tenant: str, session_id: str) -> bool:
        """Whether there is a session of this name. Does not count as use."""
        return self._find(tenant, session_id) is not None

    def holds(self, session: Session) -> bool:
        """Whether this very session is still here: not deleted, expired or pushed out."""
        return self._find(*session.key) is session

    def delete(self, tenant: str, session_id: str) -> None:
        """Drop a session, its text in the archive included. Raises `NotFound`."""
        session = self._find(tenant, session_id)
        if session is None:
            raise self._not_found(session_id)
        self._drop([session])
        if self._archive is not None:
            self._archive.empty_log()

    def list(self, tenant: str) -> list[Session]:
        """The sessions of a tenant, the one used last first. Does not count as use."""
        now = self._clock()
        self._drop([session for session in self._sessions.values() if self._is_expired(session, now)])
        return [session for session in reversed(self._sessions.values()) if session.tenant == tenant]

    def close(self) -> None:
        """Write when each session was used last, and give the archive back."""
        if self._archive is not None:
            self._archive.touch(list(self._sessions.values()))
            self._archive.close()
            self._archive = None

    def check_integrity(self) -> None:
        """Raise `IntegrityError` with the numbers when bounds, sizes or archive disagree. Reads everything: slow."""
        num_bytes = sum(session.num_bytes for session in self._sessions.values())
        if num_bytes != self._num_bytes:
            raise IntegrityError(f"store: {self._num_bytes} bytes counted, the sessions have {num_bytes}")
        if len(self) > self.limits.max_sessions or num_bytes > self.limits.max_bytes:
            raise IntegrityError(
                f"store: {len(self)} sessions of {self.limits.max_sessions}, "
                f"{num_bytes} bytes of {self.limits.max_bytes}"
            )
        for key, session in self._sessions.items():
            named = (session.tenant, session.session_id)
            if key != session.key or key != named:
                raise IntegrityError(f"store: session {named} is filed as {key}")
            session.state.check_integrity()
            entries = [len(pack(entry_value(entry))) for entry in session.state.entries]
            fragments = [len(pack(fragment_value(fragment))) for fragment in session.state.fragments]
            if (entries, fragments) != (session.entry_bytes, session.fragment_bytes):
                raise IntegrityError(
                    f"store: {session.session_id!a} has {len(entries)} entries and {len(fragments)} fragments of "
                    f"{sum(entries) + sum(fragments)} bytes, {session.num_bytes} were counted"
                )
        if self._archive is not None:
            self._check_archive(self._archive)

    def _check_archive(self, archive: Archive) -> None:
        stored = {entry.key for entry in archive.stored()}
        if stored != self._sessions.keys():
            raise IntegrityError(f"store: {len(self)} sessions, the archive has {len(stored)}, not the same ones")
        for key, session in self._sessions.items():
            found = archive.read(key)
            if found.state != session.state:
                raise IntegrityError(
                    f"store: {session.session_id!a} has {len(session.state.entries)} entries of "
                    f"{session.num_bytes} bytes, in the archive {len(found.state.entries)} of {found.num_bytes}"
                )

    def _load(self, archive: Archive) -> None:
        now = self._clock()
        stored = archive.stored()
        kept = plan_load(stored, self.limits, now)
        dropped = [entry.key for entry in stored if entry not in kept]
        if dropped:
            archive.drop(dropped)
        for entry in kept:
            session = archive.read(entry.key)
            session.used_at = min(session.used_at, now)
            self._sessions[entry.key] = session
            self._num_bytes += session.num_bytes

    def _find(self, tenant: str, session_id: str) -> Session | None:
        """The session, when there is one whose time is not over."""
        session = self._sessions.get((tenant, session_id))
        if session is None or not self._is_expired(session, self._clock()):
            return session
        self._drop([session])
        return None

    def _is_expired(self, session: Session, now: float) -> bool:
        return now - session.used_at >= self.limits.ttl_seconds

    def _write(self, session: Session, state: SessionState, change: StateChange, now: float) -> None:
        entry_bytes = change.entries.sizes(session.entry_bytes)
        fragment_bytes = change.fragments.sizes(session.fragment_bytes)
        num_bytes = sum(entry_bytes) + sum(fragment_bytes)
        if num_bytes > self.limits.max_bytes:
            raise Conflict(
                "session_id",
                f"{session.session_id!a} would hold {num_bytes:,} bytes; all sessions together may hold "
                f"{self.limits.max_bytes:,}. Nothing was changed.",
                "Go on in a new session, or start the server with a larger limit.",
            )
        num_old = sum(session.entry_bytes) + sum(session.fragment_bytes)
        others = self._num_bytes - (num_old if session.key in self._sessions else 0)
        dropped = self._pushed_out(session.key, others + num_bytes, now)
        if self._archive is not None:
            self._archive.save(session, state, now, change, [gone.key for gone in dropped])
        session.state, session.used_at = state, now
        session.entry_bytes, session.fragment_bytes = entry_bytes, fragment_bytes
        self._num_bytes = others + num_bytes
        self._sessions[session.key] = session
        self._sessions.move_to_end(session.key)
        if self._archive is not None and change.removes_text:
            self._archive.empty_log()
        self._remove(dropped)

    def _pushed_out(self, keep: Key, num_bytes: int, now: float) -> Sequence[Session]:
        """The sessions that must go when `keep` is there and all have `num_bytes` bytes: expired, or too many."""
        num_sessions = len(self) + (keep not in self._sessions)
        gone = []
        for key, session in self._sessions.items():
            fits = num_sessions <= self.limits.max_sessions and num_bytes <= self.limits.max_bytes
            if fits and not self._is_expired(session, now):
                break
            if key != keep:
                gone.append(session)
                num_sessions -= 1
                num_bytes -= session.num_bytes
        return gone

    def _drop(self, sessions: Sequence[Session]) -> None:
        if sessions and self._archive is not None:
            self._archive.drop([session.key for session in sessions])
        self._remove(sessions)

    def _remove(self, sessions: Sequence[Session]) -> None:
        for session in sessions:
            del self._sessions[session.key]
            self._num_bytes -= session.num_bytes
        if self._on_drop is not None:
            for session in sessions:
                self._on_drop(session)

    def _not_found(self, session_id: str) -> NotFound:
        seconds = self.limits.ttl_seconds
        unused = f"{seconds / 86400:g} days" if seconds >= 86400 else f"{seconds:g} seconds"
        return NotFound(
            "session_id",
            f"there is no session {session_id!a}.",
            f"Create it, or send its messages again with this id. Sessions unused for {unused}, and the least recently "
            f"used of more than {self.limits.max_sessions:,}, are dropped.",
        )


def plan_load(stored: Sequence[Stored], limits: SessionLimits, now: float) -> list[Stored]:
    """Which sessions of an archive to keep: in the order given (used last at the end), as many as the bounds allow."""
    fit = [s for s in stored if s.num_bytes <= limits.max_bytes and not limits.expired(s.used_at, now)]
    num_bytes, kept = 0, []
    for entry in reversed(fit[-limits.max_sessions :]):
        num_bytes += entry.num_bytes
        if num_bytes > limits.max_bytes:
            break
        kept.append(entry)
    return kept[::-1]
