"""The data folder of a deployment: one file, or one folder for each API server.

    --api-server-count 1    DIR/sessions.sqlite3
    --api-server-count 2    DIR/api-server-0-of-2/sessions.sqlite3      DIR/api-server-1-of-2/sessions.sqlite3

No file is ever open in two processes. Who owns a session depends on how many servers there are. So a start with another
number is refused where the folder has sessions, and the refusal names the number that finds them. `keys_of` says what
each file has, for whoever knows the owners.
"""

from __future__ import annotations

import re
from pathlib import Path

from acmserve.context.storage.database import FILE_NAME
from acmserve.context.storage.session import Key, SessionLimits
from acmserve.context.storage.session_store import SessionStore
from acmserve.context.storage.sqlite import Archive
from acmserve.context.storage.stored_sessions import StoredSessions
from acmserve.errors import AcmError

_SHARE = re.compile(r"api-server-\d+-of-(\d+)")


def share_of(folder: Path, index: int, num_servers: int) -> Path:
    """The folder of one API server."""
    return folder if num_servers == 1 else folder / f"api-server-{index}-of-{num_servers}"


def check_data_dir(folder: Path, num_servers: int, limits: SessionLimits) -> None:
    """Open every file of a deployment once, and give it back. Raises `AcmError`.

    Refused is a folder with sessions of a deployment of another size.
    """
    for other, share in _shares(folder):
        if other != num_servers and _has_sessions(share):
            flag = "without --api-server-count" if other == 1 else f"with --api-server-count {other}"
            raise AcmError(
                f"--data-dir {folder} has the sessions of {_servers(other)}, and this start has {num_servers}. Start "
                f"{flag}, or name another folder and hand the sessions over with export and import."
            )
    for index in range(num_servers):
        SessionStore(limits, Archive(share_of(folder, index, num_servers))).close()


def keys_of(folder: Path, num_servers: int) -> list[tuple[int, Key]]:
    """Every session and every map in the files of a deployment, each with the index of its server."""
    found: list[tuple[int, Key]] = []
    for index in range(num_servers):
        archive = Archive(share_of(folder, index, num_servers))
        try:
            found += [(index, head.key) for head in archive.stored()]
            found += [(index, key) for key in archive.maps.stored_keys()]
        finally:
            archive.close()
    return found


def _shares(folder: Path) -> list[tuple[int, Path]]:
    """The folders that have a file of sessions, each with the size of its deployment."""
    found = [(1, folder)]
    for each in sorted(folder.iterdir()) if folder.is_dir() else ():
        match = _SHARE.fullmatch(each.name)
        if match is not None:
            found.append((int(match.group(1)), each))
    return [(size, share) for size, share in found if (share / FILE_NAME).is_file()]


def _has_sessions(share: Path) -> bool:
    archive = Archive(share)
    stored = StoredSessions(archive)
    try:
        return len(stored) > 0 or len(archive.maps.stored_keys()) > 0
    finally:
        stored.close()


def _servers(number: int) -> str:
    return "one API server" if number == 1 else f"{number} API servers"
