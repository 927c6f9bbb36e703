"""The SQLite file: sessions survive in it, removed text does not, and what is wrong with a file is said by name."""

from __future__ import annotations

import json
import os
import signal
import sqlite3
import stat
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from random import Random

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from acmserve.context.edits.cut import cut_messages
from acmserve.context.edits.fragments import redact, summarize
from acmserve.context.eviction import registry
from acmserve.context.session.budget import Budget
from acmserve.context.session.history import adopt
from acmserve.context.session.rollout.record import Initiator, RolloutRecord, Sampled
from acmserve.context.session.state import SessionState
from acmserve.context.storage.session import Session
from acmserve.context.storage.session_store import SessionStore
from acmserve.context.storage.sqlite import Archive
from acmserve.context.transcript.omissions import Omissions
from acmserve.errors import AcmError
from tests.support.context.conversation import Characters
from tests.support.context.states import archive_of, chat, conversation, session_states

SECRET = "the launch code is 0451"


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "data" / "sessions.sqlite3"


@pytest.fixture
def store(path: Path) -> Iterator[SessionStore]:
    store = SessionStore(archive=Archive(path.parent))
    yield store
    store.close()


def files(path: Path) -> bytes:
    """Everything on disk. Read by another process: closing the file in this one would drop its lock."""
    return subprocess.run(["cat", *sorted(path.parent.glob("*"))], check=True, stdout=subprocess.PIPE).stdout


def saved(store: SessionStore, state: SessionState, session_id: str = "a") -> Session:
    session = store.open("", session_id)
    store.save(session, state)
    return session


@settings(max_examples=50, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(session_states(), min_size=1, max_size=4), st.booleans())
def test_a_session_survives_a_restart(tmp_path: Path, states: list[SessionState], use_v1: bool) -> None:
    """Whatever it held before: every save leads from the state in the file to the new one."""
    store = SessionStore(archive=Archive(tmp_path))
    session = store.open("tenant", "a")
    session.suite = "sculptor-v1" if use_v1 else "sculptor"
    for state in states:
        store.save(session, state)
        store.check_integrity()
    store.close()
    again = SessionStore(archive=Archive(tmp_path))
    found = again.get("tenant", "a")
    assert found.state == states[-1]
    assert (found.suite, found.created_at) == (session.suite, session.created_at)
    assert found.sizes == session.sizes
    again.check_integrity()
    again.close()


def test_the_time_at_which_a_session_was_made_survives_although_it_is_set_later(tmp_path: Path) -> None:
    """An import makes a session, and then says when it was made."""
    store = SessionStore(archive=Archive(tmp_path))
    session = store.create("", "a")
    session.created_at = 1000.0
    store.save(session, conversation(["hello"]))
    store.close()
    again = SessionStore(archive=Archive(tmp_path))
    assert [head.created_at for head in again.list("")] == [again.get("", "a").created_at] == [1000.0]
    again.close()


def test_a_turn_writes_the_rows_that_it_appends(store: SessionStore, path: Path) -> None:
    history = [f"message {number}" for number in range(1000)]
    session = saved(store, conversation(history))
    written: list[str] = []
    archive_of(store)._db.set_trace_callback(written.append)
    store.save(session, adopt(session.state, chat(*history, "a question", "an answer")).state)
    words = [statement.split()[0] for statement in written]
    assert words.count("INSERT") == 2
    assert words.count("UPDATE") == 1
    assert words.count("BEGIN") == words.count("COMMIT") == 1


def test_the_file_is_readable_by_its_owner_only(store: SessionStore, path: Path) -> None:
    saved(store, conversation(["private"]))
    modes = {file.name: stat.S_IMODE(file.stat().st_mode) for file in path.parent.iterdir()}
    assert set(modes) == {"sessions.sqlite3", "sessions.sqlite3-wal", "sessions.sqlite3-shm", "sessions.lock"}
    assert set(modes.values()) == {0o600}
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700


@pytest.mark.parametrize("size", [1, 10, 300, 5000])
def test_redacted_text_leaves_the_files(store: SessionStore, path: Path, size: int) -> None:
    state = cut_messages(conversation(["hello", f"{SECRET} {size} " * size, "bye"]), 1, 2, Characters()).state
    fragment_id = state.fragments[0].fragment_id
    if size > 10:
        state = summarize(state, fragment_id, "code", "summary: 0451", "sculptor", Characters())
    session = saved(store, state)
    assert SECRET.encode() in files(path)
    store.save(session, redact(state, fragment_id))
    assert b"0451" not in files(path)
    assert b"bye" in files(path)


