"""A thread of a family as it is known, and where a request was put.

    family "agent-7"   main  "agent-7"            its session has the family's id
                       side  "agent-7~task-1a2b"  a session of its own

Data, and how a side thread's session is called. Who is put where is chosen in `threads.py` and done in `families.py`.
"""

from __future__ import annotations

from dataclasses import dataclass

from acmserve.plan.request import MAX_SESSION_ID_CHARS
from acmserve.server.identity.client_id import digest_id
from acmserve.server.identity.fingerprint import Fingerprint, fingerprint_of
from acmserve.server.identity.prompt import PromptUnits
from acmserve.server.identity.system_text import SystemText
from acmserve.server.identity.threads import MAIN

MARK = "~"
"""Between the id of a family and the name of a side thread."""


@dataclass(slots=True)
class KnownThread:
    """A thread: its session, its name in the family, and the id by which the engine knows its KV.

    `is_behind`: its transcript, which is stored, has gone on since `conversation` was made of it. `summed` is what the
    main thread was when this fork was asked about it, None where its answer names no session: see `summaries.py`.
    """

    family: str
    name: str
    session_id: str
    engine_id: str
    conversation: Fingerprint
    agent: str = ""
    is_fork: bool = False
    is_behind: bool = False
    summed: Fingerprint | None = None


@dataclass(frozen=True, slots=True)
class FoundSession:
    """The session that a request without an id goes on with: by its history, or by a summary of it."""

    family: str
    by_summary: bool = False


@dataclass(frozen=True, slots=True)
class Placement:
    """Where a request was put. `forked_from` is the session whose state it goes on from.

    `moved` is what the former main thread is now, where the request took its place. `left` are sessions that must go.
    `before` is what was remembered of the thread, None for a new one.
    """

    thread: KnownThread
    conversation: Fingerprint
    before: Fingerprint | None = None
    forked_from: str | None = None
    moved: KnownThread | None = None
    left: tuple[str, ...] = ()

    @property
    def is_main(self) -> bool:
        return self.thread.name == MAIN


def derived_id(family: str, name: str) -> str:
    """The session id of a side thread: readable, and no longer than an id may be."""
    made = f"{family}{MARK}{name}"
    if len(made) <= MAX_SESSION_ID_CHARS:
        return made
    return f"{family[: MAX_SESSION_ID_CHARS // 2]}.{digest_id(family)}{MARK}{name}"


NOTHING = fingerprint_of(PromptUnits(SystemText.of(""), 0))
