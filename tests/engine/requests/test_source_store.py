"""The source store under random use: bounds hold, nothing of a dropped source stays."""

from __future__ import annotations

from dataclasses import replace
from random import Random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from acmserve.engine.requests.dropped_owners import DroppedOwners
from acmserve.engine.requests.served_source import with_tail
from acmserve.engine.requests.source_store import SourceStore, StoreLimits
from acmserve.errors import IntegrityError
from acmserve.plan.owner import Adapter, Owner
from acmserve.plan.source import ServedSequence
from tests.support.engine.naive_source_store import NaiveSourceStore

LIMITS = StoreLimits(max_sessions=3, max_sources_per_session=2, max_bytes=2500)
SQL = Adapter("sql", "/sql", 1)
owners = st.builds(Owner, st.sampled_from("abcd"), st.sampled_from([None, "salt"]), st.sampled_from([None, SQL]))
accounts = st.sampled_from(["", "one", "two"])


def make(num_tokens: int, fill: int) -> ServedSequence:
    tokens = np.full(num_tokens, fill, dtype=np.int32)
    return ServedSequence(tokens, 16, tuple(b"%d" % i for i in range(num_tokens // 16)))


class StoreMachine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.dropped: list[ServedSequence] = []
        self.added: list[ServedSequence] = []
        self.store = SourceStore(LIMITS, self.dropped.append)
        self.naive = NaiveSourceStore(LIMITS)

    @rule(owner=owners, num_tokens=st.integers(1, 700), fill=st.integers(0, 2), account=accounts)
    def add(self, owner: Owner, num_tokens: int, fill: int, account: str) -> None:
        source = make(num_tokens, fill)
        self.store.add(owner, source, account)
        self.naive.add(owner, source, account)
        self.added.append(source)

    @rule(owner=owners)
    def ask(self, owner: Owner) -> None:
        assert list(self.store.get(owner)) == self.naive.get(owner)

    @rule(owner=owners)
    def take_reason(self, owner: Owner) -> None:
        assert self.store.take_reason(owner) == self.naive.reasons.pop(owner, None)

    @rule(owner=owners)
    def forget(self, owner: Owner) -> None:
        self.store.forget(owner)
        self.naive.forget(owner)
        assert self.store.get(owner) == ()
        assert self.store.others_of_session(owner) == []

    @rule()
    def clear(self) -> None:
        self.store.clear()
        self.naive = NaiveSourceStore(LIMITS)
        assert self.store.num_bytes == 0

    @invariant()
    def bounds_hold(self) -> None:
        self.store.check_integrity()

    @invariant()
    def every_source_is_held_or_was_dropped(self) -> None:
        held = {id(source) for _, source in self.store.items()}
        assert held.isdisjoint(id(s) for s in self.dropped)

    @invariant()
    def it_holds_what_the_naive_store_holds(self) -> None:
        held = {(owner, id(source)) for owner, source in self.store.items()}
        assert held == {(owner, id(source)) for owner, source, _ in self.naive.sources}


StoreMachine.TestCase.settings = settings(max_examples=60, stateful_step_count=30, deadline=None)
TestStore = StoreMachine.TestCase


def test_a_growing_conversation_stays_one_source() -> None:
    store = SourceStore(StoreLimits())
    for num_tokens in (50, 80, 200):
        store.add(Owner("s"), make(num_tokens, 1))
    assert [s.num_tokens for s in store.get(Owner("s"))] == [200]


def test_a_source_has_the_states_of_the_one_that_it_extends() -> None:
    """They are given up with the last source that has them."""
    released: list[bytes] = []

    def release(source: ServedSequence) -> None:
        released.extend(key for key in source.kept_keys if not store.has_tail(key))

    store = SourceStore(StoreLimits(max_sources_per_session=2), release)
    first = with_tail(make(50, 1), b"end of the first", has_state=True)
    store.add(Owner("s"), first)
    second = with_tail(replace(make(80, 1), states=first.states), b"end of the second", has_state=True)
    store.add(Owner("s"), second)
    assert [state.num_tokens for state in second.states] == [50, 80]
    assert released == []
    store.check_integrity()
    store.add(Owner("s"), with_tail(make(90, 1), b"another", has_state=True))
    assert released == [b"end of the first", b"end of the second"]
    store.check_integrity()


def test_sessions_and_salts_are_apart_and_the_newest_comes_first() -> None:
    store = SourceStore(StoreLimits())
    store.add(Owner("s"), make(50, 1))
    store.add(Owner("s"), make(50, 2))
    store.add(Owner("s", "salt"), make(50, 3))
    assert [int(s.tokens[0]) for s in store.get(Owner("s"))] == [2, 1]
    assert [int(s.tokens[0]) for s in store.get(Owner("s", "salt"))] == [3]
    assert store.get(Owner("t")) == ()


def test_the_least_recently_used_session_goes_first() -> None:
    store = SourceStore(StoreLimits(max_sessions=2))
    store.add(Owner("a"), make(50, 1))
    store.add(Owner("b"), make(50, 1))
    store.get(Owner("a"))
    store.add(Owner("c"), make(50, 1))
    assert store.get(Owner("b")) == ()
    assert store.get(Owner("a")) != ()


@settings(max_examples=15, deadline=None)
@given(victims=st.lists(st.integers(1, 70), min_size=1, max_size=4), sprayed=st.integers(1, 250), seed=st.integers())
def test_sprayed_sessions_take_none_of_another_account(victims: list[int], sprayed: int, seed: int) -> None:
    """The victim holds at most its share, half of either bound. Ten thousand sessions of another account come."""
    store, rng = SourceStore(StoreLimits(max_sessions=8, max_bytes=6000)), Random(seed)
    for index, num_tokens in enumerate(victims):
        store.add(Owner(f"victim-{index}"), make(num_tokens, 1), "victim")
    before = [store.get(Owner(f"victim-{index}")) for index in range(len(victims))]
    for index in range(10_000):
        salt = str(index) if index % 2 else None
        store.add(Owner(f"sprayed-{index}", salt), make(rng.randint(1, sprayed), 2), "attacker")
    store.check_integrity()
    assert [store.get(Owner(f"victim-{index}")) for index in range(len(victims))] == before
    assert all(store.take_reason(Owner(f"victim-{index}")) is None for index in range(len(victims)))


def test_one_account_may_have_everything() -> None:
    store = SourceStore(StoreLimits(max_sessions=4))
    for index in range(4):
        store.add(Owner(str(index)), make(50, 1), "only")
    assert len(store) == 4


def test_a_dropped_source_has_its_reason_once() -> None:
    store = SourceStore(StoreLimits(max_sessions=2))
    for name in "abc":
        store.add(Owner(name), make(50, 1))
    assert store.take_reason(Owner("a")) == "source: dropped, 2 sessions are remembered"
    assert [store.take_reason(Owner(name)) for name in "abc"] == [None, None, None]


def test_a_source_that_is_too_large_has_its_reason() -> None:
    store = SourceStore(StoreLimits(max_bytes=2**20))
    store.add(Owner("s"), make(2**18, 1))
    assert store.get(Owner("s")) == ()
    assert store.take_reason(Owner("s")) == "source: dropped, 1 MiB of sources are remembered"


def test_a_session_that_is_served_again_has_no_reason() -> None:
    store = SourceStore(StoreLimits(max_sessions=1))
    for name in "aba":
        store.add(Owner(name), make(50, 1))
    assert store.take_reason(Owner("a")) is None
    assert store.take_reason(Owner("b")) is not None


def test_the_memory_of_dropped_sessions_is_bounded() -> None:
    dropped = DroppedOwners(2)
    for name in "abc":
        dropped.note(Owner(name), name)
    assert [dropped.take(Owner(name)) for name in "abc"] == [None, "b", "c"]
    dropped._max_owners = 0
    dropped.note(Owner("d"), "d")
    assert len(dropped) == 0
    dropped._reasons[b"stray"] = "?"
    with pytest.raises(IntegrityError, match="1 noted, 0 allowed"):
        dropped.check_integrity()


def test_a_session_that_changes_its_account_is_counted_there() -> None:
    store = SourceStore(StoreLimits())
    store.add(Owner("s"), make(50, 1), "one")
    store.add(Owner("s"), make(50, 2), "two")
    store.check_integrity()
    assert {name: account.num_sessions for name, account in store._accounts.items()} == {"two": 1}


def test_integrity_prints_the_numbers() -> None:
    store = SourceStore(StoreLimits())
    store.add(Owner("s"), make(50, 1))
    store._accounts[""].num_bytes += 7
    with pytest.raises(IntegrityError, match=r"\d+ bytes held, \d+ accounted"):
        store.check_integrity()
    store._accounts[""].num_bytes -= 7
    store._account_of[Owner("t")] = ""
    with pytest.raises(IntegrityError, match="1 sessions filed, 2 known"):
        store.check_integrity()
    store._account_of = {Owner("s"): "else"}
    with pytest.raises(IntegrityError, match="1 of 1 sessions are misfiled"):
        store.check_integrity()
