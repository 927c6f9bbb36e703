"""Sessions whose next request has the engine forget what it served to them: redacted ones, and deleted ones.

    account A   [ oldest ... newest ]      at most `max_per_account`, then the oldest goes
    account B   [ ... ]                    counts for itself: nobody pushes out what another key wants forgotten

Knows keys of sessions. Does not know the engine. Its own memory of sources is smaller than these bounds: what falls out
here was dropped there, unless its session was made, redacted and left without an answer between.
"""

from __future__ import annotations

from collections import OrderedDict

from acmserve.context.storage.fair_share import account_of
from acmserve.context.storage.session import Key


class PendingForgets:
    """See the module."""

    def __init__(self, max_per_account: int) -> None:
        self._max_per_account = max_per_account
        self._accounts: dict[str, OrderedDict[Key, None]] = {}

    def __len__(self) -> int:
        return sum(map(len, self._accounts.values()))

    def __contains__(self, key: Key) -> bool:
        return key in self._accounts.get(account_of(key), ())

    def add(self, key: Key) -> None:
        """Have this session forgotten, as the last one of its account."""
        pending = self._accounts.setdefault(account_of(key), OrderedDict())
        pending[key] = None
        pending.move_to_end(key)
        while len(pending) > self._max_per_account:
            pending.popitem(last=False)

    def discard(self, key: Key) -> None:
        """It was forgotten, or there is nothing to forget."""
        pending = self._accounts.get(account_of(key))
        if pending is not None:
            pending.pop(key, None)
            if not pending:
                del self._accounts[account_of(key)]
