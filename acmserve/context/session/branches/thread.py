"""What a session knows of the family of threads that it belongs to. Data only, see `fork.py` for threads that fork."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Thread:
    """`family` is the session id that the client sends, `name` "main" or that of a side thread.

    `engine_id` is the id under whose name the engine knows its KV. What `is_fork` goes by that of the main thread. A
    session that is the only one of its family has no `Thread`.
    """

    family: str
    name: str
    engine_id: str
    is_fork: bool = False
