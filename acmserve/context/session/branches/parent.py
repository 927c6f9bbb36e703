"""What a session knows of the one that it is a branch of. Data only, see `fork.py`."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Parent:
    """`mark` distinguishes the parent from a later session of the same id. The first `num_entries` entries are the
    parent's.

    `num_messages` of those are the client's, who sends them in front of the branch's own.
    """

    session_id: str
    mark: str
    description: str
    prompt: str
    num_entries: int
    num_messages: int


def mark_of(digest_key: bytes) -> str:
    """The mark of the session that has this key."""
    return hashlib.blake2b(digest_key, digest_size=8).hexdigest()