def test_a_text_redacted_in_the_arguments_of_a_call_leaves_the_files(store: SessionStore, path: Path) -> None:
    arguments = json.dumps({"path": "code.txt", "text": f"{SECRET} {SECRET} {SECRET}"})
    call = {"id": "c1", "type": "function", "function": {"name": "write_file", "arguments": arguments}}
    history = [
        *chat("write it"),
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "c1", "content": "written"},
    ]
    session = saved(store, adopt(SessionState(), history).state)
    assert SECRET.encode() in files(path)
    state = cut_messages(session.state, 1, 2, Characters()).state
    fragment = next(each for each in state.fragments if SECRET in state.fragment_text(each))
    store.save(session, redact(state, fragment.fragment_id))
    assert session.unsaved is None
    assert SECRET.encode() not in files(path)
    assert b"written" in files(path)


def test_redacted_text_leaves_the_rollout_record(store: SessionStore, path: Path) -> None:
    """What an operation quotes is no message, and goes with the record all the same."""
    state = cut_messages(conversation(["hello", "a text", "bye"]), 1, 2, Characters()).state
    record = RolloutRecord().begun("m", None).completed([7, 8], Sampled((9,)), "main")
    record = record.operated(Initiator.MODEL, "search_context", {"query": SECRET}, None)
    session = saved(store, replace(state, rollout=record))
    assert SECRET.encode() in files(path)
    store.save(session, redact(session.state, state.fragments[0].fragment_id))
    assert SECRET.encode() not in files(path)
    assert session.state.rollout.events == ()


def test_deleted_replaced_and_dropped_text_leaves_the_files(store: SessionStore, path: Path) -> None:
    for session_id in ("a", "b", "c"):
        saved(store, conversation(["hello", f"{session_id}: {SECRET}"]), session_id)
    store.delete("", "a")
    assert b"a: the launch" not in files(path)
    saved(store, conversation(["hello", "something else"]), "b")
    assert b"b: the launch" not in files(path)
    assert b"c: the launch" in files(path)


@pytest.mark.parametrize("seed", [5, 10, 12])
def test_removed_text_leaves_the_files_although_sqlite_moved_it(store: SessionStore, path: Path, seed: int) -> None:
    """On these scripts SQLite 3.40 with `secure_delete` alone keeps a copy of a removed row in the slack of a page."""
    random = Random(seed)
    contents: list[str] = []
    gone: list[bytes] = []
    for number in range(150):
        new = f"<{number:04d}>" * random.choice((3, 10, 30, 60, 150))
        position = random.randrange(len(contents) + 1)
        if random.random() < 0.5 or position == len(contents):
            contents.append(new)
        else:
            gone.append(contents[position][:6].encode())
            contents[position] = new
        saved(store, conversation(contents))
    content = files(path)
    assert len(gone) > 20
    assert [text for text in gone if text in content] == []
    assert all(text[:6].encode() in content for text in contents)


def test_a_second_server_on_the_same_folder_is_refused(store: SessionStore, path: Path) -> None:
    session = saved(store, conversation(["hello"]))
    module = "acmserve.context.storage.sqlite"
    program = f"from pathlib import Path; from {module} import Archive; Archive(Path({str(path.parent)!r}))"
    second = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert second.returncode == 1
    assert f"AcmError: {path} is in use by another acmserve. Stop that one, or choose another" in second.stderr
    with pytest.raises(AcmError, match="is in use by another acmserve"):
        Archive(path.parent)
    saved(store, conversation(["hello", "still here"]))
    assert len(session.state.entries) == 2
    store.check_integrity()


def test_a_killed_server_loses_neither_sessions_nor_the_file(path: Path) -> None:
    program = """
        import os, signal, sys
        from pathlib import Path
        from acmserve.context.storage.sqlite import Archive
        from acmserve.context.storage.session_store import SessionStore
        from tests.support.context.states import conversation
        store = SessionStore(archive=Archive(Path(sys.argv[1])))
        store.save(store.open("", "a"), conversation(["hello"]))
        if os.fork() == 0:
            signal.pause()
        os.kill(os.getpid(), signal.SIGKILL)
    """
    command = [sys.executable, "-c", textwrap.dedent(program), str(path.parent)]
    with subprocess.Popen(command, process_group=0, stdout=subprocess.DEVNULL) as killed:
        assert killed.wait() == -signal.SIGKILL
        # Its child lives on with the file open, as an engine process may: it does not hold the lock.
        store = SessionStore(archive=Archive(path.parent))
        os.killpg(killed.pid, signal.SIGKILL)
    assert store.get("", "a").state == conversation(["hello"])
    store.check_integrity()
    store.close()


