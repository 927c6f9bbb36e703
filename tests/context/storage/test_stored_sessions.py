"""Sessions that are only in the file: found again, listed, bounded, and erased."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from acmserve.context.session.precompute_options import PrecomputeOptions
from acmserve.context.session.state import SessionState
from acmserve.context.storage.session import Key, SessionLimits
from acmserve.context.storage.session_store import SessionStore
from acmserve.context.storage.sqlite import Archive
from acmserve.errors import IntegrityError, NotFound
from tests.support.context.states import Clock, archive_of, conversation

LIMITS = SessionLimits(max_sessions=2, max_stored_sessions=20, ttl_seconds=1000)


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def store(tmp_path: Path, clock: Clock) -> Iterator[SessionStore]:
    store = SessionStore(LIMITS, Archive(tmp_path), clock)
    yield store
    store.close()


def fill(store: SessionStore, num_sessions: int, tenant: str = "") -> None:
    for number in range(num_sessions):
        store.save(store.create(tenant, f"s{number}"), conversation(["hello", f"number {number}"]))


def test_what_leaves_memory_is_found_in_the_file(store: SessionStore) -> None:
    """Sprayed empty sessions took a stranger's out of memory and out of the file, although there was one tenant."""
    gone: list[Key] = []
    left: list[Key] = []
    store.on_gone, store.on_leave = gone.append, left.append
    fill(store, 1)
    for number in range(19):
        store.create("", f"empty{number}")
    assert len(store) == 2
    assert left[0] == ("", "s0")
    assert store.has("", "s0")
    assert store.get("", "s0").state == conversation(["hello", "number 0"])
    assert len(store) == 2
    assert gone == []
    store.check_integrity()


def test_a_list_has_what_is_only_in_the_file_without_reading_it(store: SessionStore) -> None:
    session = store.create("", "first")
    state = conversation(["hello"])
    store.save(session, SessionState(**{**_fields(state), "precompute": PrecomputeOptions("heal")}))
    fill(store, 3)
    statements: list[str] = []
    archive_of(store)._db.set_trace_callback(statements.append)
    heads = {head.session_id: head for head in store.list("")}
    assert statements == []
    assert (heads["first"].num_messages, heads["first"].precompute) == (1, PrecomputeOptions("heal"))
    assert heads["s2"].num_messages == 2
    assert heads.keys() == {"first", "s0", "s1", "s2"}


def _fields(state: SessionState) -> dict[str, object]:
    return {name: getattr(state, name) for name in ("entries", "fragments", "num_ids", "num_turns", "digest_key")}


def test_the_bound_of_the_file_takes_from_the_key_that_holds_most_and_the_404_names_it(store: SessionStore) -> None:
    fill(store, 10, "a")
    for number in range(40):
        store.create("b", f"sprayed-{number}")
    assert len(store.list("a")) == 10
    assert len(store.list("b")) == 10
    with pytest.raises(NotFound, match=r"used of more than 20 \(--max-stored-sessions\) or [0-9,]+ bytes"):
        store.get("b", "sprayed-0")
    store.check_integrity()


def test_time_and_deletion_take_a_session_out_of_the_file(store: SessionStore, clock: Clock, tmp_path: Path) -> None:
    fill(store, 4)
    store.delete("", "s0")
    assert not store.has("", "s0")
    clock.now += 900
    store.get("", "s1")
    clock.now += 200
    assert [head.session_id for head in store.list("")] == ["s1"]
    store.check_integrity()
    assert {head.key for head in archive_of(store).stored()} == {("", "s1")}


def test_a_session_in_use_stays_in_memory(store: SessionStore) -> None:
    session = store.create("", "used")
    use = store.use(session)
    fill(store, 5)
    assert store.holds(session)
    store.save(session, conversation(["still here"]))
    del use
    fill_more = SessionStore.create
    for number in range(3):
        fill_more(store, "", f"more{number}")
    assert not store.holds(session)
    assert store.get("", "used").state == conversation(["still here"])


def _delete_row(store: SessionStore) -> None:
    archive_of(store)._db.execute("DELETE FROM sessions WHERE session_id = 's0'")


def _delete_all(store: SessionStore) -> None:
    """What `Archive.drop` of another process leaves behind: nothing."""
    for table in ("entries", "fragments", "limits", "rollout", "turns"):
        archive_of(store)._db.execute(f"DROP TABLE {table}_1")
    _delete_row(store)


@pytest.mark.parametrize("vanish", [_delete_row, _delete_all])
@pytest.mark.parametrize("ask", [SessionStore.get, SessionStore.peek])
def test_a_session_that_vanishes_from_the_file_is_one_that_was_never_there(
    store: SessionStore, vanish: Callable[[SessionStore], None], ask: Callable[..., object]
) -> None:
    gone: list[Key] = []
    store.on_gone = gone.append
    fill(store, 3)
    assert len(store) == 2
    vanish(store)
    with pytest.raises(NotFound) as unknown:
        ask(store, "", "never-there")
    with pytest.raises(NotFound) as vanished:
        ask(store, "", "s0")
    assert str(vanished.value) == str(unknown.value).replace("never-there", "s0")
    assert not store.has("", "s0")
    assert gone == [("", "s0")]
    store.check_integrity()
    store.save(store.create("", "s0"), conversation(["anew"]))
    tables = archive_of(store)._db.execute("SELECT name FROM sqlite_schema WHERE name GLOB '*_1' AND type = 'table'")
    assert tables.fetchall() == [], "no text is left in tables that nobody finds"
    store.check_integrity()


def test_a_session_that_vanishes_is_opened_anew(store: SessionStore) -> None:
    fill(store, 3)
    _delete_row(store)
    assert store.open("", "s0").state.entries == ()


def _miscount(store: SessionStore) -> None:
    assert store._stored is not None
    store._stored._num_bytes += 1


def _lose_head(store: SessionStore) -> None:
    assert store._stored is not None
    store._stored._remove(("", "s0"))


def _lose_row(store: SessionStore) -> None:
    archive_of(store).drop([("", "s0")])


@pytest.mark.parametrize("spoil", [_miscount, _lose_head, _lose_row])
def test_the_integrity_check_compares_heads_and_file(
    store: SessionStore, spoil: Callable[[SessionStore], None]
) -> None:
    fill(store, 3)
    store.check_integrity()
    spoil(store)
    with pytest.raises(IntegrityError, match="not the same ones"):
        store.check_integrity()
