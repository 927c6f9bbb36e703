"""Who is pushed out: the account that holds most, against a naive twin. Also what nobody can take from another."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from acmserve.context.storage.fair_share import account_of, plan_victims, room
from acmserve.context.storage.session import Bound, Key, SessionLimits
from acmserve.context.storage.session_store import SessionStore
from tests.support.context.naive_fair_share import naive_room, naive_victims

KEYS = st.tuples(st.sampled_from(["", "/x", "a", "a/x", "b", "c"]), st.sampled_from("123456"))
SIZES = st.dictionaries(KEYS, st.integers(0, 40), max_size=20)
BOUNDS = st.builds(Bound, st.integers(1, 12), st.integers(1, 200))


@given(SIZES, BOUNDS, st.sets(KEYS))
def test_the_plan_is_that_of_the_naive_twin(sizes: dict[Key, int], bound: Bound, spared: set[Key]) -> None:
    assert plan_victims(sizes, bound, spared.__contains__) == naive_victims(sizes, bound, spared)


@given(SIZES, BOUNDS, st.sets(KEYS))
def test_an_account_within_its_share_loses_nothing(sizes: dict[Key, int], bound: Bound, spared: set[Key]) -> None:
    victims = plan_victims(sizes, bound, spared.__contains__)
    accounts = {account_of(key) for key in sizes}
    for account in accounts:
        own = [size for key, size in sizes.items() if account_of(key) == account]
        fits = len(own) * len(accounts) <= bound.max_sessions and sum(own) * len(accounts) <= bound.max_bytes
        assert not fits or account not in {account_of(key) for key in victims}


@given(SIZES, BOUNDS, KEYS, st.floats(0, 1))
def test_a_session_within_its_room_fits(sizes: dict[Key, int], bound: Bound, keep: Key, part: float) -> None:
    most = room(keep, sizes, bound)
    assert most == naive_room(keep, sizes, bound)
    sizes |= {keep: int(part * most)}
    left = sizes.keys() - set(plan_victims(sizes, bound, lambda key: key == keep))
    assert len(left) <= bound.max_sessions
    assert sum(sizes[key] for key in left) <= bound.max_bytes


def test_sprayed_sessions_of_one_key_take_none_of_another() -> None:
    """Under salts of its own, too."""
    store = SessionStore(SessionLimits(max_sessions=64))
    for number in range(32):
        store.create("a", f"mine-{number}")
    for number in range(10_000):
        store.create("b" if number % 2 else f"b/{number}", f"sprayed-{number}")
    assert [head.session_id for head in store.list("a")] == [f"mine-{number}" for number in reversed(range(32))]
    assert len(store) == 64
    store.check_integrity()
