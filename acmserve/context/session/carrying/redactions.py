"""Cuts what was redacted out of messages that a client sends in other words, and marks the place.

    sent      "My key is hunter2-hunter2, use it. <reminder>"      the session knows digests of "hunter2-hunter2"
    entry     "My key is ................, use it. <reminder>"     the fragment of the redaction has a piece there again

A message that was recognised keeps the words that the session has, so only changed and new ones are searched. The
digest of such an entry is that of the client's message, so that it is recognised the next time.

What a session keeps beside its messages has a mark in its place: tasks of branches, notes of explorations, arguments in
the rollout record.

Contents are searched, and the arguments of calls. Where a place in those cannot be marked (a key, or what is no JSON
object), the arguments are emptied. Fields of reasoning are not searched.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeVar

from acmserve.context.alignment.core_text import CoreText, Span
from acmserve.context.alignment.likeness import GONE, GONE_ARGUMENT
from acmserve.context.alignment.redacted_text import RedactedIndex, RedactedText, erased
from acmserve.context.session.branches.branch import Branch
from acmserve.context.session.branches.parent import Parent
from acmserve.context.session.fragment import Fragment, Piece, Visibility
from acmserve.context.session.marker import redacted as redacted_marker
from acmserve.context.session.state import SessionState
from acmserve.context.transcript.call_arguments import (
    ArgumentPart,
    argument_texts,
    unescaped,
    with_arguments,
    without_arguments,
)
from acmserve.context.transcript.message import Message, Part, Place, texts, with_texts
from acmserve.context.transcript.parts import call_arguments, tool_calls

MARK = "[redacted]"
"""What stands for a redacted text where no fragment can."""

_Task = TypeVar("_Task", Branch, Parent)


@dataclass(frozen=True, slots=True)
class CutMessage:
    """A message without what was redacted, and where that stood: the fragment's id and the span of each piece.

    `emptied` are the redactions for which the arguments of a call were emptied.
    """

    message: Message
    found: tuple[tuple[str, Span], ...] = ()
    emptied: tuple[str, ...] = ()

    @property
    def is_cut(self) -> bool:
        """Whether anything of the message was redacted."""
        return bool(self.found or self.emptied)


@dataclass(frozen=True, slots=True)
class EntryRedactions:
    """The redactions of one entry, by their fragments' ids: those in its content, and those in arguments of calls."""

    content: frozenset[str] = frozenset()
    arguments: frozenset[str] = frozenset()

    @property
    def ids(self) -> frozenset[str]:
        """All of them."""
        return self.content | self.arguments


_NONE = EntryRedactions()


def cut_redacted(message: Message, redacted: RedactedIndex, in_place: EntryRedactions = _NONE) -> CutMessage:
    """The message without what was redacted, the very object where there is none of it.

    `in_place` are the redactions of the message that it stands for.
    """
    if not redacted:
        return CutMessage(message)
    arguments = argument_texts(message)
    sought = [(CoreText(message), in_place.content)]
    sought += [(CoreText(message, [found]), in_place.arguments) for found in arguments if found[0].path]
    spans = [
        (found.fragment_id, span)
        for text, ids in sought
        for found in redacted.find(text, ids)
        for span in text.spans(found.start, found.end)
    ]
    if spans:
        there: dict[Part, list[tuple[int, int]]] = {}
        for _, (part, start, end) in spans:
            there.setdefault(part, []).append((start, end))
        changed = [(part, text) for part, text in (*texts(message), *arguments) if part in there]
        message = with_texts(message, {part: erased(text, part, there[part]) for part, text in changed})
    raw = frozenset(part.call for part, _ in arguments if not part.path)
    emptied = {
        number: ids
        for number, call in enumerate(tool_calls(message))
        if (ids := _left_in_call(message, number, call, redacted, in_place.arguments if number in raw else frozenset()))
    }
    if emptied:
        message = {**message, "tool_calls": without_arguments(message, emptied)}
        spans = [(name, span) for name, span in spans if getattr(span[0], "call", None) not in emptied]
    return CutMessage(message, tuple(spans), tuple(sorted({name for ids in emptied.values() for name in ids})))


def cut_text(text: str, redacted: RedactedIndex, in_place: frozenset[str] = frozenset()) -> str:
    """The text with a mark for what was redacted, the very object where there is none of it."""
    cut = cut_redacted({"role": "user", "content": text}, redacted, EntryRedactions(in_place))
    return re.sub(f"{GONE}+", MARK, str(cut.message["content"])) if cut.is_cut else text


