"""The source store under random use: bounds hold, nothing of a dropped source stays."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from acmserve.engine.requests.source_store import SourceStore, StoreLimits
from acmserve.errors import IntegrityError
from acmserve.plan.source import ServedSequence

LIMITS = StoreLimits(max_sessions=3, max_sources_per_session=2, max_bytes=2500)
owners = st.tuples(st.sampled_from("abcd"), st.sampled_from([None, "salt"]))


def make(num_tokens: int, fill: int) -> ServedSequence:
    tokens = np.full(num_tokens, fill, dtype=np.int32)
    return ServedSequence(tokens, 16, tuple(b"%d" % i for i in range(num_tokens // 16)))


class StoreMachine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.dropped: list[ServedSequence] = []
        self.added: list[ServedSequence] = []
        self.store = SourceStore(LIMITS, self.dropped.append)

    @rule(owner=owners, num_tokens=st.integers(1, 500), fill=st.integers(0, 2))
    def add(self, owner: tuple[str, str | None], num_tokens: int, fill: int) -> None:
        source = make(num_tokens, fill)
        self.store.add(owner, source)
        self.added.append(source)

    @rule(owner=owners)
    def forget(self, owner: tuple[str, str | None]) -> None:
        self.store.forget(owner)
        assert self.store.get(owner) == ()

    @rule()
    def clear(self) -> None:
        self.store.clear()
        assert self.store.num_bytes == 0

    @invariant()
    def bounds_hold(self) -> None:
        self.store.check_integrity()

    @invariant()
    def every_source_is_held_or_was_dropped(self) -> None:
        held = {id(s) for key in (("a", None), ("b", None)) for s in self.store.get(key)}
        assert held.isdisjoint(id(s) for s in self.dropped)


StoreMachine.TestCase.settings = settings(max_examples=60, stateful_step_count=30, deadline=None)
TestStore = StoreMachine.TestCase


def test_a_growing_conversation_stays_one_source() -> None:
    store = SourceStore(StoreLimits())
    for num_tokens in (50, 80, 200):
        store.add(("s", None), make(num_tokens, 1))
    assert [s.num_tokens for s in store.get(("s", None))] == [200]


def test_sessions_and_salts_are_apart_and_the_newest_comes_first() -> None:
    store = SourceStore(StoreLimits())
    store.add(("s", None), make(50, 1))
    store.add(("s", None), make(50, 2))
    store.add(("s", "salt"), make(50, 3))
    assert [int(s.tokens[0]) for s in store.get(("s", None))] == [2, 1]
    assert [int(s.tokens[0]) for s in store.get(("s", "salt"))] == [3]
    assert store.get(("t", None)) == ()


def test_the_least_recently_used_session_goes_first() -> None:
    store = SourceStore(StoreLimits(max_sessions=2))
    store.add(("a", None), make(50, 1))
    store.add(("b", None), make(50, 1))
    store.get(("a", None))
    store.add(("c", None), make(50, 1))
    assert store.get(("b", None)) == ()
    assert store.get(("a", None)) != ()


def test_integrity_prints_the_numbers() -> None:
    store = SourceStore(StoreLimits())
    store.add(("s", None), make(50, 1))
    store._num_bytes += 7
    with pytest.raises(IntegrityError, match=r"\d+ bytes held, \d+ accounted"):
        store.check_integrity()
