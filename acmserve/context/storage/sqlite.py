"""Sessions in an SQLite file, so that they survive a restart, and leave memory without being lost.

    sessions     one row each: ids, times, counters, head, search results, and the number n of its tables
    entries_n    one row for each message           a save writes the rows that changed, in one transaction
    fragments_n  one row for each fragment
    limits_n     one row for the budget and what it took out, or none
    rollout_n    one row for each completion and each operation that is recorded for training
    turns_n      one row for the totals of its turns, and a ring of the newest turns (`codecs/turns.py`)
    meta         the version of this layout, and that of the context maps beside it (`map_table.py`)

Decisions:

- Tables for each session, because `secure_delete` alone does not keep its word. When SQLite rebalances a table it may
  leave copies of rows in the unused part of pages, and a later delete does not find them. Dropped tables are
  overwritten whole. So a save that takes text away copies what stays into new tables, drops the old ones, and empties
  the write-ahead log. Afterwards the text is nowhere in the files. Cost: one copy of that session, of no other.
- A file that cannot be read is refused by name and left as it is.

It knows nothing of bounds (`stored_sessions.py`) and nothing of locks (`database.py`). One thread at a time.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from acmserve.context.session.state import SessionState
from acmserve.context.storage.codecs.rows import RowChange, RowSizes, StateChange, pack, unpack
from acmserve.context.storage.codecs.state import VERSION, damaged, state_from
from acmserve.context.storage.codecs.turns import turns_from
from acmserve.context.storage.database import Database
from acmserve.context.storage.head import SessionHead, head_from, head_value
from acmserve.context.storage.map_table import MapTable
from acmserve.context.storage.session import Key, Session
from acmserve.errors import AcmError, IntegrityError, NotFound

FIRST_FILE_VERSION = 1
FILE_VERSION = 6
_FIRST_WITH = {"limits": 2, "rollout": 5, "turns": 6}
_FIRST_WITH_HEADS = 3
_SCHEMA = (
    "CREATE TABLE meta (name TEXT PRIMARY KEY, value INTEGER NOT NULL)",
    """CREATE TABLE sessions (
        number INTEGER PRIMARY KEY, tenant TEXT NOT NULL, session_id TEXT NOT NULL, suite TEXT NOT NULL,
        created_at REAL NOT NULL, used_at REAL NOT NULL, num_bytes INTEGER NOT NULL, num_ids INTEGER NOT NULL,
        num_turns INTEGER NOT NULL, digest_key BLOB NOT NULL, hits BLOB NOT NULL, head BLOB NOT NULL,
        UNIQUE (tenant, session_id))""",
)
_ADD_HEADS = "ALTER TABLE sessions ADD COLUMN head BLOB NOT NULL DEFAULT x'5b5d'"
_TABLES = ("entries", "fragments", "limits", "rollout", "turns")


class Archive:
    """The file in a data folder, open and locked until `close`. Folder and file are made where they are missing.

    Every failure is an `AcmError` that names the file and the remedy. Once the file is open it is a `StorageFailed`.
    """

    def __init__(self, folder: Path) -> None:
        self._file = Database(folder)
        self.path, self._db = self._file.path, self._file.db
        self._transaction, self._explained = self._file.transaction, self._file.explained
        self.empty_log = self._file.empty_log
        self._numbers: dict[Key, int] = {}
        try:
            self._open()
            self._file.opened()
        except AcmError:
            self.close()
            raise
        self._last_number = max(self._numbers.values(), default=0)
        self.maps = MapTable(self._db, self._transaction, self.empty_log)

    def __contains__(self, key: Key) -> bool:
        return key in self._numbers

    def stored(self) -> list[SessionHead]:
        """Every session in the file, the one used last at the end."""
        with self._explained():
            rows = self._db.execute(
                "SELECT tenant, session_id, suite, created_at, used_at, num_bytes, head FROM sessions"
                " ORDER BY used_at, number"
            ).fetchall()
        heads = []
        for tenant, session_id, suite, created_at, used_at, size, head in rows:
            try:
                heads.append(head_from((tenant, session_id), suite, created_at, used_at, size, unpack(head)))
            except (ValueError, TypeError) as error:
                raise damaged(f"Session {session_id!a} in {self.path}", error) from None
        return heads

    def read(self, key: Key) -> Session:
        """A session that `stored` names. Raises `NotFound` where somebody else has deleted it from the file."""
        where = f"Session {key[1]!a} in {self.path}"
        number = self._numbers[key]
        with self._file.snapshot():
            head = self._db.execute(
                "SELECT suite, created_at, used_at, num_bytes, num_ids, num_turns, digest_key, hits"
                " FROM sessions WHERE number = ?",
                (number,),
            ).fetchone()
            if head is None:
                raise NotFound("session_id", f"{where} is gone: another process has deleted it.")
            tables = [
                self._db.execute(f"SELECT position, data FROM {table}_{number} ORDER BY position").fetchall()
                for table in _TABLES
            ]
        suite, created_at, used_at, num_bytes, num_ids, num_turns, digest_key, hits = head
        try:
            values = ([unpack(data) for _, data in _in_order(rows)] for rows in tables)
            value = dict(zip(_TABLES, values, strict=True)) | {"version": VERSION, "hits": unpack(hits)}
            value |= {"num_ids": num_ids, "num_turns": num_turns, "digest_key": digest_key.hex()}
            entries, fragments, _, *more = (tuple(len(data) for _, data in rows) for rows in tables)
            sizes, turns = RowSizes(entries, fragments, *more), turns_from(value.pop("turns"))
            if sizes.num_bytes != num_bytes:
                raise ValueError(f"its rows have {sizes.num_bytes} bytes, not {num_bytes}")
        except (ValueError, TypeError, AttributeError, KeyError, IntegrityError) as error:
            raise damaged(where, error) from None
        return Session(*key, state_from(value, where), suite, turns, created_at, used_at, sizes)

    def save(
        self, session: Session, state: SessionState, used_at: float, change: StateChange, dropped: Sequence[Key] = ()
    ) -> None:
        """Write `change`, which leads from `session.state` (or from nothing) to `state`, and drop other sessions.

        One transaction. After a change that removes text, call `empty_log`. Where the session itself is among those
        that are dropped, it is written as a new one.
        """
        old = None if session.key in dropped else self._numbers.get(session.key)
        number = self._last_number + 1 if old is None or change.removes_text else old
        parts = (change.entries, change.fragments, change.limits, change.rollout, change.turns)
        tables = [(table, rows) for table, rows in zip(_TABLES, parts, strict=True) if rows is not None]
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
        """Delete sessions of the file. Call `empty_log` where their text must be gone at once."""
        with self._transaction():
            self._drop_tables(keys)
        self._forget(keys)

    def touch(self, used_at: Mapping[Key, float]) -> None:
        """Write when sessions were used last."""
        rows = [(seconds, self._numbers[key]) for key, seconds in used_at.items()]
        with self._transaction():
            self._db.executemany("UPDATE sessions SET used_at = ? WHERE number = ?", rows)

    def close(self) -> None:
        """Give the file back."""
        self._file.close()

    def _open(self) -> None:
        """Check that the file is ours, bring an older one up to date, and make the tables of a new one."""
        with self._transaction():
            tables = {name for (name,) in self._db.execute("SELECT name FROM sqlite_schema WHERE type = 'table'")}
            if not tables:
                for statement in _SCHEMA:
                    self._db.execute(statement)
                self._db.execute("INSERT INTO meta VALUES ('version', ?)", (FILE_VERSION,))
            elif "meta" not in tables:
                raise AcmError(f"{self.path} is an SQLite file, but not of acmserve. Choose another data folder.")
            found = self._db.execute("SELECT value FROM meta WHERE name = 'version'").fetchone()
            version = found[0] if found else "none"
            if not isinstance(version, int) or not FIRST_FILE_VERSION <= version <= FILE_VERSION:
                raise AcmError(
                    f"{self.path} has version {version}, this acmserve reads version {FILE_VERSION}. "
                    "Start the acmserve that wrote it, or move the file away to start without its sessions."
                )
            rows = self._db.execute("SELECT tenant, session_id, number FROM sessions").fetchall()
            self._numbers = {(tenant, session_id): number for tenant, session_id, number in rows}
            if version < FILE_VERSION:
                self._bring_up_to_date(version)

    def _bring_up_to_date(self, version: int) -> None:
        """Give a file of an older version the tables and the heads that it lacks.

        From version 4 on digests are of the normal form. Older ones are told apart, and brought up to date one by one.
        """
        for number in self._numbers.values():
            self._create_tables(number, [table for table, first in _FIRST_WITH.items() if version < first])
        if version < _FIRST_WITH_HEADS:
            self._db.execute(_ADD_HEADS)
            for key, number in self._numbers.items():
                head = pack(head_value(self.read(key).state))
                self._db.execute("UPDATE sessions SET head = ? WHERE number = ?", (head, number))
        self._db.execute("UPDATE meta SET value = ? WHERE name = 'version'", (FILE_VERSION,))

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
                # Another process may have dropped it. Then nothing of it is left to be erased.
                self._db.execute(f"DROP TABLE IF EXISTS {table}_{number}")
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
        head: dict[str, Any] = {
            "number": number,
            "suite": session.suite,
            "created_at": session.created_at,
            "used_at": used_at,
            "num_bytes": change.sizes(session.sizes).num_bytes,
            "num_ids": state.num_ids,
            "num_turns": state.num_turns,
            "digest_key": state.digest_key,
            "head": pack(head_value(state)),
        }
        if old is None:
            head |= {"tenant": session.tenant, "session_id": session.session_id}
        if old is None or change.hits is not None:
            head["hits"] = b"[]" if change.hits is None else change.hits
        if old is None:
            names, marks = ", ".join(head), ", ".join("?" * len(head))
            self._db.execute(f"INSERT INTO sessions ({names}) VALUES ({marks})", [*head.values()])
        else:
            settings = ", ".join(f"{name} = ?" for name in head)
            self._db.execute(f"UPDATE sessions SET {settings} WHERE number = ?", [*head.values(), old])


def _in_order(rows: Sequence[tuple[int, bytes]]) -> Sequence[tuple[int, bytes]]:
    positions = [position for position, _ in rows]
    if positions != list(range(len(rows))):
        missing = next(index for index, position in enumerate(positions) if index != position)
        raise ValueError(f"row {missing} of {len(rows)} is missing")
    return rows
