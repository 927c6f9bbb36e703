"""What the model sees: the transcript with the hidden pieces replaced by what stands in their place, and without what
an eviction took out.

    original   "Read this:\n[line 1 ......... line 400]\nWhat is it?"      "Let me look." ls   result      "It is 7."
    rendered   "Read this:\n[folded f1a2b3: ... hidden; ...]\nWhat is it?"                                "It is 7."

Of fragments that lie in one another the outermost hidden one shows its marker.

An edit neither adds, removes nor reorders messages. Only an eviction under a budget leaves some out, without moving the
others. Where the served template refuses what is left, neighbours are merged or bridged (`alternation.py`). That
happens only where something was left out. A message of which nothing is hidden is the very object that the client sent.
Without an edit and an eviction, what the model sees is what the client wrote. Entry numbers count the transcript,
`render_entries`, never `render`.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

from acmserve.context.session import marker
from acmserve.context.session.fragment import Fragment, Piece, Visibility
from acmserve.context.session.nesting import outermost, overlapping
from acmserve.context.session.state import SessionState, TextReader
from acmserve.context.transcript.alternation import alternate, alternate_entries
from acmserve.context.transcript.call_arguments import ArgumentPart
from acmserve.context.transcript.message import Message, Part, Place, text_at, with_texts
from acmserve.context.transcript.omissions import EMPTY, omit_from_messages
from acmserve.context.transcript.parts import tool_calls
from acmserve.context.transcript.template_rules import TAKES_ALL, TemplateRules

InFront = Callable[[SessionState], Mapping[int, str]]
"""What a request writes in front of messages of the user that its prompt shows, by entry."""


def nothing_in_front(state: SessionState) -> Mapping[int, str]:
    """For a request that writes nothing there."""
    return {}


def render(
    state: SessionState, rules: TemplateRules = TAKES_ALL, in_front: InFront = nothing_in_front
) -> list[Message]:
    """The messages that the model sees, in order, as a template of these rules takes them."""
    messages = _written_before(render_whole(state), in_front(state))
    if state.omissions == EMPTY:
        return messages
    return alternate(messages, omit_from_messages(messages, state.omissions, state.observations), rules)


def render_merged(state: SessionState, rules: TemplateRules) -> tuple[list[Message], list[list[int]]]:
    """What `render` gives, and the entries that are in each message."""
    messages = render_whole(state)
    return alternate_entries(messages, omit_from_messages(messages, state.omissions, state.observations), rules)


def render_entries(state: SessionState, in_front: InFront = nothing_in_front) -> list[Message | None]:
    """What the model sees of each entry, None where nothing is left of it."""
    messages = _written_before(render_whole(state), in_front(state))
    return omit_from_messages(messages, state.omissions, state.observations)


def questions(state: SessionState) -> list[int]:
    """The entries of the user's own messages. Observations are none."""
    observations = state.observations
    return [
        index
        for index, entry in enumerate(state.entries)
        if entry.message.get("role") == "user" and index not in observations
    ]


def shown_questions(state: SessionState) -> dict[int, int]:
    """Those of them that no eviction took, by their number among all."""
    left = state.omissions.entries
    numbered = enumerate(questions(state))
    return {number: entry for number, entry in numbered if entry not in left or not left[entry].text}


def evicted_entries(state: SessionState) -> frozenset[int]:
    """The entries whose text the model does not see, because an eviction took it out."""
    if not state.omissions:
        return frozenset()
    messages = [entry.message for entry in state.entries]
    left = omit_from_messages(messages, state.omissions, state.observations)
    return frozenset(
        index
        for index, (old, new) in enumerate(zip(messages, left, strict=True))
        if new is not old and (new is None or new.get("content") != old.get("content"))
    )


@dataclass(frozen=True, slots=True)
class EvictedTexts:
    """The texts that the model does not see, because an eviction took them out: contents, and arguments by call."""

    contents: frozenset[int] = frozenset()
    calls: frozenset[tuple[int, int]] = frozenset()

    def __contains__(self, place: Place) -> bool:
        if isinstance(place.part, ArgumentPart):
            return (place.entry, place.part.call) in self.calls
        return place.entry in self.contents

    @staticmethod
    def of(state: SessionState) -> EvictedTexts:
        """Those of a session."""
        if not state.omissions:
            return EvictedTexts()
        calls = set[tuple[int, int]]()
        for index, entry in enumerate(state.entries):
            left = state.omissions.entries.get(index)
            numbers = range(len(tool_calls(entry.message)))
            if left is None:
                calls |= {(index, number) for number in numbers if state.omissions.in_gone(index)}
            else:
                calls |= {(index, number) for number in numbers if number in left.calls | left.inputs}
        return EvictedTexts(evicted_entries(state), frozenset(calls))


