"""Sessions in an SQLite file, so that they survive a restart. The store writes through it. Nothing reads while it runs.

    sessions     one row each: ids, times, counters, search results, and the number n of its two tables
    entries_n    one row for each message           a save writes the rows that changed, in one transaction
    fragments_n  one row for each fragment
    limits_n     one row for the budget and what it took out, or none
    meta         the version of this layout, and that of the context maps beside it (`map_table.py`)

Decisions:

- Tables for each session, because `secure_delete` alone does not keep its word. When SQLite rebalances a table it may
  leave copies of rows in the unused part of pages, and a later delete does not find them. Dropped tables are
  overwritten whole. So a save that takes text away copies what stays into new tables, drops the old ones, and empties
  the write-ahead log. Afterwards the text is nowhere in the files. Cost: one copy of that session, of no other.
- The file is locked by SQLite itself (`locking_mode=EXCLUSIVE`), not by a lock file. The kernel drops the lock with the
  process, a forked engine process does not inherit it, and without readers the log can always be emptied. Never open
  the file by other means in the process that serves it: closing it again would drop the lock (POSIX).
- `synchronous=NORMAL`: a killed process loses nothing. A power cut may lose the last saves, never the file.
- A file that cannot be read is refused by name and left as it is.

It knows nothing of bounds (`store.py`). One thread at a time.
"""

from __future__ import annotations

import contextlib
import os
import sqlite3
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from acmserve.context.session.state import SessionState
from acmserve.context.storage.map_table import MapTable
from acmserve.context.storage.session import Key, Session
from acmserve.context.storage.state_codec import (
    FIRST_VERSION,
    VERSION,
    RowChange,
    StateChange,
    damaged,
    state_from,
    unpack,
)
from acmserve.errors import AcmError

FILE_NAME = "sessions.sqlite3"
_LOCK_WAIT_SECONDS = 1.0
_SCHEMA = (
    "CREATE TABLE meta (name TEXT PRIMARY KEY, value INTEGER NOT NULL)",
    """CREATE TABLE sessions (
        number INTEGER PRIMARY KEY, tenant TEXT NOT NULL, session_id TEXT NOT NULL, suite TEXT NOT NULL,
        created_at REAL NOT NULL, used_at REAL NOT NULL, num_bytes INTEGER NOT NULL, num_ids INTEGER NOT NULL,
        num_turns INTEGER NOT NULL, digest_key BLOB NOT NULL, hits BLOB NOT NULL, UNIQUE (tenant, session_id))""",
)
_PRAGMAS = "locking_mode = EXCLUSIVE; journal_mode = WAL; synchronous = NORMAL; secure_delete = ON; temp_store = MEMORY"
_TABLES = ("entries", "fragments", "limits")
_DAMAGE = ("SQLITE_CORRUPT", "SQLITE_NOTADB", "SQLITE_ERROR", "SQLITE_SCHEMA")


@dataclass(frozen=True, slots=True)
class Stored:
    """What the file says of a session without reading it."""

    key: Key
    used_at: float
    num_bytes: int


