"""The entries of a changed history: the client's messages in its order, and what ran on the server beside its answers.

    old      u1  [i i] a1  [i] a2   P            [i]: the calls and results of a turn, in front of its answer
    client   s   u1    a1' x   a2                P: what a branch session returned
    new      s   u1  [i i] a1'  x  [i] a2  P

Internal entries follow the answer of their turn. They go with it, and where the client holds other words than the model
spoke. What was placed from outside stands behind what it stood behind, or behind the nearest entry that is left. It
never stands between a call and its results.

It knows neither texts nor edits: entries are numbers here.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from acmserve.context.alignment.match import Matches, MatchKind
from acmserve.context.session.state import PLACED, Author, TranscriptEntry
from acmserve.context.transcript.message import Message
from acmserve.context.transcript.parts import Role, role_of


@dataclass(frozen=True, slots=True)
class EntrySlot:
    """One entry to come: the number of the old entry, and of the client's message. One of them at least is there."""

    old: int | None
    new: int | None = None


@dataclass(slots=True)
class _Followers:
    """The internal entries of an answer, or those that were placed behind an entry."""

    in_front: list[int] = field(default_factory=list)
    behind: list[int] = field(default_factory=list)


def lay_out(
    entries: Sequence[TranscriptEntry], held: Sequence[int], matches: Matches, messages: Sequence[Message]
) -> list[EntrySlot]:
    """The slots of the new history. `held` are the entries of the client, which `matches` counts."""
    known = {held[match.old]: match.kind for match in matches if match is not None and match.is_known}
    groups, waiting = _groups(entries, known)
    slots = [EntrySlot(old) for old in waiting.pop(-1, ())]
    pending: list[int] = []
    for new, match in enumerate(matches):
        if pending and role_of(messages[new]) is not Role.RESULT:
            slots += [EntrySlot(old) for old in pending]
            pending = []
        if match is None or not match.is_known:
            slots.append(EntrySlot(None, new))
            continue
        old = held[match.old]
        group = groups.get(old, _Followers())
        slots += [
            *(EntrySlot(at) for at in group.in_front),
            EntrySlot(old, new),
            *(EntrySlot(at) for at in group.behind),
        ]
        pending += waiting.get(old, ())
    return [*slots, *(EntrySlot(old) for old in pending)]


def _groups(
    entries: Sequence[TranscriptEntry], known: dict[int, MatchKind]
) -> tuple[dict[int, _Followers], dict[int, list[int]]]:
    """The internal entries by the answer that they follow, and those that wait behind an entry (-1: at the start)."""
    answers = {entry.turn: at for at, entry in enumerate(entries) if entry.origin is Author.ANSWER}
    groups: dict[int, _Followers] = {}
    waiting: dict[int, list[int]] = {}
    last = -1
    for at, entry in enumerate(entries):
        if entry.origin is not Author.INTERNAL:
            last = at if at in known else last
            continue
        answer = answers.get(entry.turn) if entry.turn != PLACED else None
        if answer is None:
            waiting.setdefault(last, []).append(at)
        elif answer in known and at < answer:
            groups.setdefault(answer, _Followers()).in_front.append(at)
        elif known.get(answer) is MatchKind.SAME:
            groups.setdefault(answer, _Followers()).behind.append(at)
    return groups, waiting
