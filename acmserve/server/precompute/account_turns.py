"""One holder at a time, and of those who wait each account in turn: an API key with many sessions waits for itself.

    account A    a1 holds    a2 a3 a4 wait
    account B                b1 waits            next: a2, b1, a3, a4, for A came first

It does not know what is held. Who is cancelled while waiting leaves no trace.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict, deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from acmserve.errors import IntegrityError


class AccountTurns:
    """See the module. For the tasks of one event loop."""

    def __init__(self) -> None:
        self._waiting: OrderedDict[str, deque[asyncio.Future[None]]] = OrderedDict()
        self._is_held = False

    @asynccontextmanager
    async def turn(self, account: str) -> AsyncIterator[None]:
        """Hold it, once it is the turn of this account."""
        if self._is_held:
            await self._wait(account)
        self._is_held = True
        try:
            yield
        finally:
            self._pass_on()

    async def _wait(self, account: str) -> None:
        called = asyncio.get_running_loop().create_future()
        self._waiting.setdefault(account, deque()).append(called)
        try:
            await called
        except asyncio.CancelledError:
            if called.cancelled():
                self._leave(account, called)
            else:
                self._pass_on()
            raise

    def _leave(self, account: str, called: asyncio.Future[None]) -> None:
        queue = self._waiting[account]
        queue.remove(called)
        if not queue:
            del self._waiting[account]

    def _pass_on(self) -> None:
        """Call the first of the account whose turn it is. It is held until that one wakes up, so nobody slips in."""
        for account in list(self._waiting):
            queue = self._waiting[account]
            called = next((each for each in queue if not each.done()), None)
            if called is not None:
                self._leave(account, called)
                if account in self._waiting:
                    self._waiting.move_to_end(account)
                called.set_result(None)
                return
        self._is_held = False

    def check_integrity(self) -> None:
        """Raise `IntegrityError` when somebody waits for what nobody holds, or an account without anybody does."""
        num_waiting = sum(map(len, self._waiting.values()))
        if (num_waiting and not self._is_held) or not all(self._waiting.values()):
            raise IntegrityError(f"turns: {num_waiting} of {len(self._waiting)} accounts wait, held: {self._is_held}")
