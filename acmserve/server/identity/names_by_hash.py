"""Which conversations are listed under a hash: by what they end with (`content.py`), or begin with (`beginnings.py`).

Knows hashes and names, not what they stand for. A dictionary, so that thousands of hashes are looked up at C speed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import TypeVar

from acmserve.errors import IntegrityError

Listed = TypeVar("Listed")


class NamesByHash(dict[int, dict[str, None]]):
    """Names under each hash, the newest last. No hash is without a name."""

    def enter(self, name: str, marks: Iterable[int]) -> None:
        """List a name under each of `marks`, as the newest."""
        for mark in marks:
            names = self.setdefault(mark, {})
            names.pop(name, None)
            names[name] = None

    def leave(self, name: str, marks: Iterable[int]) -> None:
        """List a name under `marks` no more. Where it is not listed nothing happens."""
        for mark in marks:
            names = self.get(mark)
            if names is not None:
                names.pop(name, None)
                if not names:
                    del self[mark]

    def check_integrity(
        self, what: str, listed: Mapping[str, Listed], marks: Callable[[Listed], Iterable[int]]
    ) -> None:
        """Raise `IntegrityError` with the numbers unless each name is listed under its marks, and under no other."""
        due = {(mark, name) for name, of_name in listed.items() for mark in marks(of_name)}
        held = {(mark, name) for mark, names in self.items() for name in names}
        num_empty = sum(not names for names in self.values())
        if held != due or num_empty:
            raise IntegrityError(
                f"{what}: {len(due - held)} names missing, {len(held - due)} too many, {num_empty} hashes without one"
            )