def damage(path: Path, *statements: str) -> None:
    SessionStore(archive=Archive(path.parent)).close()
    store = SessionStore(archive=Archive(path.parent))
    saved(store, conversation(["hello", "world"]))
    store.close()
    db = sqlite3.connect(path)
    for statement in statements:
        db.execute(statement)
    db.commit()
    db.close()


@pytest.mark.parametrize(
    ("statement", "words"),
    [
        ("UPDATE meta SET value = 7", "has version 7, this acmserve reads version 6. Start the acmserve that wrote it"),
        ("DELETE FROM meta", "has version none"),
        ("DROP TABLE entries_1", "no such table: entries_1"),
        ("DROP TABLE sessions", "no such table: sessions"),
        ("UPDATE entries_1 SET data = '{}'", "Session 'a' in .*: a row holds str, not bytes"),
        ("UPDATE entries_1 SET data = x'7b7b'", "Session 'a' in .* is damaged: .* Restore it from a backup"),
        ("UPDATE entries_1 SET data = x'7b7d' WHERE position = 1", "bytes, not"),
        ("DELETE FROM entries_1 WHERE position = 0", "row 0 of 1 is missing"),
        ("UPDATE sessions SET digest_key = 'key'", "Session 'a' in .* is damaged"),
        ("UPDATE sessions SET hits = x'5b315d'", "hit is int, not list"),
        ("UPDATE sessions SET num_turns = 'many'", "num_turns is str, not int"),
    ],
)
def test_damage_is_named_and_left_as_it_is(path: Path, statement: str, words: str) -> None:
    damage(path, statement)
    with pytest.raises(AcmError, match=words) as raised:
        SessionStore(archive=Archive(path.parent))
    assert str(path) in str(raised.value)
    assert b"world" in path.read_bytes() or "entries_1" in statement


def test_a_file_of_the_first_version_is_brought_up_to_date(path: Path) -> None:
    store = SessionStore(archive=Archive(path.parent))
    for session_id in ("a", "b"):
        saved(store, conversation(["hello", session_id]), session_id)
    store.close()
    db = sqlite3.connect(path)
    for statement in (
        "DROP TABLE limits_1",
        "DROP TABLE limits_2",
        "DROP TABLE rollout_1",
        "DROP TABLE rollout_2",
        "DROP TABLE turns_1",
        "DROP TABLE turns_2",
        "ALTER TABLE sessions DROP COLUMN head",
        "UPDATE meta SET value = 1",
    ):
        db.execute(statement)
    db.commit()
    db.close()
    store = SessionStore(archive=Archive(path.parent))
    state = replace(store.get("", "b").state, omissions=Omissions(((0, 1),)), budget=Budget(50))
    store.save(store.get("", "b"), state)
    store.check_integrity()
    store.close()
    store = SessionStore(archive=Archive(path.parent))
    assert store.get("", "b").state == state
    assert not store.get("", "a").state.omissions
    store.delete("", "b")
    store.check_integrity()
    store.close()


@pytest.mark.parametrize("content", [b"no database at all, " * 100, b"SQLite format 3\x00" + b"\xff" * 5000])
def test_a_file_that_is_no_database_is_refused_and_kept(path: Path, content: bytes) -> None:
    path.parent.mkdir()
    path.write_bytes(content)
    with pytest.raises(AcmError, match=r"sessions.sqlite3 is damaged: .* move it away"):
        Archive(path.parent)
    assert path.read_bytes() == content


def test_a_database_of_another_program_is_refused(path: Path) -> None:
    path.parent.mkdir()
    db = sqlite3.connect(path)
    db.execute("CREATE TABLE bookmarks (url TEXT)")
    db.close()
    with pytest.raises(AcmError, match=r"not of acmserve\. Choose another data folder"):
        Archive(path.parent)


def test_a_folder_that_cannot_be_made_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(AcmError, match=r"cannot be used: .*Choose a folder that can be written"):
        Archive(tmp_path / "file")


def test_a_policy_that_is_not_loaded_again_is_named_with_its_flag_and_nothing_is_lost(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = "tests.support.context.lru_policy:LeastRecentlyUsed"
    monkeypatch.setattr(registry, "_loaded", {})
    registry.load(name)
    store = SessionStore(archive=Archive(path.parent))
    state = replace(conversation(["hello"]), budget=Budget(5_000, None, name, {"spare_tools": frozenset({"grep"})}))
    saved(store, state)
    store.close()
    registry._loaded.clear()
    with pytest.raises(AcmError, match=f"Start the server with --eviction-policy {name}"):
        SessionStore(archive=Archive(path.parent))
    registry.load(name)
    again = SessionStore(archive=Archive(path.parent))
    assert again.get("", "a").state.budget == state.budget
    again.close()
