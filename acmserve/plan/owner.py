"""Whose KV it is: a session, its cache salt, and the adapter that computed it.

    session "s", salt "x"    base model        one owner
                             adapter "sql"     another one: its weights make other keys and values
                             adapter "sql"     a third, once its weights were loaded again

Nothing is looked up across owners. A redaction is about the text, so it reaches every owner of its session. Knows names
and numbers. Does not know how loads are told apart (`engine/requests/adapter_loads.py`).
"""

from __future__ import annotations

from typing import NamedTuple


class Adapter(NamedTuple):
    """One load of a LoRA adapter. `load` is its number in this engine, and no number is given twice.

    `hash_key` joins the block hashes. It is None for the first load under a name and a path, which vLLM's own hashes
    tell from all others.
    """

    name: str
    path: str
    load: int
    hash_key: bytes | None = None


class Owner(NamedTuple):
    """Whose KV it is. `adapter` is None for the base model."""

    session_id: str
    salt: str | None = None
    adapter: Adapter | None = None

    @property
    def session(self) -> tuple[str, str | None]:
        """The session, whatever computed its KV."""
        return self.session_id, self.salt

    @property
    def adapter_key(self) -> bytes | None:
        """What joins the block hashes of the owner's requests, if anything does."""
        return self.adapter.hash_key if self.adapter is not None else None
