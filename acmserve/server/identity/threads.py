"""Which thread of a family a request belongs to. An id names a family: a main thread, and threads beside it.

    main   [sys A][tools] u0 a1 u2 a3 ...                        keeps the session id that the client sent
    side   [sys B]        "Write a title for ..."                nothing in common: a session of its own
    side   [sys C]        u0 a1 u2 a3 "Summarize the above."     goes on from the main thread: a fork with its edits
    side   [sys C]        u0 a1 "Summarize the above."           about its first part: a fork, too
    side   [sys D]        "[User]: u0 [Result]: u2 ..."          retells the main thread: its KV, not its edits
    side   [sys E][grep]  "Find the callers of f." a1 ...        a sub-agent, with turns of its own

A request leaves a thread only where the system prompt *and* the tools say so. A changed line in the system prompt does
not, and neither does a client that changes or drops its tools. Where both are others, the history decides. A request
that goes on from the model's own words is a fork, and one that shares none is a thread of its own.

Decisions:
- A client of ours that names its session means that session. There a change of system prompt and tools in the middle
  of a conversation that still has tools stays in the main thread. A new beginning with the same system prompt, or the
  same tools, replaces the main thread, as it always did.
- Under an id that only a client's protocol carries, a new beginning is a thread of its own. Such ids may name a cache
  rather than a conversation, and several conversations may run under one. Where the client says that the id is that
  of the thread whose turn this is, it stays in the main thread: a compaction may have left nothing else alike. So does
  a request that was found by a compaction of the session, under the same system prompt and with the same tools, unless
  the conversation was given another answer since.
- A request without tools that came first (a title) makes room: the first agent takes the main thread over.
- Side requests without tools are one-shot tasks. The next one of the same system prompt takes their thread.
- A request without tools that retells the main thread has a transcript of its own, since its one text can have none of
  the edits. It goes by the main thread's name in the engine, so that the KV of that text is found.

Pure: remembered conversations and a prompt in, a decision out.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum

from acmserve.server.identity.beginnings import has_first_part
from acmserve.server.identity.fingerprint import Fingerprint, Likeness, compare, compare_history, retells
from acmserve.server.identity.prompt import PromptUnits
from acmserve.server.identity.thread_hints import ThreadHints

MAIN = "main"


class ChoiceKind(Enum):
    """Where a request goes: on in a thread, into a new one, or into the main thread, which is a side thread then.

    `RETELL` is a new one, or one that is taken again, which shares the KV of the main thread.
    """

    JOIN = "join"
    FORK = "fork"
    RETELL = "retell"
    NEW = "new"
    TAKE_OVER = "take over"


@dataclass(frozen=True, slots=True)
class Candidate:
    """A thread that there is. The main one has the name `MAIN`. `agent` is the client's own id of a sub-agent."""

    name: str
    conversation: Fingerprint
    agent: str = ""


@dataclass(frozen=True, slots=True)
class Choice:
    """`name` is the thread that is joined, or whose place a fork takes: None for a new one.

    `label` is how a new one is called: its kind, or its agent.
    """

    kind: ChoiceKind
    name: str | None = None
    label: str = ""


def choose_thread(
    prompt: PromptUnits, hints: ThreadHints, candidates: Sequence[Candidate], *, family: str = "", is_explicit: bool
) -> Choice:
    """Choose among the threads of a family, used longest ago first. The main one may be missing."""
    main = next((candidate for candidate in candidates if candidate.name == MAIN), None)
    if hints.thread and hints.thread == family:
        return Choice(ChoiceKind.NEW if main is None else ChoiceKind.JOIN, MAIN)
    likeness = None if main is None else compare(main.conversation, prompt)
    is_fork = main is not None and likeness is not None and _is_fork(main, likeness, prompt)
    others = [candidate for candidate in candidates if not candidate.agent]
    if hints.agent:
        known = next((candidate for candidate in candidates if candidate.agent == hints.agent), None)
        if known is not None:
            return Choice(ChoiceKind.JOIN, known.name)
        return Choice(ChoiceKind.FORK if is_fork else ChoiceKind.NEW, label="agent")
    if hints.resumes and main is not None and likeness is not None and _is_resumed(main, likeness, prompt):
        return Choice(ChoiceKind.JOIN, MAIN)
    if hints.kind and main is not None:
        slot = next((each.name for each in others if each.name != MAIN and _is_same_agent(each, prompt)), None)
        if is_fork:
            return Choice(ChoiceKind.FORK, slot, hints.kind)
        return Choice(ChoiceKind.NEW if slot is None else ChoiceKind.JOIN, slot, hints.kind)
    joined = _joined(prompt, others, is_explicit)
    if main is not None and _is_retold(main, joined, prompt):
        return Choice(ChoiceKind.RETELL, None if joined is None else joined.name, "task")
    if joined is not None and (joined.name == MAIN or not is_fork or _is_ahead(joined, likeness, prompt)):
        return Choice(ChoiceKind.JOIN, joined.name)
    if main is None or likeness is None:
        return Choice(ChoiceKind.NEW, MAIN)
    if is_fork:
        return Choice(ChoiceKind.FORK, None if joined is None else joined.name, "fork" if prompt.tools else "task")
    if main.conversation.tools == 0 and prompt.tools and not likeness.same_system:
        return Choice(ChoiceKind.TAKE_OVER, MAIN, "task")
    return Choice(ChoiceKind.NEW, label="agent" if prompt.tools else "task")


