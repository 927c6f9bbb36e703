"""The store against a plain model, over any order of operations, with a clock of its own, restarts and kills.

The file holds more than memory does, and sessions are in use. `test_storage_failures.py` has what a full disk does.
"""

from __future__ import annotations

import tempfile
from collections.abc import Collection
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from acmserve.context.edits.cut import cut_messages
from acmserve.context.edits.fragments import redact
from acmserve.context.session.history import adopt
from acmserve.context.session.state import SessionState
from acmserve.context.storage.session import Key, SessionLimits, SessionUse
from acmserve.context.storage.session_store import SessionStore
from acmserve.context.storage.sqlite import Archive
from acmserve.errors import Conflict, NotFound
from tests.support.context.conversation import Characters
from tests.support.context.naive_fair_share import naive_room, naive_victims
from tests.support.context.states import Clock, chat, size


@dataclass
class Held:
    """A session in the model. `written_at`: when the file says that it was used last."""

    state: SessionState
    used_at: float
    written_at: float
    created_at: float


LIMITS = SessionLimits(max_sessions=2, max_bytes=2500, ttl_seconds=100, max_stored_sessions=4, max_stored_bytes=5000)
KEYS = st.tuples(st.sampled_from(["", "/salt", "key"]), st.sampled_from("abc"))


