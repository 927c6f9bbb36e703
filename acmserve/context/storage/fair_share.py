"""Which sessions go when there are too many: a rule that is fair between accounts. Pure functions.

    account A  [ a1 ][ a2 ]                          holds 2 of 6, share 3: loses nothing
    account B  [ b1 ][ b2 ][ b3 ][ b4 ][ b5 ]        holds most: b1, used longest ago, goes first

The rule: while a bound is exceeded, the account that holds most of what is short loses its least recently used session.
What is short is sessions or bytes. An account that holds at most its share, the bound over the number of accounts,
loses nothing. By the pigeonhole principle some account always holds more than that.

An account is an API key. The salts of one key share its account, for a client makes as many salts as it likes. Without
keys all clients are one account, and the rule is plain LRU. It knows keys and sizes, neither sessions nor files.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field

from acmserve.context.storage.session import Bound, Key


@dataclass(slots=True)
class _Holding:
    """What one account holds in a plan, and its sessions that may go, with their age, used longest ago first."""

    num_sessions: int = 0
    num_bytes: int = 0
    left: list[tuple[int, Key]] = field(default_factory=list)
    num_gone: int = 0

    @property
    def next(self) -> tuple[int, Key] | None:
        return self.left[self.num_gone] if self.num_gone < len(self.left) else None


def plan_victims(sizes: Mapping[Key, int], bound: Bound, is_spared: Callable[[Key], bool]) -> list[Key]:
    """What goes of sessions of these sizes, used longest ago first. Nothing that is spared or within a share goes.

    The bound stays exceeded only by what is spared, see `room`.
    """
    holdings: dict[str, _Holding] = defaultdict(_Holding)
    for age, (key, num_bytes) in enumerate(sizes.items()):
        holding = holdings[account_of(key)]
        holding.num_sessions += 1
        holding.num_bytes += num_bytes
        if not is_spared(key):
            holding.left.append((age, key))
    return list(_victims(sizes, bound, list(holdings.values())))


def _victims(sizes: Mapping[Key, int], bound: Bound, holdings: list[_Holding]) -> Iterator[Key]:
    num_sessions, num_bytes = len(sizes), sum(sizes.values())
    while num_sessions > bound.max_sessions or num_bytes > bound.max_bytes:
        by_count = num_sessions > bound.max_sessions
        limit = bound.max_sessions if by_count else bound.max_bytes
        ranked = [
            (held, -holding.next[0], holding)
            for holding in holdings
            if holding.next is not None
            if (held := holding.num_sessions if by_count else holding.num_bytes) * len(holdings) > limit
        ]
        if not ranked:
            return
        # Of two that hold as much, that whose session was used longest ago: ages are distinct.
        chosen = max(ranked, key=lambda item: item[:2])[2]
        _, victim = chosen.left[chosen.num_gone]
        chosen.num_gone += 1
        chosen.num_sessions, num_sessions = chosen.num_sessions - 1, num_sessions - 1
        chosen.num_bytes, num_bytes = chosen.num_bytes - sizes[victim], num_bytes - sizes[victim]
        yield victim


def room(key: Key, sizes: Mapping[Key, int], bound: Bound) -> int:
    """The most bytes that one session may have: what the fair shares of the other accounts leave of the bound.

    A session that is no larger fits once `plan_victims` has gone, where nothing else is spared.
    """
    held: dict[str, int] = defaultdict(int)
    for other, num_bytes in sizes.items():
        held[account_of(other)] += num_bytes
    held.pop(account_of(key), None)
    share = bound.max_bytes // (len(held) + 1)
    return bound.max_bytes - sum(min(num_bytes, share) for num_bytes in held.values())


def account_of(key: Key) -> str:
    """Whose quota a session counts against: the part of its tenant that stands for the API key."""
    return key[0].partition("/")[0]
