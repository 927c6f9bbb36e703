"""Removals of text that the engine has to forget: a redaction or a deletion, under the session's name in the engine.

    removal 7 --> pending until a request that was made after it has its receipt
                  pending again when a request that was made before it is sent after it

    account A   [ oldest ... newest ]      at most `max_per_account`, then the oldest goes
    account B   [ ... ]                    counts for itself: nobody pushes out what another key wants forgotten

Knows keys of sessions. Does not know the engine. The engine's own memory of sources is smaller than these bounds. So
what falls out here was dropped there, unless its session was made, redacted and left without an answer in between.

Decision: removals are numbered, because requests run beside them. A request that was made before a removal does not
acknowledge it. Where that request reaches the engine late, its text has to be forgotten once more.
"""

from __future__ import annotations

from collections import OrderedDict

from acmserve.context.storage.fair_share import account_of
from acmserve.context.storage.session import Key


class PendingForgets:
    """`num_removals` counts all of them. It is what a request that is made now has seen. `num_pending` are not done."""

    def __init__(self, max_per_account: int) -> None:
        self.num_removals = 0
        self.num_pending = 0
        self._max_per_account = max_per_account
        self._pending: dict[str, OrderedDict[Key, int]] = {}
        self._recent: dict[str, OrderedDict[Key, int]] = {}

    def __contains__(self, key: Key) -> bool:
        return key in self._pending.get(account_of(key), ())

    def add(self, key: Key) -> None:
        """Have what this session was served forgotten, as the last one of its account."""
        self.num_removals += 1
        for removals in (self._pending, self._recent):
            of_account = removals.setdefault(account_of(key), OrderedDict())
            of_account[key] = self.num_removals
            of_account.move_to_end(key)
            while len(of_account) > self._max_per_account:
                of_account.popitem(last=False)
        self.num_pending = sum(map(len, self._pending.values()))

    def send(self, key: Key, num_seen: int) -> None:
        """A request of this session goes to the engine that has seen `num_seen` removals, and no later one."""
        if self.is_later(key, num_seen):
            self.add(key)

    def is_later(self, key: Key, num_seen: int) -> bool:
        """Whether something of this session was removed that a request has not seen, which saw `num_seen` removals."""
        of_account = self._recent.get(account_of(key))
        return of_account is not None and of_account.get(key, 0) > num_seen

    def acknowledge(self, key: Key, num_seen: int) -> None:
        """The engine has forgotten what was removed before a request was made that has seen `num_seen` removals."""
        of_account = self._pending.get(account_of(key))
        if of_account is not None and of_account.get(key, num_seen + 1) <= num_seen:
            del of_account[key]
            self.num_pending -= 1
            if not of_account:
                del self._pending[account_of(key)]
