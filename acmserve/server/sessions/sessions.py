"""The sessions of this server: the store, whose they are, who may change one now, what the engine has to forget.

A session belongs to the API key that made it (on a server that has keys) and to its cache salt. One call at a time
changes a session: who changes one holds its lock, a server loop for the whole turn.

Knows no routes, no budgets and no engine, but for the name that a session has there.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from weakref import WeakValueDictionary

from acmserve.context.storage.session import Key, Session
from acmserve.context.storage.session_store import SessionStore
from acmserve.server.http.tenants import Tenants

MAX_DELETED = 4096


class Sessions:
    """See the module. Of deleted sessions the last `MAX_DELETED` are remembered, for the engine has to forget them."""

    def __init__(self, store: SessionStore, *, has_api_keys: bool = False) -> None:
        self.store = store
        self._tenants = Tenants(has_api_keys)
        self._redacted: set[Key] = set()
        self._deleted: OrderedDict[Key, None] = OrderedDict()
        self._locks: WeakValueDictionary[Key, asyncio.Lock] = WeakValueDictionary()

    def tenant_of(self, headers: Mapping[str, str], cache_salt: str | None = None) -> str:
        """The tenant of a request."""
        return self._tenants.of(headers, cache_salt)

    @asynccontextmanager
    async def locked(self, session: Session) -> AsyncIterator[None]:
        """Hold the session: nobody else changes it meanwhile."""
        lock = self._locks.get(session.key)
        if lock is None:
            lock = self._locks[session.key] = asyncio.Lock()
        async with lock:
            yield

    def delete(self, session: Session) -> None:
        """Delete a session. The engine forgets what it served to it with the next request of that name.

        Of many deleted sessions only the last ones are remembered for that; the engine's own memory is bounded too.
        What a branch was served goes with its parent, under whose name it was; what was redacted in it goes first.
        """
        self.store.delete(*session.key)
        if session.state.parent is None:
            self._deleted[session.key] = None
        elif session.key in self._redacted:
            self._redacted.add(engine_key(session))
        self._redacted.discard(session.key)
        while len(self._deleted) > MAX_DELETED:
            self._deleted.popitem(last=False)

    def forget(self, session: Session) -> None:
        """Something in the session was redacted: its next request has the engine forget."""
        self._redacted.add(session.key)

    def must_forget(self, session: Session) -> bool:
        """Whether the next request of this session has the engine forget what it was served."""
        return session.key in self._redacted or session.key in self._deleted

    def forgotten(self, session: Session) -> None:
        """The engine has forgotten."""
        self._redacted.discard(session.key)
        self._deleted.pop(session.key, None)


def engine_key(session: Session) -> Key:
    """Whose name a session has in the engine: a branch goes by that of its parent, whose KV it shares."""
    parent = session.state.parent
    return session.key if parent is None else (session.tenant, parent.session_id)
