"""What became of a session's edits when a client's history was taken in: kept, told, or lost in silence.

Says by the texts alone which edits could have been kept, without a digest and without the code that carries them.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from acmserve.context.session.fragment import Fragment, Visibility
from acmserve.context.session.history import Adoption
from acmserve.context.session.render import render, render_entries
from acmserve.context.session.state import Author, SessionState
from acmserve.context.transcript.message import Message, texts
from acmserve.context.transcript.parts import Role, role_of
from tests.support.context.agent_session import AgentSession
from tests.support.context.respellings import Tagged


@dataclass
class Survival:
    """`could` counts edits on unchanged text and `kept` those that are there, by kind. `silent` were lost untold."""

    could: Counter[str] = field(default_factory=Counter)
    kept: Counter[str] = field(default_factory=Counter)
    silent: list[str] = field(default_factory=list)
    back: set[str] = field(default_factory=set)
    lost: list[str] = field(default_factory=list)

    def add(self, other: Survival) -> None:
        self.could += other.could
        self.kept += other.kept
        self.silent += other.silent
        self.back |= other.back
        self.lost += other.lost

    @property
    def share(self) -> float:
        return self.kept.total() / max(1, self.could.total())


def judge(made: AgentSession, history: Tagged, adoption: Adoption) -> Survival:
    """Compare a session with what it is after a history was taken in."""
    found = Survival()
    sent = {number: message for number, message in history if number is not None}
    held = _held(made.state)
    told = {(edit.kind, edit.edit_id) for edit in adoption.dropped}
    _judge_fragments(made.state, adoption.state, sent, held, told, found)
    _judge_branches(made.state, adoption.state, sent, held, told, found)
    _judge_omissions(made.state, adoption.state, sent, held, {kind for kind, _ in told}, found)
    found.back = made.secrets & words_of((adoption.state, render(adoption.state)))
    return found


def words_of(value: object) -> set[str]:
    """The words of a writer in whatever is printed of a value."""
    return set(re.findall(r"word\d+", repr(value)))


def _held(state: SessionState) -> dict[int, int]:
    """The number of the client's message, by entry."""
    entries = [at for at, entry in enumerate(state.entries) if entry.origin is not Author.INTERNAL]
    return {at: number for number, at in enumerate(entries)}


def _judge_fragments(
    old: SessionState,
    new: SessionState,
    sent: Mapping[int, Message],
    held: Mapping[int, int],
    told: set[tuple[str, str]],
    found: Survival,
) -> None:
    now = {fragment.fragment_id: fragment for fragment in new.fragments}
    for fragment in old.fragments:
        if fragment.visibility is Visibility.REDACTED:
            continue
        carried = now.get(fragment.fragment_id)
        is_kept = carried is not None and _is_same(old, fragment, new, carried)
        if _could_stay(old, fragment, sent, held):
            found.could["fragment"] += 1
            found.kept["fragment"] += is_kept
            found.lost += [] if is_kept else [f"fragment {fragment.fragment_id}"]
        if not is_kept and ("fragment", fragment.fragment_id) not in told:
            found.silent.append(f"fragment {fragment.fragment_id}")


def _is_same(old: SessionState, before: Fragment, new: SessionState, after: Fragment) -> bool:
    """Whether a fragment has its text. Messages that the client sends in another order have it in that order."""
    was, now = old.fragment_text(before), new.fragment_text(after)
    is_reordered = len(_core(was)) == len(_core(now)) and _words(was) == _words(now)
    texts_same = _core(was) == _core(now) or is_reordered
    return (
        texts_same and before.visibility is after.visibility and (before.shown or ("",))[0] == (after.shown or ("",))[0]
    )


def _could_stay(old: SessionState, fragment: Fragment, sent: Mapping[int, Message], held: Mapping[int, int]) -> bool:
    """Whether the text of each piece stands in the message that the client sends for its entry."""
    for piece in fragment.pieces:
        entry = piece.place.entry
        if entry not in held:
            if not _answer_stays(old, entry, sent, held):
                return False
            continue
        message = sent.get(held[entry])
        if message is None or _core(old.piece_text(piece)) not in _message_core(message):
            return False
    return True


def _answer_stays(old: SessionState, entry: int, sent: Mapping[int, Message], held: Mapping[int, int]) -> bool:
    """Whether the answer of the turn in which an entry of the server's own was made comes with its text."""
    turn = old.entries[entry].turn
    answers = [at for at, e in enumerate(old.entries) if e.origin is Author.ANSWER and e.turn == turn]
    return bool(answers) and _is_unchanged(old, answers[0], sent, held)


def _is_unchanged(old: SessionState, entry: int, sent: Mapping[int, Message], held: Mapping[int, int]) -> bool:
    message = sent.get(held[entry])
    return message is not None and _message_core(old.entries[entry].message) == _message_core(message)


def _judge_branches(
    old: SessionState,
    new: SessionState,
    sent: Mapping[int, Message],
    held: Mapping[int, int],
    told: set[tuple[str, str]],
    found: Survival,
) -> None:
    now = {branch.call_id: branch for branch in new.branches}
    for branch in old.branches:
        carried = now.get(branch.call_id)
        is_kept = carried is not None and carried.state == branch.state
        if _answer_stays(old, branch.call_entry, sent, held):
            found.could["branch"] += 1
            found.kept["branch"] += is_kept
            found.lost += [] if is_kept else [f"branch {branch.call_id}"]
        if not is_kept and ("branch", branch.call_id) not in told:
            found.silent.append(f"branch {branch.call_id}")


def _judge_omissions(
    old: SessionState,
    new: SessionState,
    sent: Mapping[int, Message],
    held: Mapping[int, int],
    told: set[str],
    found: Survival,
) -> None:
    """A message of the assistant that was left out is left out, by its text and its calls' names and arguments."""
    left, hidden_now = render_entries(old), _hidden(new)
    for entry, shown in enumerate(left):
        message = old.entries[entry].message
        in_branch = any(branch.holds(entry) for branch in old.branches)
        if entry not in held or in_branch or role_of(message) is not Role.ASSISTANT or shown is not None:
            continue
        if not _is_unchanged(old, entry, sent, held):
            continue
        is_kept = _key(message) in hidden_now
        found.could["omission"] += 1
        found.kept["omission"] += is_kept
        found.lost += [] if is_kept else [f"omission {entry}"]
        if not is_kept and "omission" not in told:
            found.silent.append(f"omission {entry}")


def _hidden(state: SessionState) -> set[object]:
    left = render_entries(state)
    return {_key(entry.message) for entry, shown in zip(state.entries, left, strict=True) if shown is None}


def _key(message: Message) -> object:
    calls: Any = message.get("tool_calls") or ()
    return _message_core(message), tuple(call["function"]["arguments"] for call in calls)


def _message_core(message: Message) -> str:
    return "".join(_core(text) for _, text in texts(message))


def _words(text: str) -> list[str]:
    return sorted(re.findall(r"word\d+", text))


def _core(text: str) -> str:
    return "".join(text.split())
