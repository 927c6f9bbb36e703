"""What happens to sessions, told to whoever listens: the inspector, a monitor.

    turn, edit, eviction --publish--> [ waiting events of reader 1 ] --> its stream
                                  --> [ waiting events of reader 2 ] --> its stream

Decision: a publisher never waits. A reader that does not take its events in time loses them all, hears that it was
dropped, and its stream ends. It reads the sessions again and listens anew. An event says that something happened and
carries no text of a conversation. A reader hears of one tenant alone. Until the first reader comes nothing is told,
and `is_heard` is false. So a turn that nobody watches does not come here. It knows no HTTP.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal
from weakref import WeakSet

from acmserve.context.storage.head import head_of
from acmserve.context.storage.session import Key, Session
from acmserve.context.storage.session_store import SessionStore
from acmserve.errors import IntegrityError, Unavailable
from acmserve.server.http.tenants import account_of

MAX_READERS = 32
"""Streams that one API key may have open at the same time, all its salts together."""
MAX_WAITING = 256
"""Events that may wait for one reader."""

EventKind = Literal["opened", "turn_started", "turn_failed", "changed", "deleted", "dropped"]


@dataclass(frozen=True, slots=True)
class SessionEvent:
    """`fields` are what is known beside the kind, as JSON has it. `session_id` is "" where it is about no session."""

    kind: EventKind
    session_id: str = ""
    fields: tuple[tuple[str, Any], ...] = ()

    def as_json(self) -> dict[str, Any]:
        """The data of the event."""
        return {"type": self.kind, "session_id": self.session_id, **dict(self.fields)}


class EventReader:
    """One stream. Use in a `with`, so that it is forgotten when the stream ends."""

    def __init__(self, tenant: str, session_id: str | None, forget: Callable[[EventReader], None]) -> None:
        self.tenant = tenant
        self.session_id = session_id
        self.is_dropped = False
        self._waiting: deque[SessionEvent] = deque([SessionEvent("opened")])
        self._came = asyncio.Event()
        self._forget = forget

    def __enter__(self) -> EventReader:
        return self

    def __exit__(self, *_: object) -> None:
        self._forget(self)

    def push(self, event: SessionEvent) -> None:
        """Put an event behind those that wait. One too many drops the reader with all of them.

        Of changes of one session in a row the last one stays.
        """
        if self.is_dropped or self.session_id not in (None, event.session_id):
            return
        last = self._waiting[-1] if self._waiting else None
        if last is not None and event.kind == last.kind == "changed" and event.session_id == last.session_id:
            self._waiting.pop()
        if len(self._waiting) >= MAX_WAITING:
            self.is_dropped = True
            self._waiting = deque([SessionEvent("dropped")])
        else:
            self._waiting.append(event)
        self._came.set()

    async def wait(self, seconds: float) -> list[SessionEvent]:
        """All that waits, or that comes in so many seconds, oldest first."""
        if not self._waiting:
            try:
                async with asyncio.timeout(seconds):
                    await self._came.wait()
            except TimeoutError:
                return []
        taken, self._waiting = list(self._waiting), deque()
        self._came.clear()
        return taken

    @property
    def num_waiting(self) -> int:
        """Events that wait."""
        return len(self._waiting)


class SessionEvents:
    """All readers of a server. One thread at a time, as on a server's event loop.

    A reader whose stream was never begun is forgotten with it, so they are held weakly. With the first one, `store`
    tells of every new state of a session. `is_heard` is true from then on.
    """

    def __init__(self, store: SessionStore | None = None) -> None:
        self.is_heard = False
        self._store = store
        self._readers: WeakSet[EventReader] = WeakSet()

    def __len__(self) -> int:
        """Open readers."""
        return len(self._readers)

    def read(self, tenant: str, session_id: str | None = None) -> EventReader:
        """Listen to a session, or to all of a tenant. Raises `Unavailable` where its API key has too many streams."""
        num_open = sum(account_of(reader.tenant) == account_of(tenant) for reader in self._readers)
        if num_open >= MAX_READERS:
            raise Unavailable(f"{num_open} event streams of this API key are open, the most there may be. Close one.")
        reader = EventReader(tenant, session_id, self._readers.discard)
        self._readers.add(reader)
        self.is_heard = True
        if self._store is not None:
            self._store.on_saved = self.publish_saved
        return reader

    def publish(self, key: Key, kind: EventKind, **fields: Any) -> None:
        """Tell the readers of the session's tenant. Nobody waits for them."""
        tenant, session_id = key
        event = SessionEvent(kind, session_id, tuple(fields.items()))
        for reader in self._readers:
            if reader.tenant == tenant:
                reader.push(event)

    def publish_saved(self, session: Session) -> None:
        """Tell that a session has a new state, and how large it is."""
        if all(reader.tenant != session.tenant for reader in self._readers):
            return
        head = head_of(session)
        self.publish(
            session.key,
            "changed",
            used_at=head.used_at,
            num_messages=head.num_messages,
            num_fragments=head.num_fragments,
            num_hidden_fragments=head.num_hidden_fragments,
        )

    def check_integrity(self) -> None:
        """Raise `IntegrityError` where a reader holds too much, or was dropped and holds more than that word."""
        for reader in self._readers:
            if reader.num_waiting > (1 if reader.is_dropped else MAX_WAITING):
                raise IntegrityError(
                    f"events: {reader.num_waiting} wait for one reader, at most {MAX_WAITING} may; "
                    f"dropped: {reader.is_dropped}"
                )