class Archive:
    """The file in a data folder, open and locked until `close`. Folder and file are made where they are missing.

    Every failure is an `AcmError` that names the file and the remedy.
    """

    def __init__(self, folder: Path) -> None:
        self.path = path = folder / FILE_NAME
        with self._explained():
            _create_private(path)
            # The event loop of a server may run in another thread than the one that made it.
            self._db = sqlite3.connect(path, _LOCK_WAIT_SECONDS, isolation_level=None, check_same_thread=False)
        try:
            self._open()
            with self._explained():
                rows = self._db.execute("SELECT tenant, session_id, number FROM sessions").fetchall()
        except AcmError:
            self._db.close()
            raise
        self._numbers: dict[Key, int] = {(tenant, session_id): number for tenant, session_id, number in rows}
        self._last_number = max(self._numbers.values(), default=0)
        self.maps = MapTable(self._db, self._transaction, self.empty_log)

    def stored(self) -> list[Stored]:
        """Every session in the file, the one used last at the end."""
        with self._explained():
            rows = self._db.execute(
                "SELECT tenant, session_id, used_at, num_bytes FROM sessions ORDER BY used_at, number"
            )
            return [Stored((tenant, session_id), used_at, size) for tenant, session_id, used_at, size in rows]

    def read(self, key: Key) -> Session:
        """A session that `stored` names."""
        where = f"Session {key[1]!a} in {self.path}"
        number = self._numbers[key]
        with self._explained():
            head = self._db.execute(
                "SELECT suite, created_at, used_at, num_bytes, num_ids, num_turns, digest_key, hits"
                " FROM sessions WHERE number = ?",
                (number,),
            ).fetchone()
            tables = [
                self._db.execute(f"SELECT position, data FROM {table}_{number} ORDER BY position").fetchall()
                for table in _TABLES
            ]
        suite, created_at, used_at, num_bytes, num_ids, num_turns, digest_key, hits = head
        try:
            values = ([unpack(data) for _, data in _in_order(rows)] for rows in tables)
            value = dict(zip(_TABLES, values, strict=True)) | {"version": VERSION, "hits": unpack(hits)}
            value |= {"num_ids": num_ids, "num_turns": num_turns, "digest_key": digest_key.hex()}
            sizes = [[len(data) for _, data in rows] for rows in tables[:2]]
            if sum(map(sum, sizes)) != num_bytes:
                raise ValueError(f"its rows have {sum(map(sum, sizes))} bytes, not {num_bytes}")
        except (ValueError, TypeError, AttributeError) as error:
            raise damaged(where, error) from None
        return Session(*key, state_from(value, where), suite, created_at, used_at, *sizes)

    def save(
        self, session: Session, state: SessionState, used_at: float, change: StateChange, dropped: Sequence[Key] = ()
    ) -> None:
        """Write `change`, which leads from `session.state` (or from nothing) to `state`, and drop other sessions.

        One transaction. After a change that removes text, call `empty_log`.
        """
        old = self._numbers.get(session.key)
        number = self._last_number + 1 if old is None or change.removes_text else old
        tables = tuple(zip(_TABLES, (change.entries, change.fragments, change.limits), strict=True))
        with self._transaction():
            self._drop_tables(dropped)
            if old is None:
                self._create_tables(number)
            for table, rows in tables:
                if old is not None:
                    self._remove_rows(f"{table}_{old}", rows)
            if old is not None and number != old:
                self._move_tables(old, number)
            for table, rows in tables:
                self._db.executemany(f"INSERT INTO {table}_{number} VALUES (?, ?)", rows.rows.items())
            self._write_head(number, old, session, state, used_at, change)
        self._forget(dropped)
        self._numbers[session.key] = number
        self._last_number = max(self._last_number, number)

    def drop(self, keys: Sequence[Key]) -> None:
        """Delete sessions. Call `empty_log` where their text must be gone at once."""
        with self._transaction():
            self._drop_tables(keys)
        self._forget(keys)

    def touch(self, sessions: Sequence[Session]) -> None:
        """Write when these sessions were used last."""
        rows = [(session.used_at, self._numbers[session.key]) for session in sessions]
        with self._transaction():
            self._db.executemany("UPDATE sessions SET used_at = ? WHERE number = ?", rows)

    def empty_log(self) -> None:
        """Bring everything into the file itself and empty the write-ahead log, which has older text."""
        with self._explained():
            busy, _, _ = self._db.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()
        if busy:
            raise AcmError(f"{self.path}: the write-ahead log could not be emptied; another process holds the file.")

    def close(self) -> None:
        """Give the file back."""
        with self._explained():
            self._db.close()

    def _open(self) -> None:
        """Lock the file, check that it is ours, and make the tables of a new one."""
        with self._explained():
            for setting in _PRAGMAS.split("; "):
                self._db.execute(f"PRAGMA {setting}")
        with self._transaction():
            tables = {name for (name,) in self._db.execute("SELECT name FROM sqlite_schema WHERE type = 'table'")}
            if not tables:
                for statement in _SCHEMA:
                    self._db.execute(statement)
                self._db.execute("INSERT INTO meta VALUES ('version', ?)", (VERSION,))
            elif "meta" not in tables:
                raise AcmError(f"{self.path} is an SQLite file, but not of acmserve. Choose another data folder.")
            found = self._db.execute("SELECT value FROM meta WHERE name = 'version'").fetchone()
            if found == (FIRST_VERSION,):
                found = self._bring_up_to_date()
        if found != (VERSION,):
            version = found[0] if found else "none"
            raise AcmError(
                f"{self.path} has version {version}, this acmserve reads version {VERSION}. "
                "Start the acmserve that wrote it, or move the file away to start without its sessions."
            )
        self.empty_log()

    def _bring_up_to_date(self) -> tuple[int]:
        """Give a file of the first version what it lacks."""
        for (number,) in self._db.execute("SELECT number FROM sessions").fetchall():
            self._create_tables(number, ("limits",))
        self._db.execute("UPDATE meta SET value = ? WHERE name = 'version'", (VERSION,))
        return (VERSION,)

    def _create_tables(self, number: int, tables: Sequence[str] = _TABLES) -> None:
        for table in tables:
            self._db.execute(f"CREATE TABLE {table}_{number} (position INTEGER PRIMARY KEY, data BLOB NOT NULL)")

    def _move_tables(self, old: int, new: int) -> None:
        """Copy what is left into new tables. Dropping the old ones overwrites every page of theirs."""
        self._create_tables(new)
        for table in _TABLES:
            self._db.execute(f"INSERT INTO {table}_{new} SELECT position, data FROM {table}_{old} ORDER BY position")
            self._db.execute(f"DROP TABLE {table}_{old}")

    def _drop_tables(self, keys: Sequence[Key]) -> None:
        for key in keys:
            number = self._numbers[key]
            for table in _TABLES:
                self._db.execute(f"DROP TABLE {table}_{number}")
            self._db.execute("DELETE FROM sessions WHERE number = ?", (number,))

    def _forget(self, keys: Sequence[Key]) -> None:
        for key in keys:
            del self._numbers[key]

    def _remove_rows(self, table: str, change: RowChange) -> None:
        """Rows that are written anew, and those behind the end."""
        self._db.executemany(f"DELETE FROM {table} WHERE position = ?", [(position,) for position in change.rows])
        self._db.execute(f"DELETE FROM {table} WHERE position >= ?", (change.num_rows,))

    def _write_head(
        self, number: int, old: int | None, session: Session, state: SessionState, used_at: float, change: StateChange
    ) -> None:
        """The row of the session itself."""
        sizes = (*change.entries.sizes(session.entry_bytes), *change.fragments.sizes(session.fragment_bytes))
        head = {
            "number": number,
            "suite": session.suite,
            "used_at": used_at,
            "num_bytes": sum(sizes),
            "num_ids": state.num_ids,
            "num_turns": state.num_turns,
            "digest_key": state.digest_key,
        }
        if old is None:
            head |= {"tenant": session.tenant, "session_id": session.session_id, "created_at": session.created_at}
        if old is None or change.hits is not None:
            head["hits"] = b"[]" if change.hits is None else change.hits
        if old is None:
            names, marks = ", ".join(head), ", ".join("?" * len(head))
            self._db.execute(f"INSERT INTO sessions ({names}) VALUES ({marks})", [*head.values()])
        else:
            settings = ", ".join(f"{name} = ?" for name in head)
            self._db.execute(f"UPDATE sessions SET {settings} WHERE number = ?", [*head.values(), old])

    @contextlib.contextmanager
    def _transaction(self) -> Iterator[None]:
        """All or nothing."""
        with self._explained():
            self._db.execute("BEGIN EXCLUSIVE")
            try:
                yield
                self._db.execute("COMMIT")
            except BaseException:
                with contextlib.suppress(sqlite3.Error):
                    self._db.execute("ROLLBACK")
                raise

    @contextlib.contextmanager
    def _explained(self) -> Iterator[None]:
        """Failures of the file, in words that name it and what to do."""
        try:
            yield
        except sqlite3.ProgrammingError:
            raise
        except sqlite3.Error as error:
            name = getattr(error, "sqlite_errorname", "")
            if name.startswith(("SQLITE_BUSY", "SQLITE_LOCKED")):
                raise AcmError(
                    f"{self.path} is in use by another acmserve. Stop that one, or choose another data folder."
                ) from error
            if name.startswith(_DAMAGE) or not name:
                raise damaged(str(self.path), error) from error
            raise AcmError(
                f"{self.path} cannot be used: {error} ({name}). Check free space and permissions of its folder."
            ) from error
        except OSError as error:
            raise AcmError(f"{self.path} cannot be used: {error}. Choose a folder that can be written.") from error


def _create_private(path: Path) -> None:
    """Make an empty file that only its owner reads. One that exists is not touched: closing it would drop its lock."""
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    with contextlib.suppress(FileExistsError):
        os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_RDWR, 0o600))


def _in_order(rows: Sequence[tuple[int, bytes]]) -> Sequence[tuple[int, bytes]]:
    positions = [position for position, _ in rows]
    if positions != list(range(len(rows))):
        missing = next(index for index, position in enumerate(positions) if index != position)
        raise ValueError(f"row {missing} of {len(rows)} is missing")
    return rows
