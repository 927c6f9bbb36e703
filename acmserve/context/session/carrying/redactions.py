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
from acmserve.context.alignment.redacted_index import RedactedIndex, RedactedStretch, Sought
from acmserve.context.alignment.redacted_text import RedactedText, erased
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
    return cut_each([(message, in_place)], redacted)[0]


def cut_each(sent: Sequence[tuple[Message, EntryRedactions]], redacted: RedactedIndex) -> list[CutMessage]:
    """What `cut_redacted` makes of each message. All are looked through together, since small ones are many."""
    if not redacted:
        return [CutMessage(message) for message, _ in sent]
    arguments = [argument_texts(message) for message, _ in sent]
    sought = [_sought(*each, said) for each, said in zip(sent, arguments, strict=True)]
    spans = [
        [(found.fragment_id, span) for text, found in there for span in text.spans(found.start, found.end)]
        for there in _found_each(sought, redacted)
    ]
    erased_in = [
        _erased(message, said, there) for (message, _), said, there in zip(sent, arguments, spans, strict=True)
    ]
    calls = [_spelled(message, said, ids) for message, said, (_, ids) in zip(erased_in, arguments, sent, strict=True)]
    left = _found_each(calls, redacted)
    return [_emptied(*each) for each in zip(erased_in, spans, left, strict=True)]


def _sought(message: Message, in_place: EntryRedactions, arguments: Sequence[tuple[ArgumentPart, str]]) -> list[Sought]:
    """What is looked through of a message: its content, and each text in arguments that are an object."""
    there = [(CoreText(message), in_place.content)]
    return there + [(CoreText(message, [found]), in_place.arguments) for found in arguments if found[0].path]


def _found_each(
    sought: Sequence[Sequence[Sought]], redacted: RedactedIndex
) -> list[list[tuple[CoreText, RedactedStretch]]]:
    """What was redacted in the texts of each message."""
    found = iter(redacted.find_each([text for texts in sought for text in texts]))
    return [[(text, stretch) for text, _ in texts for stretch in next(found)] for texts in sought]


def _erased(
    message: Message, arguments: Sequence[tuple[ArgumentPart, str]], spans: Sequence[tuple[str, Span]]
) -> Message:
    """The message without these spans, the very object where there are none."""
    if not spans:
        return message
    there: dict[Part, list[tuple[int, int]]] = {}
    for _, (part, start, end) in spans:
        there.setdefault(part, []).append((start, end))
    changed = [(part, text) for part, text in (*texts(message), *arguments) if part in there]
    return with_texts(message, {part: erased(text, part, there[part]) for part, text in changed})


def _spelled(
    message: Message, arguments: Sequence[tuple[ArgumentPart, str]], in_place: EntryRedactions
) -> list[Sought]:
    """The arguments of each call as they are spelled: a redacted text may stand in a key, or in what is no JSON object.

    vLLM renders a list of arguments, too.
    """
    raw = frozenset(part.call for part, _ in arguments if not part.path)
    spelled: list[Sought] = []
    for number, call in enumerate(tool_calls(message)):
        given = call_arguments(call)
        if given is not None:
            text = given if isinstance(given, str) else json.dumps(given, ensure_ascii=False, default=str)
            ids = in_place.arguments if number in raw else _NONE.arguments
            spelled.append((CoreText(message, [(ArgumentPart(number), unescaped(text))]), ids))
    return spelled


def _emptied(
    message: Message, spans: Sequence[tuple[str, Span]], left: Sequence[tuple[CoreText, RedactedStretch]]
) -> CutMessage:
    """The message with no arguments in the calls that still say something redacted."""
    numbers = {part.call for text, _ in left for part, _ in text.texts if isinstance(part, ArgumentPart)}
    if numbers:
        message = {**message, "tool_calls": without_arguments(message, numbers)}
        spans = [(name, span) for name, span in spans if getattr(span[0], "call", None) not in numbers]
    return CutMessage(message, tuple(spans), tuple(sorted({found.fragment_id for _, found in left})))


def cut_text(text: str, redacted: RedactedIndex, in_place: frozenset[str] = frozenset()) -> str:
    """The text with a mark for what was redacted, the very object where there is none of it."""
    return _cut_texts([(text, in_place)], redacted)[0]


def _cut_texts(sent: Sequence[tuple[str, frozenset[str]]], redacted: RedactedIndex) -> list[str]:
    """What `cut_text` makes of each text."""
    cuts = cut_each([({"role": "user", "content": text}, EntryRedactions(ids)) for text, ids in sent], redacted)
    return [
        re.sub(f"{GONE}+", MARK, str(cut.message["content"])) if cut.is_cut else text
        for (text, _), cut in zip(sent, cuts, strict=True)
    ]


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
    parent = None if state.parent is None else _cut_tasks([state.parent], redacted)[0]
    return replace(state, branches=tuple(_cut_tasks(state.branches, redacted)), parent=parent)


def cut_notes(state: SessionState) -> SessionState:
    """The state without what was redacted in the notes of its omissions. A call in the note's message told them."""
    noted = {at: kept for at, kept in state.omissions.entries.items() if kept.notes}
    if not state.redacted or not noted:
        return state
    redacted, redactions = RedactedIndex(state.redacted, state.digest_key), redactions_at(state)
    told = [(note, redactions.get(at, _NONE).ids) for at, kept in noted.items() for note in kept.notes]
    left = iter(_cut_texts(told, redacted))
    entries = {at: replace(kept, notes=tuple(next(left) for _ in kept.notes)) for at, kept in noted.items()}
    entries = {**state.omissions.entries, **entries}
    return replace(state, omissions=replace(state.omissions, entries=entries))


def _cut_tasks(tasks: Sequence[_Task], redacted: RedactedIndex) -> list[_Task]:
    left = iter(_cut_texts([(text, frozenset()) for t in tasks for text in (t.description, t.prompt)], redacted))
    return [replace(task, description=next(left), prompt=next(left)) for task in tasks]


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
