"""The source store: what every session served before, bounded in sessions, sources and bytes.

It holds token ids and hashes, not KV, and it does not know whether the KV behind a hash still exists. An owner is
(session id, cache salt, adapter): nothing is ever looked up across that line. A session that is served with two
adapters counts as two, and is forgotten as one.

    account A  [ a1 ][ a2 ]                        holds 2 of 6, share 3: loses nothing
    account B  [ b1 ][ b2 ][ b3 ][ b4 ][ b5 ]      holds most: b1, used longest ago, goes first

Decision: while a bound is exceeded, the least recently used session goes of the account that holds most of what is
short, sessions or bytes. An account that holds at most its share, the bound over the number of accounts, loses nothing.
Some account always holds more than that. An account is an API key, and its salts are not counted apart: a client makes
as many salts as it likes. Without keys all clients are one account, and the rule is plain LRU.

Decision: a new source that extends an old one replaces it, so a conversation that only grows stays one source. The
sources of a session are its versions: the text before a fold, after it, after the next fold.
"""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from acmserve.engine.requests.dropped_owners import DroppedOwners
from acmserve.errors import IntegrityError
from acmserve.plan.lineage import order_of
from acmserve.plan.owner import Owner
from acmserve.plan.source import ServedSequence

DROPPED_PER_SESSION = 16
"""Dropped sessions whose reason is remembered, for each session that the store may hold."""


@dataclass(frozen=True, slots=True)
class StoreLimits:
    """Bounds of the store. `max_bytes` counts host memory (token ids and hashes): 4 bytes a token, 72 a block."""

    max_sessions: int = 1024
    max_sources_per_session: int = 8
    max_bytes: int = 256 * 2**20

    @property
    def sessions_reason(self) -> str:
        """`fallback_reason` of a session that was dropped because there are too many."""
        return f"source: dropped, {self.max_sessions} sessions are remembered"

    @property
    def bytes_reason(self) -> str:
        """`fallback_reason` of a session whose sources were dropped, or never taken, because of their size."""
        return f"source: dropped, {self.max_bytes / 2**20:g} MiB of sources are remembered"


@dataclass(slots=True)
class AccountSources:
    """The sessions of one account, least recently used first, with their sources, oldest first."""

    sessions: OrderedDict[Owner, list[ServedSequence]] = field(default_factory=OrderedDict)
    num_bytes: int = 0

    @property
    def num_sessions(self) -> int:
        return len(self.sessions)

    def recount(self) -> int:
        """Bytes of all sources, counted anew."""
        return sum(source.num_bytes for sources in self.sessions.values() for source in sources)


