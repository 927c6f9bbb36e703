"""One byte that processes share: whether somebody arrived who is not in the scheduler yet.

    whose           raised                                     lowered
    the server's    a request that wants an answer arrives,    its answer begins, or it ends without one,
                    nothing of it is read yet                  or it is long on its way
    the engine's    the thread that reads requests has one     it is among the scheduler's requests

Their reader is the worker, between two layers of a background chunk. It may be a process of its own, started before the
scheduler. It learns the names of the flags with each chunk that it may leave, and opens them then. The server's has a
name that follows from the engine's id, which both know.

One byte is read and written whole, so there is no lock. A process that made a flag and dies leaves none behind.
Python's resource tracker outlives it, and removes the flag.
"""

from __future__ import annotations

import hashlib
from multiprocessing import resource_tracker, shared_memory
from unittest.mock import patch


class ArrivalFlag:
    """See the module. Without a name, or with `makes`, it is new and this process removes it. Else it is another's.

    Raises `FileExistsError` where one of this name is there already, and `FileNotFoundError` where none is.
    """

    def __init__(self, name: str | None = None, *, makes: bool = False) -> None:
        self._is_mine = makes or name is None
        if self._is_mine:
            self._memory = shared_memory.SharedMemory(name=name, create=True, size=1)
            self.lower()
        else:
            assert name is not None
            self._memory = _opened(name)

    @property
    def name(self) -> str:
        """What the other process opens."""
        return self._memory.name

    @property
    def is_raised(self) -> bool:
        """Whether somebody arrived."""
        byte = self._memory.buf
        return byte is not None and bool(byte[0])

    def raise_it(self) -> None:
        """Somebody arrived."""
        self._set(1)

    def lower(self) -> None:
        """Whoever arrived is known."""
        self._set(0)

    def _set(self, value: int) -> None:
        byte = self._memory.buf
        if byte is not None:
            byte[0] = value

    def hide(self) -> None:
        """Who has it open keeps it, and nobody finds it any more. So it ends with them, however they end."""
        if self._is_mine:
            self._is_mine = False
            self._memory.unlink()

    def close(self) -> None:
        """It is not used any more here. Who made it removes it."""
        self._memory.close()
        self.hide()


def server_flag_name(engine_id: str) -> str:
    """The name of the flag of the server in front of an engine."""
    return f"acm-{hashlib.blake2b(engine_id.encode(), digest_size=10).hexdigest()}"


def find_flag(name: str) -> ArrivalFlag | None:
    """Another process's flag, None where there is none: an engine without server, or one that ends."""
    try:
        return ArrivalFlag(name)
    except FileNotFoundError:
        return None


def _opened(name: str) -> shared_memory.SharedMemory:
    """The memory of another process. Python would remove it when this one ends (fixed in Python 3.13)."""
    with patch.object(resource_tracker, "register", lambda *args, **kwargs: None):
        return shared_memory.SharedMemory(name=name)