class StoreMachine(RuleBasedStateMachine):
    """Every operation, against a dictionary that is searched from end to end each time."""

    def __init__(self) -> None:
        super().__init__()
        self.clock = Clock()
        self.folder = tempfile.TemporaryDirectory()
        self.model: dict[Key, Held] = {}
        self.memory: set[Key] = set()
        self.left: list[Key] = []
        self.expected_left: list[Key] = []
        self.uses: dict[Key, SessionUse] = {}
        self.dropped: list[Key] = []
        self.expected: set[Key] = set()
        self.start()

    def start(self) -> None:
        self.archive = Archive(Path(self.folder.name))
        self.store = SessionStore(LIMITS, self.archive, self.clock)
        self.store.on_gone, self.store.on_leave = self.dropped.append, self.left.append
        num_bytes, self.memory = 0, set()
        for key in sorted(self.model, key=lambda key: self.model[key].used_at, reverse=True):
            num_bytes += size(self.model[key].state)
            if len(self.memory) == LIMITS.max_sessions or num_bytes > LIMITS.max_bytes:
                break
            self.memory.add(key)

    def tick(self) -> float:
        self.clock.now += 1
        return self.clock.now

    def expired(self, key: Key) -> bool:
        return key not in self.uses and self.clock.now - self.model[key].used_at >= LIMITS.ttl_seconds

    def drop(self, *keys: Key) -> None:
        for key in keys:
            del self.model[key]
            self.memory.discard(key)
            self.uses.pop(key, None)
            self.expected.add(key)

    def alive(self, key: Key) -> bool:
        if key in self.model and self.expired(key):
            self.drop(key)
        return key in self.model

    def sizes(self, keys: Collection[Key]) -> dict[Key, int]:
        by_use = sorted(keys, key=lambda key: self.model[key].used_at)
        return {key: size(self.model[key].state) for key in by_use}

    def shrink(self, keep: Key) -> None:
        """After a write: the file's bound, then that of memory."""
        self.drop(*(key for key in list(self.model) if key != keep and self.expired(key)))
        self.drop(*naive_victims(self.sizes(self.model), LIMITS.file, {keep, *self.uses}))
        self.admit(keep)

    def admit(self, key: Key) -> None:
        """The session is asked for: it is in memory now, and others leave it."""
        self.memory.add(key)
        for victim in naive_victims(self.sizes(self.memory), LIMITS.memory, {key, *self.uses}):
            self.memory.discard(victim)
            self.expected_left.append(victim)

    @rule(key=KEYS)
    def create(self, key: Key) -> None:
        now = self.tick()
        if self.alive(key):
            with pytest.raises(Conflict):
                self.store.create(*key)
            return
        session = self.store.create(*key)
        self.model[key] = Held(session.state, now, now, now)
        self.shrink(key)

    @rule(key=KEYS)
    def open(self, key: Key) -> None:
        now = self.tick()
        known = self.alive(key)
        session = self.store.open(*key)
        if known:
            self.model[key].used_at = now
            self.admit(key)
        else:
            self.model[key] = Held(session.state, now, now, now)
            self.shrink(key)

    @rule(key=KEYS)
    def get(self, key: Key) -> None:
        now = self.tick()
        if not self.alive(key):
            with pytest.raises(NotFound):
                self.store.get(*key)
            return
        session = self.store.get(*key)
        self.model[key].used_at = now
        self.admit(key)
        assert (session.created_at, session.used_at) == (self.model[key].created_at, now)

    @rule(key=KEYS, contents=st.lists(st.sampled_from(["a", "b" * 300, "c" * 900]), max_size=4), erase=st.booleans())
    def save(self, key: Key, contents: list[str], erase: bool) -> None:
        self.get(key)
        if key not in self.model:
            return
        session = self.store.get(*key)
        new = adopt(session.state, chat(*contents)).state
        if contents:
            new = cut_messages(replace(new, fragments=()), 0, 1, Characters()).state
            new = redact(new, new.fragments[0].fragment_id) if erase else new
        now = self.clock.now
        if size(new) > naive_room(key, self.sizes(self.memory), LIMITS.memory) and self.is_over(key, size(new)):
            with pytest.raises(Conflict):
                self.store.save(session, new)
            return
        self.store.save(session, new)
        self.model[key] = Held(new, now, now, self.model[key].created_at)
        self.shrink(key)

    def is_over(self, key: Key, num_bytes: int) -> bool:
        """Whether memory would hold too many bytes."""
        return sum((self.sizes(self.memory) | {key: num_bytes}).values()) > LIMITS.max_bytes

    @rule(key=KEYS)
    def begin_use(self, key: Key) -> None:
        self.get(key)
        if key in self.model:
            self.uses[key] = self.store.use(self.store.get(*key))

    @rule(key=KEYS)
    def end_uses(self, key: Key) -> None:
        """Where too much was in use, what is asked for next brings the bounds back."""
        self.uses.clear()
        self.open(key)

    @rule(key=KEYS)
    def delete(self, key: Key) -> None:
        self.tick()
        if not self.alive(key):
            with pytest.raises(NotFound):
                self.store.delete(*key)
            return
        self.store.delete(*key)
        self.drop(key)

    @rule(tenant=st.sampled_from(["", "/salt", "key"]))
    def list(self, tenant: str) -> None:
        self.tick()
        self.drop(*(key for key in list(self.model) if self.expired(key)))
        found = [head.key for head in self.store.list(tenant)]
        assert found == sorted(
            (key for key in self.model if key[0] == tenant), key=lambda key: self.model[key].used_at, reverse=True
        )

    @rule(seconds=st.sampled_from([10, 60, 99, 100]))
    def wait(self, seconds: int) -> None:
        self.clock.now += seconds

    @rule(killed=st.booleans())
    def restart(self, killed: bool) -> None:
        """A killed server forgets the reads since the last save. A closed one forgets nothing."""
        self.tick()
        self.uses.clear()
        if killed:
            self.archive.close()
        else:
            self.store.close()
        for held in self.model.values():
            held.used_at = held.written_at = held.written_at if killed else held.used_at
        for key in [key for key in self.model if self.expired(key)]:
            del self.model[key]
        self.start()

    @invariant()
    def agrees(self) -> None:
        self.store.check_integrity()
        assert {key: session.state for key, session in self.store._sessions.items()} == {
            key: self.model[key].state for key in self.memory
        }
        assert sorted(self.sizes(self.model)) == sorted(self.store._stored or ())
        assert sorted(self.dropped) == sorted(self.expected)
        assert self.left == self.expected_left
        for heard in (self.dropped, self.expected, self.left, self.expected_left):
            heard.clear()

    def teardown(self) -> None:
        self.archive.close()
        self.folder.cleanup()


TestStoreMachine = StoreMachine.TestCase
TestStoreMachine.settings = settings(max_examples=40, stateful_step_count=30, deadline=None)