def _is_resumed(main: Candidate, likeness: Likeness, prompt: PromptUnits) -> bool:
    """Whether a request that holds a compaction of the session is the next turn of it. Nothing else may be alike."""
    has_gone_on = bool(main.conversation.answer) and not likeness.history.is_answered
    return _is_same_agent(main, prompt) and not has_gone_on


def _is_retold(main: Candidate, joined: Candidate | None, prompt: PromptUnits) -> bool:
    """Whether a request that is not the main thread's own tells it again, all in its own words' place."""
    is_side = joined is None or joined.name != MAIN
    return is_side and not prompt.tools and retells(main.conversation, prompt)


def _joined(prompt: PromptUnits, candidates: Sequence[Candidate], is_explicit: bool) -> Candidate | None:
    """The thread that a request goes on in. Of several the one with most in common, then the main one, the newest."""
    best: tuple[tuple[int, ...], Candidate] | None = None
    for number, candidate in enumerate(candidates):
        likeness = compare(candidate.conversation, prompt)
        if not _belongs(candidate, likeness, prompt, is_explicit):
            continue
        agreed = likeness.same_system + bool(likeness.same_tools)
        rank = (agreed, likeness.history.num_shared, likeness.history.is_answered, candidate.name == MAIN, number)
        if best is None or rank > best[0]:
            best = (rank, candidate)
    return None if best is None else best[1]


def _belongs(candidate: Candidate, likeness: Likeness, prompt: PromptUnits, is_explicit: bool) -> bool:
    shares = _shares(candidate, likeness)
    if candidate.name != MAIN:
        is_task = not prompt.tools and not candidate.conversation.tools
        return likeness.same_system and likeness.same_tools is not False and (shares or is_task)
    if candidate.conversation.is_empty:
        return True
    both_without = not prompt.tools and not candidate.conversation.tools and not is_explicit
    if likeness.same_system or (likeness.same_tools and not both_without):
        return is_explicit or shares or not prompt.begins or likeness.same_tools is None
    if likeness.same_tools is None:
        return shares and (bool(prompt.tools) or is_explicit)
    if both_without:
        return likeness.history.continues
    return is_explicit and bool(prompt.tools) and _goes_on_from(candidate, likeness)


def _shares(candidate: Candidate, likeness: Likeness) -> bool:
    """Whether a request has a real part of the conversation."""
    history = likeness.history
    return history.continues or history.num_leading > 0 or history.num_shared * 2 >= candidate.conversation.num_chars


def _goes_on_from(main: Candidate, likeness: Likeness) -> bool:
    """Whether a request begins as the main thread does, words of its model included, and has most of it."""
    conversation = main.conversation
    has_answer = 0 < conversation.num_opening <= likeness.history.num_leading or likeness.history.is_answered
    return has_answer and likeness.history.num_leading > 0 and likeness.history.num_shared * 2 >= conversation.num_chars


def _is_fork(main: Candidate, likeness: Likeness, prompt: PromptUnits) -> bool:
    """Whether a request goes on from the main thread, or is about the first part of it, however short that is."""
    return _goes_on_from(main, likeness) or has_first_part(main.conversation, prompt)


def _is_ahead(side: Candidate, of_main: Likeness | None, prompt: PromptUnits) -> bool:
    """Whether a side thread has more of a request than the main one, whose edits a fork made now would have."""
    return of_main is None or compare_history(side.conversation, prompt).num_shared > of_main.history.num_shared


def _is_same_agent(candidate: Candidate, prompt: PromptUnits) -> bool:
    conversation = candidate.conversation
    return conversation.tools == prompt.tools and conversation.system.is_like(prompt.system)
