"""A thread of a family as it is known, and where a request was put, or would be.

    family "agent-7"   main  "agent-7"            its session has the family's id
                       side  "agent-7~task-1a2b"  a session of its own

Data, and how a side thread's session is called. Who is put where is chosen in `threads.py` and done in `families.py`.
`foresee` is for a count, which nobody remembers. A thread that its request would begin has its kind for a name, since
a name is drawn when it is made.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from acmserve.plan.request import MAX_SESSION_ID_CHARS
from acmserve.server.identity.client_id import digest_id
from acmserve.server.identity.fingerprint import Fingerprint, fingerprint_of
from acmserve.server.identity.prompt import PromptUnits
from acmserve.server.identity.system_text import SystemText
from acmserve.server.identity.thread_hints import ThreadHints
from acmserve.server.identity.threads import MAIN, Candidate, ChoiceKind, choose_thread

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


def is_of_family(session_id: str, family: str) -> bool:
    """Whether a session is the main thread of a family, or has the id of a side thread."""
    return session_id in (family, derived_id(family, session_id.rpartition(MARK)[2]))


NOTHING = fingerprint_of(PromptUnits(SystemText.of(""), 0))


def begun_thread(family: str, name: str, others: Iterable[KnownThread], agent: str) -> KnownThread:
    """A thread that has no conversation yet. A main one leaves the name in the engine to a former one that has it."""
    session_id = engine_id = family if name == MAIN else derived_id(family, name)
    if name == MAIN and any(other.engine_id != other.session_id and not other.is_fork for other in others):
        engine_id = f"{family}{MARK}{MAIN}"
    return KnownThread(family, name, session_id, engine_id, NOTHING, agent)


def foresee(
    family: str,
    known: Mapping[str, KnownThread],
    stored: Iterable[KnownThread],
    prompt: PromptUnits,
    hints: ThreadHints,
    *,
    is_explicit: bool,
) -> Placement:
    """The placement of a request among the threads of a family, with copies of them. It has no conversation of its own.

    `known` are the threads by name, used longest ago first. `stored` are those of the store, where not all are known.
    """
    threads = _seen(known, stored)
    candidates = [Candidate(each.name, each.conversation, each.agent) for each in threads.values()]
    choice = choose_thread(prompt, hints, candidates, family=family, is_explicit=is_explicit)
    main, takes_over = threads.get(MAIN), choice.kind is ChoiceKind.TAKE_OVER
    joined = None if takes_over else threads.get(choice.name or "")
    if joined is not None:
        thread = replace(joined)
    else:
        name = MAIN if takes_over or choice.name == MAIN else choice.label
        thread = begun_thread(family, name, threads.values(), hints.agent)
    before = None if joined is None else joined.conversation
    if main is None or choice.kind not in (ChoiceKind.FORK, ChoiceKind.RETELL):
        return Placement(thread, thread.conversation, before)
    thread.engine_id, thread.is_fork = main.engine_id, True
    forked_from = main.session_id if choice.kind is ChoiceKind.FORK else None
    return Placement(thread, thread.conversation, before, forked_from)


def _seen(known: Mapping[str, KnownThread], stored: Iterable[KnownThread]) -> dict[str, KnownThread]:
    """The threads by name, with what is stored of those that are behind."""
    threads = dict(known)
    for thread in stored:
        before = threads.get(thread.name)
        if before is None:
            threads[thread.name] = thread
        elif before.is_behind:
            conversation = replace(thread.conversation, tools=before.conversation.tools)
            threads[thread.name] = replace(before, conversation=conversation)
    return threads
