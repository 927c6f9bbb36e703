"""Context maps in the SQLite file of the sessions: one row each, its contents in a table of its own.

    maps       number, tenant, id, used_at          map_n     one row: the map as JSON
    meta       'maps': the version of this layout, apart from the version of the sessions

A save writes a new table and drops the old one, which overwrites it whole. What left a map (an item deleted, evicted)
is then nowhere in the file. `sqlite.py` says why rows alone do not keep that promise. Maps are small and rarely change.
A file without maps gets the table when it is opened. Acmserve before maps reads such a file as before.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass

from acmserve.context.maps.map import ContextMap
from acmserve.context.storage.codecs.map import map_from, map_value
from acmserve.context.storage.codecs.rows import pack, unpack
from acmserve.context.storage.codecs.state import damaged
from acmserve.errors import AcmError

MAPS_VERSION = 1
MapKey = tuple[str, str]
_SCHEMA = """CREATE TABLE maps (
    number INTEGER PRIMARY KEY, tenant TEXT NOT NULL, map_id TEXT NOT NULL, used_at REAL NOT NULL,
    UNIQUE (tenant, map_id))"""


@dataclass(frozen=True, slots=True)
class StoredMap:
    """A map as the file has it."""

    key: MapKey
    used_at: float
    context_map: ContextMap


class MapTable:
    """Made by `Archive`, whose connection, transactions and cleaning it uses."""

    def __init__(
        self,
        db: sqlite3.Connection,
        transaction: Callable[[], AbstractContextManager[None]],
        empty_log: Callable[[], None],
    ) -> None:
        self._db = db
        self._transaction = transaction
        self._empty_log = empty_log
        self._numbers: dict[MapKey, int] = {}
        self._last_number = 0

    def load(self) -> list[StoredMap]:
        """Every map in the file, the one used last at the end. Called once, before anything else."""
        with self._transaction():
            if not self._is_there():
                self._db.execute(_SCHEMA)
                self._db.execute("INSERT INTO meta VALUES ('maps', ?)", (MAPS_VERSION,))
            rows = self._db.execute(
                "SELECT number, tenant, map_id, used_at FROM maps ORDER BY used_at, number"
            ).fetchall()
            stored = [StoredMap((t, m), used_at, self._read(number, m)) for number, t, m, used_at in rows]
        self._numbers = {(tenant, map_id): number for number, tenant, map_id, _ in rows}
        self._last_number = max(self._numbers.values(), default=0)
        return stored

    def stored_keys(self) -> list[MapKey]:
        """Every map in the file. None is read, and nothing is written."""
        with self._transaction():
            return self._db.execute("SELECT tenant, map_id FROM maps").fetchall() if self._is_there() else []

    def save(self, key: MapKey, context_map: ContextMap, used_at: float, dropped: tuple[MapKey, ...] = ()) -> None:
        """Write a map whole, and drop others, as far as they are there. One transaction."""
        number = self._last_number + 1
        dropped = tuple(gone for gone in dropped if gone in self._numbers)
        with self._transaction():
            for gone in (*dropped, *([key] if key in self._numbers else [])):
                self._drop_table(gone)
            self._db.execute(f"CREATE TABLE map_{number} (data BLOB NOT NULL)")
            self._db.execute(f"INSERT INTO map_{number} VALUES (?)", (pack(map_value(context_map)),))
            self._db.execute("INSERT INTO maps VALUES (?, ?, ?, ?)", (number, *key, used_at))
        self._forget(dropped)
        self._numbers[key] = self._last_number = number
        self._empty_log()

    def drop(self, key: MapKey) -> None:
        """Delete a map, where there is one. Its text is gone from the file afterwards."""
        if key in self._numbers:
            with self._transaction():
                self._drop_table(key)
            self._forget((key,))
        self._empty_log()

    def _is_there(self) -> bool:
        """Whether the file has a table of maps. Raises `AcmError` for one of another version."""
        found = self._db.execute("SELECT value FROM meta WHERE name = 'maps'").fetchone()
        if found not in (None, (MAPS_VERSION,)):
            raise AcmError(
                f"The maps in the sessions' file have version {found[0]}, this acmserve reads version "
                f"{MAPS_VERSION}. Start the acmserve that wrote them, or choose another data folder."
            )
        return found is not None

    def _read(self, number: int, map_id: str) -> ContextMap:
        where = f"Map {map_id!a} in the sessions' file"
        rows = self._db.execute(f"SELECT data FROM map_{number}").fetchall()
        if len(rows) != 1:
            raise damaged(where, ValueError(f"it has {len(rows)} rows"))
        try:
            value = unpack(rows[0][0])
        except (ValueError, TypeError) as error:
            raise damaged(where, error) from None
        return map_from(value, where)

    def _drop_table(self, key: MapKey) -> None:
        number = self._numbers[key]
        self._db.execute(f"DROP TABLE map_{number}")
        self._db.execute("DELETE FROM maps WHERE number = ?", (number,))

    def _forget(self, keys: tuple[MapKey, ...]) -> None:
        for key in keys:
            del self._numbers[key]