def cut_arguments(arguments: Mapping[str, Any], redacted: RedactedIndex) -> Mapping[str, Any]:
    """The arguments of a call with a mark for what was redacted. Empty where it stands in a key."""
    function = {"name": "", "arguments": arguments}
    cut = cut_redacted({"role": "assistant", "tool_calls": [{"type": "function", "function": function}]}, redacted)
    erased_in = {part for _, (part, _, _) in cut.found}
    marked = {
        part: re.sub(f"{GONE_ARGUMENT}+", MARK, text) for part, text in argument_texts(cut.message) if part in erased_in
    }
    left: Mapping[str, Any] = with_arguments(cut.message, marked)[0]["function"]["arguments"]
    return left


def cut_tasks(state: SessionState) -> SessionState:
    """The state without what was redacted in the tasks of its branches, and in that of the branch which it is."""
    if not state.redacted or (state.parent is None and not state.branches):
        return state
    redacted = RedactedIndex(state.redacted, state.digest_key)
    parent = None if state.parent is None else _cut_task(state.parent, redacted)
    return replace(state, branches=tuple(_cut_task(branch, redacted) for branch in state.branches), parent=parent)


def cut_notes(state: SessionState) -> SessionState:
    """The state without what was redacted in the notes of its omissions. A call in the note's message told them."""
    noted = {at: kept for at, kept in state.omissions.entries.items() if kept.notes}
    if not state.redacted or not noted:
        return state
    redacted, redactions = RedactedIndex(state.redacted, state.digest_key), redactions_at(state)
    entries = dict(state.omissions.entries)
    for at, kept in noted.items():
        ids = redactions.get(at, _NONE).ids
        entries[at] = replace(kept, notes=tuple(cut_text(note, redacted, ids) for note in kept.notes))
    return replace(state, omissions=replace(state.omissions, entries=entries))


def _cut_task(task: _Task, redacted: RedactedIndex) -> _Task:
    return replace(task, description=cut_text(task.description, redacted), prompt=cut_text(task.prompt, redacted))


def _left_in_call(
    message: Message, number: int, call: Mapping[str, Any], redacted: RedactedIndex, in_place: frozenset[str]
) -> set[str]:
    """The redactions of which a call's arguments still say something: in a key, or in what is no JSON object.

    vLLM renders a list of arguments, too.
    """
    arguments = call_arguments(call)
    if arguments is None:
        return set()
    spelled = arguments if isinstance(arguments, str) else json.dumps(arguments, ensure_ascii=False, default=str)
    text = CoreText(message, [(ArgumentPart(number), unescaped(spelled))])
    return {found.fragment_id for found in redacted.find(text, in_place)}


def redactions_at(state: SessionState) -> dict[int, EntryRedactions]:
    """The redactions of each entry that has some."""
    found: dict[int, EntryRedactions] = {}
    for fragment in state.fragments:
        for piece in fragment.pieces if fragment.visibility is Visibility.REDACTED else ():
            here, own = found.get(piece.place.entry, _NONE), frozenset({fragment.fragment_id})
            found[piece.place.entry] = (
                replace(here, arguments=here.arguments | own)
                if isinstance(piece.place.part, ArgumentPart)
                else replace(here, content=here.content | own)
            )
    return found


def found_pieces(cuts: Mapping[int, CutMessage]) -> dict[str, list[Piece]]:
    """What was found in the entries of a new history, by the fragment's id, in order."""
    pieces: dict[str, list[Piece]] = {}
    for entry in sorted(cuts):
        for fragment_id, (part, start, end) in cuts[entry].found:
            pieces.setdefault(fragment_id, []).append(Piece(Place(entry, part), start, end))
    return pieces


def found_anew(
    fragments: Sequence[Fragment], found: Mapping[str, Sequence[Piece]], redacted: Sequence[RedactedText]
) -> tuple[Fragment, ...]:
    """Fragments of redactions that the history had lost, and that came again."""
    known = {fragment.fragment_id for fragment in fragments}
    sealed = {text.fragment_id: text for text in reversed(redacted)}
    return tuple(
        Fragment(
            fragment_id,
            sealed[fragment_id].role,
            tuple(pieces),
            sealed[fragment_id].num_tokens,
            Visibility.REDACTED,
            redacted_marker(fragment_id, sealed[fragment_id].num_tokens, len(pieces)),
        )
        for fragment_id, pieces in found.items()
        if fragment_id not in known
    )
