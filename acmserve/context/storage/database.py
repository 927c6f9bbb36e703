"""The SQLite file of a data folder: open, locked against a second server, and readable by everybody else.

    sessions.sqlite3        written by one server        `sqlite3 FILE .backup COPY` works while it runs
    sessions.lock           an empty database, held in an exclusive transaction as long as the file is open

Decisions:

- SQLite itself holds the lock, on a file of its own. The kernel drops it with the process, and a forked engine process
  does not inherit it. Never open either file by other means in this process: closing it would drop a lock (POSIX).
- A file that was removed or replaced is not written. Its new name belongs to somebody else, and what went to the old
  one would be lost.
- A lock of another process is waited for briefly, for the event loop of a server waits with it.
- `synchronous=NORMAL`: a killed process loses nothing. A power cut may lose the last saves, never the file.

It knows no table. One thread at a time.
"""

from __future__ import annotations

import contextlib
import os
import sqlite3
from collections.abc import Iterator
from pathlib import Path

from acmserve.context.storage.codecs.state import damaged
from acmserve.errors import AcmError, StorageFailed

FILE_NAME = "sessions.sqlite3"
LOCK_NAME = "sessions.lock"
_OPEN_WAIT_SECONDS = 1.0
_WAIT_MILLISECONDS = 100
_PRAGMAS = "journal_mode = WAL; synchronous = NORMAL; secure_delete = ON; temp_store = MEMORY"
_DAMAGE = ("SQLITE_CORRUPT", "SQLITE_NOTADB", "SQLITE_ERROR", "SQLITE_SCHEMA")
_KEPT = "The sessions live on in memory, and the server goes on trying"
# How SQLite's names of errors begin -> reason, what is said of the file, what to do.
_FAILURES = (
    ("SQLITE_FULL", "full", "cannot grow, for its disk or its size limit is full", f"Free space. {_KEPT}."),
    ("SQLITE_BUSY", "locked", "is locked by another process", f"End that process. {_KEPT}."),
    ("SQLITE_LOCKED", "locked", "is locked by another process", f"End that process. {_KEPT}."),
    ("SQLITE_READONLY", "read_only", "cannot be written, for it is read-only", f"Make it writable. {_KEPT}."),
    *(
        (name, "damaged", "is damaged", "Restore it from a backup, or move it away, and start the server again.")
        for name in _DAMAGE
    ),
)
_FAILED = ("failed", "cannot be used", f"Check the space and the permissions of its folder. {_KEPT}.")


class Database:
    """Folder and file are made where they are missing. While it opens every failure is an `AcmError`.

    Afterwards it is a `StorageFailed`, and the next call tries again.
    """

    def __init__(self, folder: Path) -> None:
        self.path = path = folder / FILE_NAME
        self._is_open = False
        with self.explained():
            _create_private(path)
            self._lock = self._locked(folder / LOCK_NAME)
        try:
            with self.explained():
                # The event loop of a server may run in another thread than the one that made it.
                self.db = sqlite3.connect(path, _OPEN_WAIT_SECONDS, isolation_level=None, check_same_thread=False)
            self._identity = _identity(path)
            with self.explained():
                for setting in _PRAGMAS.split("; "):
                    self.db.execute(f"PRAGMA {setting}")
        except AcmError:
            self.close()
            raise

    def opened(self) -> None:
        """The file is ours and checked. From now on its failures are told to clients, too."""
        self.empty_log()
        self.db.execute(f"PRAGMA busy_timeout = {_WAIT_MILLISECONDS}")
        self._is_open = True

    def close(self) -> None:
        """Give the file back."""
        with contextlib.ExitStack() as closing:
            closing.callback(self._lock.close)
            if hasattr(self, "db"):
                self.db.close()

    @contextlib.contextmanager
    def transaction(self) -> Iterator[None]:
        """All or nothing."""
        with self.explained():
            self._check_identity()
            self.db.execute("BEGIN IMMEDIATE")
            try:
                yield
                self.db.execute("COMMIT")
            except BaseException:
                # Whatever ends it, the file would stay locked. Nothing is swallowed.
                # SQLite has rolled back by itself where the disk is full.
                if self.db.in_transaction:
                    self.db.execute("ROLLBACK")
                raise

    @contextlib.contextmanager
    def snapshot(self) -> Iterator[None]:
        """All that is read inside stood in the file at one moment, whoever else writes meanwhile."""
        with self.explained():
            if self.db.in_transaction:
                yield
                return
            self.db.execute("BEGIN")
            try:
                yield
            finally:
                if self.db.in_transaction:
                    self.db.execute("ROLLBACK")

    def empty_log(self) -> None:
        """Bring everything into the file itself and empty the write-ahead log, which has older text."""
        with self.explained():
            self._check_identity()
            busy, _, _ = self.db.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()
        if busy:
            raise StorageFailed(
                str(self.path),
                "locked",
                "still has removed text in its write-ahead log, which another process reads",
                f"End that process. {_KEPT}.",
            )

    @contextlib.contextmanager
    def explained(self) -> Iterator[None]:
        """Failures of the file, in words that name it and what to do."""
        try:
            yield
        except sqlite3.ProgrammingError:
            raise
        except sqlite3.Error as error:
            name = getattr(error, "sqlite_errorname", "")
            raise (self._failure(name, error) if self._is_open else self._refusal(name, error)) from error
        except OSError as error:
            raise AcmError(f"{self.path} cannot be used: {error}. Choose a folder that can be written.") from error

    def _failure(self, name: str, error: sqlite3.Error) -> StorageFailed:
        """What went wrong while the server runs."""
        found = (failure[1:] for failure in _FAILURES if name.startswith(failure[0]))
        reason, problem, remedy = next(found, _FAILED)
        return StorageFailed(str(self.path), reason, f"{problem} ({error})", remedy)

    def _refusal(self, name: str, error: sqlite3.Error) -> AcmError:
        """Why the file is not opened."""
        if name.startswith(("SQLITE_BUSY", "SQLITE_LOCKED")):
            return AcmError(f"{self.path} is in use by another acmserve. Stop that one, or choose another data folder.")
        if name.startswith(_DAMAGE) or not name:
            return damaged(str(self.path), error)
        return AcmError(
            f"{self.path} cannot be used: {error} ({name}). Check free space and permissions of its folder."
        )

    def _locked(self, path: Path) -> sqlite3.Connection:
        """A connection that holds the folder for this server."""
        _create_private(path)
        lock = sqlite3.connect(path, _OPEN_WAIT_SECONDS, isolation_level=None, check_same_thread=False)
        try:
            lock.execute("PRAGMA journal_mode = MEMORY")
            lock.execute("BEGIN EXCLUSIVE")
        except BaseException:
            # Raised again as it is. An open connection would hold the folder for a server that does not start.
            lock.close()
            raise
        return lock

    def _check_identity(self) -> None:
        if _identity(self.path) != self._identity:
            raise StorageFailed(
                str(self.path),
                "replaced",
                "was removed or replaced while the server ran",
                "Put it back, or start the server again, which loses what is only in memory.",
            )


def _identity(path: Path) -> tuple[int, int] | None:
    """Which file a name means now, None where it means none."""
    try:
        status = path.stat()
    except OSError:
        return None
    return status.st_dev, status.st_ino


def _create_private(path: Path) -> None:
    """Make an empty file that only its owner reads. One that exists is not touched: closing it would drop its lock."""
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    with contextlib.suppress(FileExistsError):
        os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_RDWR, 0o600))
