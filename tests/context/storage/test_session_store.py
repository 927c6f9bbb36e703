"""The store: sessions found by tenant and id, bounded in number, bytes and time. Also what is refused, and how."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from acmserve.context.edits.cut import cut_messages
from acmserve.context.edits.fragments import redact
from acmserve.context.session.history import append_internal
from acmserve.context.session.rollout.record import RolloutRecord, Sampled
from acmserve.context.session.state import SessionState
from acmserve.context.storage.session import Key, SessionLimits
from acmserve.context.storage.session_store import SessionStore
from acmserve.context.storage.sqlite import Archive
from acmserve.errors import AcmError, Conflict, IntegrityError, InvalidRequest, NotFound
from tests.support.context.conversation import Characters
from tests.support.context.states import Clock, archive_of, conversation, size


def test_open_makes_a_session_once_and_get_finds_it() -> None:
    store = SessionStore()
    session = store.open("", "a")
    assert store.open("", "a") is session
    assert store.get("", "a") is session
    assert session.state == SessionState(digest_key=session.state.digest_key)
    with pytest.raises(Conflict, match=r"session_id: 'a' exists already\. Use it, delete it first"):
        store.create("", "a")


def test_sessions_without_an_id_get_one_each() -> None:
    store = SessionStore()
    ids = {store.create("").session_id for _ in range(50)}
    assert len(ids) == 50
    assert all(len(session_id) == 28 and session_id.startswith("acm-") for session_id in ids)


def test_tenants_do_not_see_each_other() -> None:
    store = SessionStore()
    mine = store.create("me", "a")
    with pytest.raises(NotFound):
        store.get("you", "a")
    yours = store.create("you", "a")
    assert mine is not yours
    assert [head.key for head in store.list("me")] == [mine.key]
    store.delete("you", "a")
    assert store.get("me", "a") is mine


def test_an_unknown_session_is_not_found_with_the_remedy() -> None:
    store = SessionStore()
    for call in (store.get, store.delete):
        with pytest.raises(NotFound) as raised:
            call("", "nobody")
        assert raised.value.field == "session_id"
        assert raised.value.message == "there is no session 'nobody'."
        assert raised.value.remedy == (
            "Create it, or send its messages again with this id. Sessions unused for 7 days (--session-hours) are "
            "dropped, and so are the least recently used of more than 1,024 (--max-sessions) or 268,435,456 bytes "
            "(--max-session-mib)."
        )


def test_an_unused_session_expires_and_a_used_one_does_not() -> None:
    clock, dropped = Clock(), []
    store = SessionStore(SessionLimits(ttl_seconds=60), clock=clock)
    store.on_gone = lambda key: dropped.append(key[1])
    store.create("", "idle")
    store.create("", "busy")
    for _ in range(3):
        clock.now += 30
        store.get("", "busy")
    with pytest.raises(NotFound, match="unused for 60 seconds"):
        store.get("", "idle")
    assert dropped == ["idle"]
    clock.now += 60
    assert store.list("") == []
    assert dropped == ["idle", "busy"]
    assert store.open("", "busy").created_at == clock.now


def test_a_clock_that_is_set_back_changes_neither_age_nor_order(tmp_path: Path) -> None:
    """Not in memory, and not in the file after a restart."""
    clock, limits = Clock(), SessionLimits(ttl_seconds=60)
    store = SessionStore(limits, Archive(tmp_path), clock)
    store.create("", "old")
    clock.now -= 3600
    store.create("", "new")
    clock.now += 30
    store.get("", "new")
    assert [session.session_id for session in store.list("")] == ["new", "old"]
    store.close()
    store = SessionStore(limits, Archive(tmp_path), clock)
    assert [session.session_id for session in store.list("")] == ["new", "old"]
    clock.now += 59
    assert store.has("", "old"), "ages count from the restart"
    clock.now += 2
    assert not store.has("", "old")
    store.close()


def test_the_least_recently_used_goes_first() -> None:
    clock, dropped = Clock(), []
    store = SessionStore(SessionLimits(max_sessions=3), clock=clock)
    store.on_gone = lambda key: dropped.append(key[1])
    for session_id in "abc":
        clock.now += 1
        store.create("", session_id)
    store.get("", "a")
    store.create("", "d")
    assert dropped == ["b"]
    assert [session.session_id for session in store.list("")] == ["d", "a", "c"]


def test_bytes_are_bounded_and_the_session_that_grows_stays() -> None:
    dropped: list[Key] = []
    store = SessionStore(SessionLimits(max_bytes=3000))
    store.on_gone = dropped.append
    first, second, third = (store.create("", session_id) for session_id in "abc")
    for session in (first, second, third):
        store.save(session, conversation(["x" * 500]))
    assert store.num_bytes == 3 * size(first.state)
    store.save(first, conversation(["x" * 2000]))
    assert dropped == [second.key]
    assert store.num_bytes == size(first.state) + size(third.state)
    store.check_integrity()


def test_a_session_that_alone_is_too_large_keeps_its_old_state() -> None:
    store = SessionStore(SessionLimits(max_bytes=1000))
    other, session = store.create("", "other"), store.create("", "a")
    store.save(session, conversation(["hello"]))
    before = session.state
    with pytest.raises(Conflict) as raised:
        store.save(session, conversation(["x" * 2000]))
    assert raised.value.message == (
        f"'a' would hold {size(conversation(['x' * 2000])):,} bytes; the bounds leave 1,000 to it. Nothing was changed."
    )
    assert "Go on in a new session, or start the server with a larger limit" in raised.value.remedy
    assert session.state is before
    assert [head.key for head in store.list("")] == [session.key, other.key]
    store.check_integrity()


def test_a_rollout_record_counts_against_the_bound() -> None:
    store = SessionStore(SessionLimits(max_bytes=2000))
    session = store.open("", "a")
    record = RolloutRecord().begun("m", None).completed(range(100), Sampled(()), "main")
    store.save(session, replace(conversation(["hello"]), rollout=record))
    assert 500 < session.num_bytes < 800
    with pytest.raises(Conflict, match="the bounds leave 2,000 to it"):
        store.save(session, replace(session.state, rollout=record.completed(range(1000, 1500), Sampled(()), "main")))
    assert session.state.rollout == record
    store.check_integrity()


def test_what_json_cannot_say_is_refused_and_changes_nothing() -> None:
    store = SessionStore()
    session = store.create("", "a")
    before = session.state
    with pytest.raises(InvalidRequest, match="cannot be stored as JSON"):
        store.save(session, append_internal(before, [{"role": "tool", "content": object()}]))
    assert session.state is before
    store.check_integrity()


def test_a_session_that_was_dropped_cannot_be_saved() -> None:
    store = SessionStore()
    session = store.create("", "a")
    store.delete("", "a")
    with pytest.raises(NotFound):
        store.save(session, conversation(["hello"]))
    store.create("", "a")
    with pytest.raises(NotFound):
        store.save(session, conversation(["hello"]))
    assert store.get("", "a").state.entries == ()


def test_a_drop_is_heard_when_everything_is_done() -> None:
    """Whoever hears of it may use the store, which holds the session no more."""
    store: SessionStore
    found: list[int] = []

    def on_gone(key: Key) -> None:
        store.check_integrity()
        found.append(len(store))

    store = SessionStore(SessionLimits(max_sessions=1))
    store.on_gone = on_gone
    store.create("", "a")
    store.create("", "b")
    store.delete("", "b")
    assert found == [1, 0]


def test_redacting_makes_a_session_larger_by_its_marker_and_its_digests_only() -> None:
    store = SessionStore()
    session = store.create("", "a")
    state = cut_messages(conversation(["a secret " * 1000]), 0, 1, Characters()).state
    store.save(session, state)
    before = session.num_bytes
    store.save(session, redact(state, state.fragments[0].fragment_id))
    assert session.num_bytes - before < 100 + 8000 * 4 / 3


@pytest.mark.parametrize("name", ["max_sessions", "max_bytes", "ttl_seconds"])
def test_limits_are_positive(name: str) -> None:
    with pytest.raises(InvalidRequest, match=f"{name}: must be more than 0, not 0"):
        replace(SessionLimits(), **{name: 0})


def _miscount(store: SessionStore) -> None:
    store.num_bytes += 7


def _overfill(store: SessionStore) -> None:
    store.limits = SessionLimits(max_sessions=1)


def _swap_state(store: SessionStore) -> None:
    store.get("", "a").state = conversation(["something else"])


def _change_in_place(store: SessionStore) -> None:
    message = store.get("", "a").state.entries[0].message
    assert isinstance(message, dict)
    message["content"] = "HELLO"


def _misfile(store: SessionStore) -> None:
    store.get("", "a").session_id = "c"


def _lose(store: SessionStore) -> None:
    archive_of(store).drop([("", "b")])


@pytest.mark.parametrize(
    ("spoil", "words"),
    [
        (_miscount, r"store: \d+ bytes counted, the sessions have \d+"),
        (_overfill, "store: 2 sessions of 1, "),
        (
            _swap_state,
            r"'a' has 1 entries, 0 fragments and 0 rows of its rollout of \d+ bytes, \d+ were counted",
        ),
        (_change_in_place, r"store: 'a' has 1 entries of \d+ bytes, in the archive 1 of \d+"),
        (_misfile, r"store: session \('', 'c'\) is filed as \('', 'a'\)"),
        (_lose, r"store: 2 sessions of \d+ bytes, the archive has 1 of \d+, not the same ones"),
    ],
)
def test_the_integrity_check_says_what_disagrees(
    tmp_path: Path, spoil: Callable[[SessionStore], None], words: str
) -> None:
    store = SessionStore(archive=Archive(tmp_path))
    for session_id in "ab":
        store.save(store.create("", session_id), conversation(["hello"]))
    store.check_integrity()
    spoil(store)
    with pytest.raises(IntegrityError, match=words):
        store.check_integrity()
    archive_of(store).close()


def test_loading_keeps_the_bounds_of_memory_and_of_the_file(tmp_path: Path) -> None:
    clock = Clock()
    store = SessionStore(archive=Archive(tmp_path), clock=clock)
    for session_id in ("old", "large", "b", "c", "d"):
        clock.now += 10
        store.save(store.create("", session_id), conversation(["x" * (900 if session_id == "large" else 100)]))
    store.close()
    one = size(conversation(["x" * 100]))
    everything = ["d", "c", "b", "large", "old"]
    file_limits = SessionLimits(max_sessions=2, max_stored_sessions=2)
    for bounds, in_memory, in_file in (
        (SessionLimits(max_sessions=4), 4, everything),
        (SessionLimits(max_bytes=900), 3, everything),
        (SessionLimits(max_bytes=3 * one - 1), 2, everything),
        (SessionLimits(max_sessions=1, max_stored_sessions=4), 1, everything[:4]),
        (SessionLimits(max_bytes=1, max_stored_bytes=3 * one), 0, everything[:3]),
        (file_limits, 2, ["d", "c"]),
        (replace(file_limits, ttl_seconds=5), 1, ["d"]),
    ):
        for _ in range(2):
            store = SessionStore(bounds, Archive(tmp_path), clock=clock)
            assert [head.session_id for head in store.list("")] == in_file
            assert len(store) == in_memory
            store.check_integrity()
            store.close()


def test_an_archive_that_cannot_be_loaded_is_given_back(tmp_path: Path) -> None:
    archive = Archive(tmp_path)
    store = SessionStore(archive=archive)
    store.save(store.create("", "a"), conversation(["hello"]))
    archive._db.execute("DELETE FROM entries_1")
    store.close()
    for _ in range(2):
        with pytest.raises(AcmError, match=r"Session 'a' in .* is damaged: its rows have 0 bytes, not"):
            SessionStore(archive=Archive(tmp_path))
