"""One byte that the engine core and its worker share: whether somebody arrived who is not in the scheduler yet.

    engine core   the thread that reads requests raises it; the scheduler lowers it once they are among its requests
    worker        looks at it between two layers of a background chunk

The worker may be a process of its own, started before the scheduler. It learns the flag's name with the first chunk
that it may leave, and opens it then. One byte is read and written whole, so there is no lock.
"""

from __future__ import annotations

from multiprocessing import resource_tracker, shared_memory
from unittest.mock import patch


class ArrivalFlag:
    """See the module. Made without a name it is new and this process removes it, with one it is another's."""

    def __init__(self, name: str | None = None) -> None:
        self._is_mine = name is None
        if name is None:
            self._memory = shared_memory.SharedMemory(create=True, size=1)
        else:
            self._memory = _opened(name)
        if self._is_mine:
            self.lower()

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

    def close(self) -> None:
        """It is not used any more here. Who made it removes it."""
        self._memory.close()
        if self._is_mine:
            self._memory.unlink()


def _opened(name: str) -> shared_memory.SharedMemory:
    """The memory of another process. Python would remove it when this one ends (fixed in Python 3.13)."""
    with patch.object(resource_tracker, "register", lambda *args, **kwargs: None):
        return shared_memory.SharedMemory(name=name)