def render_whole(state: SessionState) -> list[Message]:
    """One message for each entry: edits applied, and nothing taken out."""
    changed: dict[int, dict[Part, str]] = defaultdict(dict)
    # Arguments of a call are parsed once for all that is hidden there.
    calls: TextReader | None = None
    for place, hidden in hidden_pieces(state).items():
        if isinstance(place.part, ArgumentPart):
            calls = calls or TextReader(state)
            text = calls.text_at(place)
        else:
            text = text_at(state.entries[place.entry].message, place.part)
        changed[place.entry][place.part] = splice(text, hidden)
    if not changed:
        return [entry.message for entry in state.entries]
    return [
        with_texts(entry.message, changed[index]) if index in changed else entry.message
        for index, entry in enumerate(state.entries)
    ]


def _written_before(messages: list[Message], texts: Mapping[int, str]) -> list[Message]:
    """The messages with texts in front of some. The very list where there are none."""
    if not texts:
        return messages
    return [
        message if entry not in texts else {**message, "content": _after(texts[entry], message.get("content"))}
        for entry, message in enumerate(messages)
    ]


def _after(text: str, content: object) -> object:
    return [{"type": "text", "text": text}, *content] if isinstance(content, list) else f"{text}{content or ''}"


def splice(text: str, hidden: Sequence[tuple[Piece, str]]) -> str:
    """`text` with every piece, ascending and disjoint, replaced by its marker."""
    parts, position = [], 0
    for piece, shown in hidden:
        parts += [text[position : piece.start], shown]
        position = piece.end
    return "".join([*parts, text[position:]])


def hidden_pieces(state: SessionState) -> dict[Place, list[tuple[Piece, str]]]:
    """The spans that are not visible, by text, ascending and disjoint, each with what stands in its place.

    Folds that follow each other are one span with one marker, and so is the white space between them.
    """
    shown: dict[Place, list[tuple[Piece, str]]] = {}
    hidden = [fragment for fragment in state.fragments if fragment.shown is not None and not fragment.waits]
    if len(hidden) == 1:
        [alone] = hidden
        for piece, text in zip(alone.pieces, alone.shown or (), strict=True):
            shown.setdefault(piece.place, []).append((piece, text))
        return shown
    read = TextReader(state)
    for place, pieces in outermost(hidden).items():
        if len(pieces) == 1:
            shown[place] = [(piece, fragment.shown_at(piece)) for piece, fragment in pieces]
        else:
            shown[place] = [_shown(run) for run in _runs(read.text_at(place), pieces)]
    return shown


_Run = list[tuple[Piece, Fragment]]


def _runs(text: str, pieces: _Run) -> list[_Run]:
    """The pieces of one text, those of neighbouring folds together."""
    runs = [[pieces[0]]]
    for (before, last), (piece, fragment) in pairwise(pieces):
        both = last.visibility is fragment.visibility is Visibility.FOLDED
        if both and not text[before.end : piece.start].strip():
            runs[-1].append((piece, fragment))
        else:
            runs.append([(piece, fragment)])
    return runs


def _shown(run: _Run) -> tuple[Piece, str]:
    """One span for a run of pieces: the marker of the first, how many follow, and the line break of the last."""
    (first, fragment), (last, last_fragment) = run[0], run[-1]
    text = fragment.shown_at(first)
    further = [other for piece, other in run[1:] if piece == other.pieces[0]]
    if len(run) > 1:
        line_end = "\n" if last_fragment.shown_at(last).endswith("\n") else ""
        names, num_tokens = [f.fragment_id for f in further], sum(f.num_tokens for f in further)
        more = marker.more(names, num_tokens, fragment.more)
        text = text.removesuffix("\n") + more + line_end
    return Piece(first.place, first.start, last.end), text


def readable_text(state: SessionState, fragment: Fragment) -> str:
    """The original text of a fragment, its pieces joined by a line break, and what was redacted in it marked."""
    gone = outermost(inner for inner in state.fragments if inner.visibility is Visibility.REDACTED)
    texts, read = [], TextReader(state)
    for piece in fragment.pieces:
        inside = [
            (Piece(piece.place, other.start - piece.start, other.end - piece.start), redaction.shown_at(other))
            for other, redaction in overlapping(gone.get(piece.place, ()), piece)
            if piece.covers(other)
        ]
        texts.append(splice(read.piece_text(piece), inside))
    return "\n".join(texts)
