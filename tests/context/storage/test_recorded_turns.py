"""Turns in the store: they survive a restart, make room for the transcript, and are gone with their session."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from acmserve.context.session.turns.history import NO_TURNS
from acmserve.context.session.turns.turn import EvictionKind, TurnEdit, TurnEviction
from acmserve.context.storage.session import SessionLimits
from acmserve.context.storage.session_store import SessionStore
from acmserve.context.storage.sqlite import Archive
from acmserve.errors import AcmError, Conflict, IntegrityError, NotFound
from tests.support.context.states import conversation, size
from tests.support.recorded_turns import after_all, answered, receipt

TURNS = after_all(
    [
        TurnEdit("fold", ("f1a2b3",), 40, "caller"),
        answered(),
        TurnEviction(EvictionKind.CALLER, "cwl", 9, {"remove": 9}),
    ]
)


@pytest.fixture
def store(tmp_path: Path) -> Iterator[SessionStore]:
    store = SessionStore(archive=Archive(tmp_path))
    yield store
    store.close()


def test_turns_survive_a_restart_and_the_saves_of_their_session(store: SessionStore, tmp_path: Path) -> None:
    session = store.open("key", "a")
    store.record(session, TURNS)
    store.save(session, conversation(["hello"]))
    store.record(session, more := TURNS.taken(answered(receipt=receipt(5, 6, 7))))
    store.check_integrity()
    store.close()
    again = SessionStore(archive=Archive(tmp_path))
    assert again.get("key", "a").turns == more
    assert again.get("key", "a").state == session.state
    again.check_integrity()
    again.close()


def test_turns_are_gone_with_their_session_and_are_nobody_elses(store: SessionStore) -> None:
    session = store.open("key", "a")
    store.record(session, TURNS)
    assert store.open("other", "a").turns == NO_TURNS
    store.delete("key", "a")
    with pytest.raises(NotFound):
        store.record(session, TURNS)
    assert store.open("key", "a").turns == NO_TURNS
    store.check_integrity()


def test_turns_make_room_for_the_transcript() -> None:
    state = conversation(["x" * 3000])
    store = SessionStore(SessionLimits(max_bytes=size(state) + 600))
    session = store.open("", "a")
    store.record(session, after_all([answered()] * 3))
    store.save(session, state)
    assert (session.state, session.turns.turns) == (state, ())
    assert session.turns.totals.turns == 3
    store.record(session, session.turns.taken(answered()))
    assert (session.turns.turns, session.turns.totals.turns) == ((), 4), "a turn that finds no room is counted"
    store.check_integrity()
    with pytest.raises(Conflict):
        store.save(session, conversation(["x" * 5000]))
    assert session.state == state


def test_a_file_of_version_5_has_no_turns_and_takes_some(store: SessionStore, tmp_path: Path) -> None:
    store.save(store.open("", "a"), conversation(["hello"]))
    store.close()
    with sqlite3.connect(tmp_path / "sessions.sqlite3") as db:
        db.execute("DROP TABLE turns_1")
        db.execute("UPDATE meta SET value = 5 WHERE value = 6")
    db.close()
    again = SessionStore(archive=Archive(tmp_path))
    session = again.get("", "a")
    assert session.turns == NO_TURNS
    again.record(session, TURNS)
    again.check_integrity()
    again.close()


@pytest.mark.parametrize(
    ("statement", "words"),
    [
        ("UPDATE turns_1 SET data = x'7b7d' WHERE position = 1", "is damaged: 'index'"),
        ("UPDATE turns_1 SET data = replace(data, 'answered', 'ansvered') WHERE position = 1", "holds str, not bytes"),
        ("DROP TABLE turns_1", "no such table: turns_1"),
    ],
)
def test_damage_is_named(store: SessionStore, tmp_path: Path, statement: str, words: str) -> None:
    store.record(store.open("", "a"), TURNS)
    store.close()
    with sqlite3.connect(tmp_path / "sessions.sqlite3") as db:
        db.execute(statement)
    db.close()
    with pytest.raises(AcmError, match=words):
        SessionStore(archive=Archive(tmp_path))


def test_the_check_of_the_store_finds_broken_turns(store: SessionStore) -> None:
    session = store.open("", "a")
    store.record(session, TURNS)
    session.turns = replace(TURNS, totals=replace(TURNS.totals, turns=2))
    with pytest.raises(IntegrityError, match="the last 1 of 2 end with"):
        store.check_integrity()
    session.turns = replace(TURNS, cleared={"clear": 1})
    with pytest.raises(IntegrityError, match="bytes"):
        store.check_integrity()
    session.turns = TURNS
    store.check_integrity()
