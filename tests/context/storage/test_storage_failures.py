"""A disk that is full, a file that is locked, replaced, read-only or damaged: the store goes on, says so, and heals."""

from __future__ import annotations

import os
import sqlite3
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from acmserve.context.edits.cut import cut_messages
from acmserve.context.edits.fragments import redact
from acmserve.context.maps.map import ContextMap
from acmserve.context.storage import database
from acmserve.context.storage.map_store import MapStore
from acmserve.context.storage.session import SessionLimits
from acmserve.context.storage.session_store import SessionStore
from acmserve.context.storage.sqlite import Archive
from acmserve.errors import AcmError, NotFound, StorageFailed
from tests.support.context.conversation import Characters
from tests.support.context.maps import map_of
from tests.support.context.states import archive_of, conversation

SECRET = "the launch code is 0451"
LARGE = conversation(["hello", "world " * 10_000])


@pytest.fixture
def store(tmp_path: Path) -> Iterator[SessionStore]:
    store = SessionStore(SessionLimits(max_sessions=3), Archive(tmp_path / "data"))
    yield store
    store.close()


def fill_disk(store: SessionStore) -> None:
    """The file cannot grow by a page: SQLite then says what it says on a full disk."""
    db = archive_of(store)._db
    archive_of(store).empty_log()
    (pages,) = db.execute("PRAGMA page_count").fetchone()
    db.execute(f"PRAGMA max_page_count = {pages}")


def free_disk(store: SessionStore) -> None:
    archive_of(store)._db.execute("PRAGMA max_page_count = 1000000")


