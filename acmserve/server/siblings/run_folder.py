"""The private folder of a deployment with several API servers: their sockets, and the secret that they share.

    acmserve-x1y2/          mode 0700, made by the parent process before it starts any API server
        secret              mode 0600, 32 random bytes as text
        0.sock  1.sock      mode 0600, one for each API server

Whoever may open a socket may read the secret. The secret keeps out a process of another user that was handed a
descriptor of a socket. It keeps out a request that was not made by a sibling, too. The folder goes when the parent
process ends.
"""

from __future__ import annotations

import os
import secrets
import tempfile
from pathlib import Path

from acmserve.errors import AcmError

_MAX_PATH_BYTES = 100
"""A path of a Unix socket may have 107 bytes."""
_SECRET = "secret"


def make_run_folder() -> Path:
    """A new folder with a new secret. Raises `AcmError` where sockets in it would have too long a path."""
    base = os.environ.get("XDG_RUNTIME_DIR") or tempfile.gettempdir()
    folder = Path(tempfile.mkdtemp(prefix="acmserve-", dir=base if os.access(base, os.W_OK) else None))
    if len(os.fsencode(socket_path(folder, 99))) > _MAX_PATH_BYTES:
        folder.rmdir()
        raise AcmError(f"sockets in {folder.parent} would have too long a path; set TMPDIR to a shorter one")
    descriptor = os.open(folder / _SECRET, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(descriptor, "w") as file:
        file.write(secrets.token_hex(32))
    return folder


def read_secret(folder: Path) -> bytes:
    """The secret of a deployment."""
    return (folder / _SECRET).read_bytes()


def socket_path(folder: Path, index: int) -> Path:
    """Where an API server listens for its siblings."""
    return folder / f"{index}.sock"