class SourceStore:
    """Sources by owner. `on_drop` gets every source that leaves."""

    def __init__(self, limits: StoreLimits, on_drop: Callable[[ServedSequence], None] = lambda source: None) -> None:
        self.limits = limits
        self._on_drop = on_drop
        self._accounts: dict[str, AccountSources] = {}
        self._account_of: dict[Owner, str] = {}
        self._owners: dict[tuple[str, str | None], list[Owner]] = {}
        self._tails: Counter[bytes] = Counter()
        self._dropped = DroppedOwners(limits.max_sessions * DROPPED_PER_SESSION)

    def __len__(self) -> int:
        return len(self._account_of)

    @property
    def num_bytes(self) -> int:
        return sum(account.num_bytes for account in self._accounts.values())

    def has(self, owner: Owner) -> bool:
        """Whether `owner` has sources. Counts as no use."""
        return owner in self._account_of

    def get(self, owner: Owner) -> tuple[ServedSequence, ...]:
        """The sources of `owner`, newest first. Counts as a use."""
        if owner not in self._account_of:
            return ()
        sessions = self._accounts[self._account_of[owner]].sessions
        sessions.move_to_end(owner)
        return tuple(reversed(sessions[owner]))

    def items(self) -> Iterator[tuple[Owner, ServedSequence]]:
        """Every source with its owner. Counts as no use."""
        for account in self._accounts.values():
            for owner, sources in account.sessions.items():
                for source in sources:
                    yield owner, source

    def add(self, owner: Owner, source: ServedSequence, account: str = "") -> None:
        """Record a served sequence for `account`. Drops what it extends, then whatever exceeds the limits."""
        if source.num_bytes > self.limits.max_bytes:
            self._dropped.note(owner, self.limits.bytes_reason)
            return
        self._dropped.take(owner)
        sources = self._open(owner, account)
        # First, for a source may have states that were kept by the one that it replaces.
        self._tails.update(source.kept_keys)
        for old in [old for old in sources if source.extends(old)]:
            self._drop(owner, old)
        sources.append(source)
        self._accounts[account].num_bytes += source.num_bytes
        while len(sources) > self.limits.max_sources_per_session:
            self._drop(owner, sources[0])
        self._shrink()

    def has_tail(self, key: bytes) -> bool:
        """Whether a source has its partial block, or a state, under `key`."""
        return key in self._tails

    def take_reason(self, owner: Owner) -> str | None:
        """Why sources of `owner` were dropped since it was last added to, once. None where none were."""
        return self._dropped.take(owner)

    def others_of_session(self, owner: Owner) -> list[Owner]:
        """The owners that the session of `owner` has besides: what other adapters served it, or the base model."""
        return [other for other in self._owners.get(owner.session, ()) if other != owner]

    def forget(self, owner: Owner) -> tuple[ServedSequence, ...]:
        """Drop everything of the session of `owner`, with any adapter. Unknown owners are fine.

        Returns what was dropped, newest first, that of `owner` before that of others.
        """
        self._dropped.take(owner)
        dropped = self._empty(owner) if owner in self._account_of else ()
        for other in self.others_of_session(owner):
            self._dropped.take(other)
            dropped += self._empty(other)
        return dropped

    def clear(self) -> None:
        """Drop everything, for instance when the engine's prefix cache was reset."""
        for owner in list(self._account_of):
            self._empty(owner)
        self._dropped.clear()

    def check_integrity(self) -> None:
        """Raise `IntegrityError` with the numbers when a count or a bound is off."""
        unsorted = sum(list(source.marks) != sorted(source.marks, key=order_of) for _, source in self.items())
        if unsorted:
            raise IntegrityError(f"source store: {unsorted} sources whose lineage marks are out of order")
        for name, account in self._accounts.items():
            held = account.recount()
            if held != account.num_bytes:
                raise IntegrityError(f"source store: {held} bytes held, {account.num_bytes} accounted")
            strays = [owner for owner in account.sessions if self._account_of.get(owner) != name]
            if strays or not account.sessions:
                raise IntegrityError(f"source store: {len(strays)} of {account.num_sessions} sessions are misfiled")
        num_filed = sum(account.num_sessions for account in self._accounts.values())
        if num_filed != len(self):
            raise IntegrityError(f"source store: {num_filed} sessions filed, {len(self)} known")
        listed = [owner for owners in self._owners.values() for owner in owners]
        if Counter(listed) != Counter(self._account_of.keys()):
            raise IntegrityError(f"source store: {len(listed)} owners listed by session, {len(self)} known")
        if self.num_bytes > self.limits.max_bytes or len(self) > self.limits.max_sessions:
            raise IntegrityError(f"source store: {self.num_bytes} bytes in {len(self)} sessions exceed {self.limits}")
        counts = [len(sources) for account in self._accounts.values() for sources in account.sessions.values()]
        if max(counts, default=0) > self.limits.max_sources_per_session:
            raise IntegrityError(f"source store: a session has {max(counts)} sources, limits are {self.limits}")
        tails = Counter(key for _, source in self.items() for key in source.kept_keys)
        if tails != self._tails:
            raise IntegrityError(f"source store: {tails.total()} tails held, {self._tails.total()} counted")
        self._dropped.check_integrity()

    def _open(self, owner: Owner, account: str) -> list[ServedSequence]:
        """The sources of `owner`, filed under `account` as the ones used last."""
        before = self._account_of.get(owner)
        sources: list[ServedSequence] = []
        if before is not None and before != account:
            sources = self._accounts[before].sessions[owner]
            self._accounts[before].num_bytes -= sum(source.num_bytes for source in sources)
            self._close(owner)
        held = self._accounts.setdefault(account, AccountSources())
        if before != account:
            held.num_bytes += sum(source.num_bytes for source in sources)
            held.sessions[owner] = sources
            self._account_of[owner] = account
            self._owners.setdefault(owner.session, []).append(owner)
        held.sessions.move_to_end(owner)
        return held.sessions[owner]

    def _empty(self, owner: Owner) -> tuple[ServedSequence, ...]:
        """Drop all sources of a session, and the session. Returns them, newest first."""
        dropped = tuple(reversed(self._accounts[self._account_of[owner]].sessions[owner]))
        for source in dropped:
            self._drop(owner, source)
        self._close(owner)
        return dropped

    def _close(self, owner: Owner) -> None:
        """Take a session out of its account, and the account out when it was the last one."""
        name = self._account_of.pop(owner)
        self._owners[owner.session].remove(owner)
        if not self._owners[owner.session]:
            del self._owners[owner.session]
        del self._accounts[name].sessions[owner]
        if not self._accounts[name].sessions:
            del self._accounts[name]

    def _shrink(self) -> None:
        while len(self) > self.limits.max_sessions:
            _, _, largest = max((held.num_sessions, name, held) for name, held in self._accounts.items())
            owner = next(iter(largest.sessions))
            self._empty(owner)
            self._dropped.note(owner, self.limits.sessions_reason)
        while self.num_bytes > self.limits.max_bytes:
            _, _, largest = max((held.num_bytes, name, held) for name, held in self._accounts.items())
            owner, sources = next(iter(largest.sessions.items()))
            self._drop(owner, sources[0])
            if not sources:
                self._close(owner)
            self._dropped.note(owner, self.limits.bytes_reason)

    def _drop(self, owner: Owner, source: ServedSequence) -> None:
        account = self._accounts[self._account_of[owner]]
        account.sessions[owner].remove(source)
        account.num_bytes -= source.num_bytes
        for key in source.kept_keys:
            self._tails[key] -= 1
            if not self._tails[key]:
                del self._tails[key]
        self._on_drop(source)