def lock(store: SessionStore) -> Callable[[], None]:
    """Another process writes. In this one closing the file by other means than SQLite's would drop locks."""
    other = sqlite3.connect(archive_of(store).path, isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    return other.close


def replace_file(store: SessionStore) -> Callable[[], None]:
    path = archive_of(store).path
    away = path.with_suffix(".away")
    path.rename(away)
    path.write_bytes(b"another file")
    return lambda: os.replace(away, path)


def make_read_only(store: SessionStore) -> Callable[[], None]:
    archive_of(store)._db.execute("PRAGMA query_only = ON")
    return lambda: archive_of(store)._db.execute("PRAGMA query_only = OFF") and None


def remove_file(store: SessionStore) -> Callable[[], None]:
    path = archive_of(store).path
    away = path.with_suffix(".away")
    path.rename(away)
    return lambda: away.rename(path)


def fill(store: SessionStore) -> Callable[[], None]:
    fill_disk(store)
    return lambda: free_disk(store)


@pytest.mark.parametrize(
    ("fail", "reason"),
    [
        (fill, "full"),
        (lock, "locked"),
        (replace_file, "replaced"),
        (remove_file, "replaced"),
        (make_read_only, "read_only"),
    ],
)
def test_memory_goes_on_and_the_file_heals(
    store: SessionStore, fail: Callable[[SessionStore], Callable[[], None]], reason: str
) -> None:
    heard: list[StorageFailed] = []
    store.on_failure = heard.append
    session, other = store.create("", "a"), store.create("", "b")
    mend = fail(store)
    store.save(session, LARGE)
    made = store.create("", "made meanwhile")
    store.save(made, conversation(["new"]))
    assert session.state == LARGE
    assert session.unsaved is not None
    assert session.unsaved.reason == reason
    assert "/" not in session.unsaved.problem + session.unsaved.remedy
    assert str(archive_of(store).path) in str(session.unsaved)
    assert {failure.reason for failure in heard} == {reason}
    mend()
    store.save(other, conversation(["a save of another session"]))
    assert [s.unsaved for s in (session, other, made)] == [None, None, None]
    store.check_integrity()


def test_a_map_tells_that_the_file_lacks_it_and_heals_beside_another(store: SessionStore) -> None:
    maps = MapStore(archive_of(store).maps)
    held, other = maps.create(("", "corpus"), ContextMap()), maps.create(("", "other"), ContextMap())
    unlock = lock(store)
    changed = map_of(("context_roadmap", "the harbour"))
    assert maps.save(held, changed)
    made = maps.create(("", "made meanwhile"), ContextMap())
    assert held.context_map == changed
    assert [each.unsaved.reason for each in (held, made) if each.unsaved] == ["locked", "locked"]
    assert other.unsaved is None
    unlock()
    maps.save(other, map_of(("context_roadmap", "a save of another map")))
    assert [each.unsaved for each in (held, other, made)] == [None, None, None]
    assert {each.key[1]: each.context_map for each in archive_of(store).maps.load()} == {
        each.key[1]: each.context_map for each in (held, other, made)
    }


def test_a_map_that_the_file_lacks_is_written_when_the_server_stops(store: SessionStore) -> None:
    maps = MapStore(archive_of(store).maps)
    held = maps.create(("", "corpus"), ContextMap())
    mend = make_read_only(store)
    maps.save(held, map_of(("context_roadmap", "the harbour")))
    mend()
    maps.close()
    assert held.unsaved is None
    assert [each.context_map for each in archive_of(store).maps.load()] == [held.context_map]


def test_every_reason_is_listed() -> None:
    """`/metrics` has each of them from the start, at 0, so that an alarm sees the first failure."""
    said = {failure[1] for failure in database._FAILURES} | {database._FAILED[0], "replaced"}
    assert said == set(StorageFailed.REASONS)


def test_a_session_that_cannot_be_written_anywhere_is_gone_and_not_as_it_was(store: SessionStore) -> None:
    """The copy in the file is older: a redaction made since would be undone by it."""
    session = store.create("", "a")
    store.save(session, conversation(["hello"]))
    fill_disk(store)
    store.save(session, LARGE)
    for number in range(3):
        store.save(store.create("", f"s{number}"), LARGE)
    assert not store.has("", "a")
    with pytest.raises(NotFound):
        store.get("", "a")
    free_disk(store)
    store.save(store.create("", "a"), conversation(["anew"]))
    store.check_integrity()


def files(folder: Path) -> bytes:
    """Everything on disk. Read by another process: closing the file in this one would drop its lock."""
    return subprocess.run(["cat", *sorted(folder.glob("*"))], check=True, stdout=subprocess.PIPE).stdout


def test_a_deletion_that_leaves_the_text_says_so_and_is_made_good(store: SessionStore) -> None:
    store.save(store.create("", "a"), conversation([SECRET]))
    unlock = lock(store)
    for _ in range(2):
        with pytest.raises(StorageFailed, match="locked"):
            store.delete("", "a")
        assert not store.has("", "a")
        assert store.is_erasing("", "a")
    unlock()
    store.delete("", "a")
    assert not store.is_erasing("", "a")
    assert SECRET.encode() not in files(archive_of(store).path.parent)
    with pytest.raises(NotFound):
        store.delete("", "a")
    store.check_integrity()


def test_a_deleted_session_does_not_come_back_under_its_name(store: SessionStore) -> None:
    store.save(store.create("", "a"), conversation([SECRET]))
    unlock = lock(store)
    with pytest.raises(StorageFailed):
        store.delete("", "a")
    session = store.open("", "a")
    assert session.state.entries == ()
    unlock()
    store.save(session, conversation(["anew"]))
    assert session.unsaved is None
    assert SECRET.encode() not in files(archive_of(store).path.parent)
    store.check_integrity()


def test_a_redaction_while_another_process_reads_says_that_the_log_has_the_text(store: SessionStore) -> None:
    state = cut_messages(conversation(["hello", SECRET]), 1, 2, Characters()).state
    session = store.create("", "a")
    store.save(session, state)
    reader = sqlite3.connect(f"file:{archive_of(store).path}?mode=ro", uri=True)
    reader.execute("BEGIN")
    assert reader.execute("SELECT count(*) FROM sessions").fetchone() == (1,)
    store.save(session, redact(state, state.fragments[0].fragment_id))
    assert session.unsaved is not None
    assert "removed text" in session.unsaved.problem
    assert SECRET.encode() in files(archive_of(store).path.parent)
    reader.close()
    store.save(session, session.state)
    assert session.unsaved is None
    assert SECRET.encode() not in files(archive_of(store).path.parent)


def redact_while_read(store: SessionStore, *session_ids: str) -> sqlite3.Connection:
    """Another process reads, so that the log keeps what these sessions lose."""
    for session_id in session_ids:
        state = cut_messages(conversation(["hello", f"{SECRET} {session_id}"]), 1, 2, Characters()).state
        store.save(store.create("", session_id), state)
    reader = sqlite3.connect(f"file:{archive_of(store).path}?mode=ro", uri=True)
    reader.execute("BEGIN")
    reader.execute("SELECT count(*) FROM sessions").fetchone()
    for session_id in session_ids:
        session = store.get("", session_id)
        store.save(session, redact(session.state, session.state.fragments[0].fragment_id))
        assert session.unsaved is not None
    return reader


def test_a_session_that_the_file_has_leaves_memory_while_another_process_reads(store: SessionStore) -> None:
    """It is found again, and tells that the log has what was redacted until it has it no more."""
    reader = redact_while_read(store, "a")
    redacted = store.get("", "a").state
    for number in range(3):
        store.create("", f"s{number}")
    assert [each.session_id for each in store.behind()] == []
    found = store.get("", "a")
    assert found.state == redacted
    assert found.unsaved is not None
    assert "removed text" in found.unsaved.problem
    store.save(found, redacted)
    assert found.unsaved is not None
    reader.close()
    store.create("", "b")
    assert found.unsaved is None
    assert store.get("", "a").state == redacted
    assert SECRET.encode() not in files(archive_of(store).path.parent)
    store.check_integrity()


def test_what_left_memory_tells_nothing_once_the_log_is_empty(store: SessionStore) -> None:
    reader = redact_while_read(store, "a")
    for number in range(3):
        store.create("", f"s{number}")
    reader.close()
    store.create("", "s3")
    assert SECRET.encode() not in files(archive_of(store).path.parent)
    assert store.get("", "a").unsaved is None
    store.check_integrity()


@pytest.mark.parametrize(
    ("empty_log", "other", "num_told"), [(SessionStore.delete, "b", 0), (SessionStore.create, "c", 1)]
)
def test_what_the_file_has_stays_once_the_log_is_empty(
    tmp_path: Path, empty_log: Callable[..., object], other: str, num_told: int
) -> None:
    """A save writes eight more beside its own. What was told of a ninth is no reason to erase it."""
    store = SessionStore(SessionLimits(max_sessions=11), Archive(tmp_path))
    store.create("", "b")
    names = [f"a{number}" for number in range(9)]
    redact_while_read(store, *names).close()
    empty_log(store, "", other)
    assert len(store.behind()) == num_told
    mend = make_read_only(store)
    for number in range(11):
        store.create("", f"s{number}")
    assert [name for name in names if not store.has("", name)] == []
    mend()
    store.check_integrity()
    store.close()


def test_a_session_that_was_written_and_then_changed_is_not_as_it_was(store: SessionStore) -> None:
    """The file has what the session was before: that may not come back."""
    reader = redact_while_read(store, "a")
    unlock = lock(store)
    session = store.get("", "a")
    store.save(session, conversation(["hello", "more"]))
    for number in range(3):
        store.create("", f"s{number}")
    assert not store.has("", "a")
    unlock()
    reader.close()


def test_a_log_that_cannot_be_emptied_keeps_no_session_from_the_file_at_the_end(store: SessionStore) -> None:
    store.save(behind := store.create("", "b"), conversation(["hello"]))
    reader = redact_while_read(store, "a")
    unlock = lock(store)
    store.save(behind, conversation(["hello", "more"]))
    unlock()
    folder = archive_of(store).path.parent
    store.close()
    reader.close()
    again = SessionStore(archive=Archive(folder))
    assert again.get("", "b").state == behind.state
    assert SECRET.encode() not in files(folder)
    again.close()


def test_a_damaged_session_is_refused_alone(store: SessionStore) -> None:
    for session_id in "abcd":
        store.save(store.create("", session_id), conversation([session_id]))
    archive_of(store)._db.execute("UPDATE entries_1 SET data = x'7b'")
    with pytest.raises(StorageFailed, match="damaged copy of session 'a'") as raised:
        store.get("", "a")
    assert "/" not in raised.value.problem + raised.value.remedy
    assert store.get("", "b").state == conversation(["b"])


def test_a_file_that_is_damaged_meanwhile_stops_nobody(store: SessionStore) -> None:
    session = store.create("", "a")
    archive_of(store)._db.execute("DROP TABLE sessions")
    store.save(session, LARGE)
    assert session.state == LARGE
    assert session.unsaved is not None
    assert session.unsaved.reason == "damaged"


def test_the_file_is_read_and_backed_up_while_it_is_open(store: SessionStore, tmp_path: Path) -> None:
    """By another process. The copy is consistent: a store opens it."""
    for number in range(5):
        store.save(store.create("", f"s{number}"), conversation([f"number {number}"]))
    program = (
        "import sqlite3, sys\n"
        "source = sqlite3.connect(f'file:{sys.argv[1]}?mode=ro', uri=True)\n"
        "copy = sqlite3.connect(sys.argv[2])\n"
        "source.backup(copy)\n"
        "print(copy.execute('PRAGMA integrity_check').fetchone()[0])\n"
    )
    (tmp_path / "copy").mkdir()
    path, copy = archive_of(store).path, tmp_path / "copy" / "sessions.sqlite3"
    done = subprocess.run([sys.executable, "-c", program, path, copy], check=True, capture_output=True, text=True)
    assert done.stdout == "ok\n"
    store.save(store.get("", "s0"), conversation(["number 0", "and on"]))
    again = SessionStore(archive=Archive(copy.parent))
    assert again.get("", "s0").state == conversation(["number 0"])
    assert len(again.list("")) == 5
    again.check_integrity()
    again.close()


def test_a_file_that_may_not_grow_fails_as_a_full_disk(tmp_path: Path) -> None:
    """The kernel's own refusal (RLIMIT_FSIZE), in a process of its own."""
    program = """
import resource, signal, sys
from pathlib import Path
from acmserve.context.storage.session_store import SessionStore
from acmserve.context.storage.sqlite import Archive
from tests.support.context.states import conversation
store = SessionStore(archive=Archive(Path(sys.argv[1])))
session = store.create("", "a")
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, resource.RLIM_INFINITY))
store.save(session, conversation(["x" * 300_000]))
assert len(session.state.entries) == 1
print(session.unsaved.reason)
resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
store.save(session, session.state)
print(session.unsaved)
store.check_integrity()
"""
    command = [sys.executable, "-c", program, str(tmp_path)]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    reason, healed = done.stdout.split()
    assert reason in ("full", "failed")
    assert healed == "None"


def test_a_full_disk_at_the_start_is_one_line(tmp_path: Path) -> None:
    program = """
import resource, signal, sys
from pathlib import Path
from acmserve.context.storage.sqlite import Archive
from acmserve.errors import AcmError
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))
try:
    Archive(Path(sys.argv[1]))
except AcmError as error:
    print(error)
"""
    command = [sys.executable, "-c", program, str(tmp_path)]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    assert done.stdout.count("\n") == 1
    assert "sessions.sqlite3 cannot be used" in done.stdout


def test_a_folder_that_another_server_holds_is_refused(store: SessionStore) -> None:
    with pytest.raises(AcmError, match=r"is in use by another acmserve\. Stop that one"):
        Archive(archive_of(store).path.parent)
    store.save(store.create("", "a"), conversation(["still ours"]))
    store.check_integrity()
