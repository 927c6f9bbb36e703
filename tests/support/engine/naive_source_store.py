"""The source store said again in one list: every rule by looking at everything."""

from __future__ import annotations

from collections import Counter

from acmserve.engine.requests.source_store import StoreLimits
from acmserve.plan.owner import Owner
from acmserve.plan.source import ServedSequence


class NaiveSourceStore:
    """`sources` are (owner, source, account) in the order they came, `used` the owners, used last at the end."""

    def __init__(self, limits: StoreLimits) -> None:
        self.limits = limits
        self.sources: list[tuple[Owner, ServedSequence, str]] = []
        self.used: list[Owner] = []
        self.reasons: dict[Owner, str] = {}

    def get(self, owner: Owner) -> list[ServedSequence]:
        found = [source for held, source, _ in self.sources if held == owner]
        if found:
            self._use(owner)
        return found[::-1]

    def forget(self, owner: Owner) -> None:
        """The session of `owner`, whatever adapters served it."""
        gone = {owner, *(held for held, _, _ in self.sources if held.session == owner.session)}
        self.sources = [entry for entry in self.sources if entry[0] not in gone]
        self.reasons = {held: reason for held, reason in self.reasons.items() if held not in gone}

    def add(self, owner: Owner, source: ServedSequence, account: str) -> None:
        if source.num_bytes > self.limits.max_bytes:
            self.reasons[owner] = self.limits.bytes_reason
            return
        self.reasons.pop(owner, None)
        self._use(owner)
        kept = [entry for entry in self.sources if not (entry[0] == owner and source.extends(entry[1]))]
        kept = [(held, old, account if held == owner else whose) for held, old, whose in kept]
        self.sources = [*kept, (owner, source, account)]
        own = [entry for entry in self.sources if entry[0] == owner]
        if len(own) > self.limits.max_sources_per_session:
            self._remove(own[0])
        while len({held for held, _, _ in self.sources}) > self.limits.max_sessions:
            self._drop_session()
        while sum(held.num_bytes for _, held, _ in self.sources) > self.limits.max_bytes:
            self._drop_source()

    def _use(self, owner: Owner) -> None:
        self.used = [*(held for held in self.used if held != owner), owner]

    def _remove(self, gone: tuple[Owner, ServedSequence, str]) -> None:
        self.sources = [entry for entry in self.sources if entry is not gone]

    def _drop_session(self) -> None:
        holdings = Counter(account for _, account in {(owner, account) for owner, _, account in self.sources})
        owner = self._oldest_of_largest(holdings)
        self.sources = [entry for entry in self.sources if entry[0] != owner]
        self.reasons[owner] = self.limits.sessions_reason

    def _drop_source(self) -> None:
        holdings: Counter[str] = Counter()
        for _, source, account in self.sources:
            holdings[account] += source.num_bytes
        owner = self._oldest_of_largest(holdings)
        self._remove(next(entry for entry in self.sources if entry[0] == owner))
        self.reasons[owner] = self.limits.bytes_reason

    def _oldest_of_largest(self, holdings: Counter[str]) -> Owner:
        """Of accounts that hold the same the one whose first letters come last, as the store decides it."""
        largest = max(holdings, key=lambda account: (holdings[account], account))
        owned = {owner for owner, _, account in self.sources if account == largest}
        return next(owner for owner in self.used if owner in owned)
