"""The rule of `fair_share.py` in the plainest words: everything counted anew for each session that goes."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from acmserve.context.storage.session import Bound, Key


def naive_victims(sizes: Mapping[Key, int], bound: Bound, spared: Collection[Key]) -> list[Key]:
    """What goes of sessions in the order of their use."""
    left, gone = dict(sizes), list[Key]()
    num_accounts = len({account(key) for key in sizes})
    while len(left) > bound.max_sessions or sum(left.values()) > bound.max_bytes:
        by_count = len(left) > bound.max_sessions
        share = (bound.max_sessions if by_count else bound.max_bytes) / num_accounts
        held = {
            account(key): sum(1 if by_count else left[k] for k in left if account(k) == account(key)) for key in left
        }
        candidates = [key for key in left if key not in spared and held[account(key)] > share]
        if not candidates:
            break
        most = max(held[account(key)] for key in candidates)
        victim = next(key for key in candidates if held[account(key)] == most)
        gone.append(victim)
        del left[victim]
    return gone


def naive_room(key: Key, sizes: Mapping[Key, int], bound: Bound) -> int:
    """The most bytes that a session may have beside the others."""
    others = {account(other) for other in sizes} - {account(key)}
    share = bound.max_bytes // (len(others) + 1)
    held = [sum(size for k, size in sizes.items() if account(k) == other) for other in others]
    return bound.max_bytes - sum(min(share, num_bytes) for num_bytes in held)


def account(key: Key) -> str:
    """The API key's part of a tenant."""
    return key[0].split("/")[0]
