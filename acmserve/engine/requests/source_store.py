"""The source store: what every session served before, bounded in sessions, sources and bytes.

Sessions are kept in order of use and the least recently used one goes first. It holds token ids and hashes, not KV,
and it does not know whether the KV behind a hash still exists. A session is (session id, cache salt): nothing is ever
looked up across that line.

Decision: a new source that extends an old one replaces it, so a conversation that only grows stays one source. The
sources of a session are its versions: the text before a fold, after it, after the next fold.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass

from acmserve.errors import IntegrityError
from acmserve.plan.lineage import order_of
from acmserve.plan.source import ServedSequence

Owner = tuple[str, str | None]


@dataclass(frozen=True, slots=True)
class StoreLimits:
    """Bounds of the store. `max_bytes` counts host memory (token ids and hashes): 4 bytes a token, 72 a block."""

    max_sessions: int = 1024
    max_sources_per_session: int = 8
    max_bytes: int = 256 * 2**20


class SourceStore:
    """Sources by owner, least recently used first. `on_drop` gets every source that leaves."""

    def __init__(self, limits: StoreLimits, on_drop: Callable[[ServedSequence], None] = lambda source: None) -> None:
        self.limits = limits
        self._on_drop = on_drop
        self._sessions: OrderedDict[Owner, list[ServedSequence]] = OrderedDict()
        self._num_bytes = 0

    def __len__(self) -> int:
        return len(self._sessions)

    @property
    def num_bytes(self) -> int:
        return self._num_bytes

    def get(self, owner: Owner) -> tuple[ServedSequence, ...]:
        """The sources of `owner`, newest first. Counts as a use."""
        sources = self._sessions.get(owner)
        if sources is None:
            return ()
        self._sessions.move_to_end(owner)
        return tuple(reversed(sources))

    def add(self, owner: Owner, source: ServedSequence) -> None:
        """Record a served sequence. Drops what it extends, then whatever exceeds the limits."""
        if source.num_bytes > self.limits.max_bytes:
            return
        sources = self._sessions.setdefault(owner, [])
        self._sessions.move_to_end(owner)
        for old in [old for old in sources if source.extends(old)]:
            self._drop(sources, old)
        sources.append(source)
        self._num_bytes += source.num_bytes
        while len(sources) > self.limits.max_sources_per_session:
            self._drop(sources, sources[0])
        while len(self._sessions) > self.limits.max_sessions or self._num_bytes > self.limits.max_bytes:
            self._drop_oldest()

    def forget(self, owner: Owner) -> tuple[ServedSequence, ...]:
        """Drop everything of `owner`. Returns what was dropped, newest first. Unknown owners are fine."""
        dropped = tuple(reversed(self._sessions.get(owner, ())))
        for source in dropped:
            self._drop(self._sessions[owner], source)
        self._sessions.pop(owner, None)
        return dropped

    def clear(self) -> None:
        """Drop everything, for instance when the engine's prefix cache was reset."""
        for owner in list(self._sessions):
            self.forget(owner)

    def check_integrity(self) -> None:
        """Raise `IntegrityError` with the numbers when the byte count or a bound is off."""
        held = sum(source.num_bytes for sources in self._sessions.values() for source in sources)
        unsorted = sum(
            list(source.marks) != sorted(source.marks, key=order_of)
            for sources in self._sessions.values()
            for source in sources
        )
        if unsorted:
            raise IntegrityError(f"source store: {unsorted} sources whose lineage marks are out of order")
        longest = max((len(sources) for sources in self._sessions.values()), default=0)
        if held != self._num_bytes:
            raise IntegrityError(f"source store: {held} bytes held, {self._num_bytes} accounted")
        if held > self.limits.max_bytes or len(self) > self.limits.max_sessions:
            raise IntegrityError(f"source store: {held} bytes in {len(self)} sessions exceed {self.limits}")
        if longest > self.limits.max_sources_per_session:
            raise IntegrityError(f"source store: a session has {longest} sources, limits are {self.limits}")

    def _drop(self, sources: list[ServedSequence], source: ServedSequence) -> None:
        sources.remove(source)
        self._num_bytes -= source.num_bytes
        self._on_drop(source)

    def _drop_oldest(self) -> None:
        owner, sources = next(iter(self._sessions.items()))
        if sources:
            self._drop(sources, sources[0])
        if not sources:
            del self._sessions[owner]
