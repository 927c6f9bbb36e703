"""Which API server owns a session: the one process that has its transcript, its lock, its budget and its events.

    by session    tenant + "agent-7"              --largest hash--> API server 1
                  tenant + "agent-7~task-1a2b"    --the same hash-> API server 1      a side thread of it
    by tenant     tenant                          --largest hash--> API server 0      where content finds sessions

Rendezvous hashing keeps no table, so the servers agree without a word. A server draws ids
that it owns itself (`context/storage/session_names.py`). So a branch, whose id is drawn, has the owner of its parent.

Decision: of an id only the part in front of the first `~` counts, and of that the first 128 characters. A side thread's
id begins with its session's (`identity/placement.py`), also where it is shortened.

It knows names and numbers, no processes.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass

from acmserve.plan.request import MAX_SESSION_ID_CHARS
from acmserve.server.identity.placement import MARK

_COUNTED_CHARS = MAX_SESSION_ID_CHARS // 2


@dataclass(frozen=True, slots=True)
class Ownership:
    """Who owns what among `num_servers`. `by_tenant`: all sessions of a tenant have one owner."""

    num_servers: int
    by_tenant: bool = False

    def owner_of(self, tenant: str, session_id: str) -> int:
        """The API server that owns a session."""
        name = "" if self.by_tenant else session_id.partition(MARK)[0][:_COUNTED_CHARS]
        return max(range(self.num_servers), key=lambda index: _weight(tenant, name, index))

    def owner_of_tenant(self, tenant: str) -> int | None:
        """The API server that owns all of a tenant, None where its sessions have several owners."""
        return self.owner_of(tenant, "") if self.by_tenant else None


def _weight(tenant: str, name: str, index: int) -> bytes:
    text = f"{index}\n{tenant}\n{name}"
    return hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=8).digest()
