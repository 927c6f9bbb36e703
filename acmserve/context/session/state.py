"""The state of a session: its transcript, the fragments cut out of it, and the search results given out.

    entries      client   client   internal  internal  answer   client        in the order in which the model reads them
                 system   user     tool call result    "Paris"  user
                 |        |                            |        |
    the client   system   user                         "Paris"  user          holds all but the internal ones

An immutable value: every operation returns a new state. So a call that fails has changed nothing, and a loop that is
cancelled leaves the last state that was stored. Count and order of the entries never change through an edit.

It does not know how a history is taken in (`history.py`), how a text is hidden, searched or stored.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from enum import Enum

from acmserve.context.alignment.redacted_text import RedactedText
from acmserve.context.session.branches.branch import Branch, check_branches, open_of
from acmserve.context.session.branches.parent import Parent
from acmserve.context.session.branches.thread import Thread
from acmserve.context.session.budget import Budget
from acmserve.context.session.fragment import Fragment, Piece, Visibility
from acmserve.context.session.nesting import check_tree
from acmserve.context.session.precompute_options import PrecomputeOptions
from acmserve.context.session.rollout.record import NO_ROLLOUT, RolloutRecord
from acmserve.context.transcript.call_arguments import ArgumentPart, Path, arguments_of
from acmserve.context.transcript.message import Message, Place, text_at
from acmserve.context.transcript.observations import ObservationRule
from acmserve.context.transcript.omissions import EMPTY, Omissions
from acmserve.errors import IntegrityError, NotFound

MAX_SEARCH_HITS = 1000
PLACED = -1
"""The turn of what was put into the conversation from outside: it stays as long as what stands before it."""

_NUM_IDS = 16**5
_ID_STEP = 0x9E375  # odd, so that multiples visit every number below _NUM_IDS. Golden ratio, so that neighbours differ


class Author(Enum):
    """Who wrote an entry, and whether the client holds it."""

    CLIENT = "client"
    ANSWER = "answer"
    INTERNAL = "internal"


@dataclass(frozen=True, slots=True)
class TranscriptEntry:
    """One message. `digest` is the identity of what the client holds of it (empty for internal entries).

    `turn` numbers the answers made on the server. -1 for the client's own messages. `sealed` entries are never replaced
    by what the client resends. A part of them was redacted, or the client's copy is not what the model reads.
    With `is_observation` a message of the user is a result, as was judged when it was taken in.
    """

    message: Message
    origin: Author
    digest: bytes = b""
    turn: int = -1
    sealed: bool = False
    is_observation: bool = False


@dataclass(frozen=True, slots=True)
class SearchHit:
    """A match that a search has shown: characters `[start, end)` of the text at `place`."""

    search_id: str
    place: Place
    start: int
    end: int


@dataclass(frozen=True, slots=True)
class SessionState:
    """`num_ids` counts the ids given out, so that no id is ever given twice. Fragments are in order of creation.

    `omissions` is what an eviction took out, by entry, and what closed branches hold. `budget` and `precompute` are the
    session's own, None where it has none, as is `observation_rule`. `parent` is the session of which this is a branch,
    `thread` its place in a family of threads. `redacted` knows every text that was ever redacted, as digests. `rollout`
    is what is recorded for training.
    """

    entries: tuple[TranscriptEntry, ...] = ()
    fragments: tuple[Fragment, ...] = ()
    hits: tuple[SearchHit, ...] = ()
    num_ids: int = 0
    num_turns: int = 0
    digest_key: bytes = field(default_factory=lambda: secrets.token_bytes(16))
    omissions: Omissions = EMPTY
    budget: Budget | None = None
    branches: tuple[Branch, ...] = ()
    parent: Parent | None = None
    precompute: PrecomputeOptions | None = None
    thread: Thread | None = None
    redacted: tuple[RedactedText, ...] = ()
    observation_rule: ObservationRule | None = None
    rollout: RolloutRecord = NO_ROLLOUT

    @property
    def observations(self) -> frozenset[int]:
        """The entries that are observations."""
        return frozenset(index for index, entry in enumerate(self.entries) if entry.is_observation)

    @property
    def branch(self) -> Branch | None:
        """The branch that is open."""
        return open_of(self.branches)

    def num_turns_with(self, entries: Iterable[TranscriptEntry]) -> int:
        """Turns that have ended once the transcript is `entries`: every answer among them ended its own."""
        return max(self.num_turns, *(entry.turn + 1 for entry in entries if entry.origin is Author.ANSWER), 0)

    def fragment(self, fragment_id: str, field_name: str = "fragment_id") -> Fragment:
        """The fragment of that id, in any case and with spaces. Raises `NotFound` naming those that exist."""
        wanted = _as_id(fragment_id)
        for fragment in self.fragments:
            if fragment.fragment_id == wanted:
                return fragment
        known = ", ".join(f.fragment_id for f in self.fragments[-20:])
        remedy = f"Known fragments: {known}." if known else "There are no fragments yet; call fragment_context first."
        raise NotFound(field_name, f"there is no fragment {_short(fragment_id)}.", remedy)

    def hit(self, search_id: str) -> SearchHit:
        """The search result of that id. Raises `NotFound`."""
        wanted = _as_id(search_id)
        for hit in reversed(self.hits):
            if hit.search_id == wanted:
                return hit
        raise NotFound(
            "search_id",
            f"there is no search result {_short(search_id)}.",
            "Call search_context and use an id it lists.",
        )

    def text_at(self, place: Place) -> str:
        """The original text at a place, whether it is hidden or not."""
        return text_at(self.entries[place.entry].message, place.part)

    def piece_text(self, piece: Piece) -> str:
        return self.text_at(piece.place)[piece.start : piece.end]

    def fragment_text(self, fragment: Fragment) -> str:
        """The original text of a fragment, its pieces joined by a line break."""
        return "\n".join(self.piece_text(piece) for piece in fragment.pieces)

    def replace_fragment(self, new: Fragment) -> SessionState:
        """The state with the fragment of that id exchanged."""
        fragments = tuple(new if old.fragment_id == new.fragment_id else old for old in self.fragments)
        return replace(self, fragments=fragments)

    def new_id(self, prefix: str) -> tuple[str, SessionState]:
        """A fresh id: `prefix` ("f" or "s") and five hex digits that depend on the number of ids only.

        The same calls give the same ids, in every session and after every restart. The digits are a permutation of the
        number. An id comes again after a million others at the earliest, and never while it is in use.
        """
        number = self.num_ids
        taken: set[str] | None = None
        while True:
            number += 1
            made = f"{prefix}{number * _ID_STEP % _NUM_IDS:05x}"
            if number >= _NUM_IDS and taken is None:
                taken = {f.fragment_id for f in self.fragments} | {hit.search_id for hit in self.hits}
            if taken is None or made not in taken:
                return made, replace(self, num_ids=number)

    def check_integrity(self) -> None:
        """Raise `IntegrityError` with the numbers when ids repeat, spans cross or leave their texts, markers lack."""
        ids = [f.fragment_id for f in self.fragments] + [h.search_id for h in self.hits]
        if len(set(ids)) != len(ids):
            raise IntegrityError(f"session: {len(ids)} ids, {len(set(ids))} of them different")
        pieces = [piece for fragment in self.fragments for piece in fragment.pieces]
        read = TextReader(self)
        for span in (*pieces, *(Piece(hit.place, hit.start, hit.end) for hit in self.hits)):
            length = len(read.text_at(span.place)) if 0 <= span.place.entry < len(self.entries) else -1
            if not 0 <= span.start < span.end <= length:
                raise IntegrityError(f"session: {span} in a text of {length} characters")
        for fragment in self.fragments:
            _check_fragment(fragment)
        check_tree(self.fragments)
        self.omissions.check_integrity()
        ends = [end for _, end in self.omissions.gone[-1:]] + [max(self.omissions.entries, default=-1) + 1]
        if max(ends) > len(self.entries):
            raise IntegrityError(f"session: something was taken out up to {max(ends)} of {len(self.entries)} entries")
        check_branches(self.branches, [entry.message for entry in self.entries], self.omissions)
        self.rollout.check_integrity()


class TextReader:
    """Reads many texts of a session, and the arguments of each call once. It does not outlive who reads."""

    def __init__(self, state: SessionState) -> None:
        self._state = state
        self._arguments: dict[tuple[int, int], dict[Path, str]] = {}

    def text_at(self, place: Place) -> str:
        """What `SessionState.text_at` says."""
        part = place.part
        if not isinstance(part, ArgumentPart):
            return self._state.text_at(place)
        call = (place.entry, part.call)
        if call not in self._arguments:
            self._arguments[call] = arguments_of(self._state.entries[place.entry].message, part.call)
        return self._arguments[call].get(part.path, "")

    def piece_text(self, piece: Piece) -> str:
        """The original text of a piece."""
        return self.text_at(piece.place)[piece.start : piece.end]


def _check_fragment(fragment: Fragment) -> None:
    """Pieces there are, in order. While it is hidden each has a marker, and while it is summarized it has a focus."""
    name, pieces, shown = fragment.fragment_id, fragment.pieces, fragment.shown
    if not pieces or sorted(pieces) != list(pieces):
        raise IntegrityError(f"session: the {len(pieces)} pieces of {name} are not in order")
    num_shown = None if shown is None else len(shown)
    if num_shown != (len(pieces) if fragment.hidden else None):
        raise IntegrityError(
            f"session: {name} is {fragment.visibility.value} with {num_shown} markers for {len(pieces)} pieces"
        )
    if (fragment.focus is not None) != (fragment.visibility is Visibility.SUMMARIZED):
        raise IntegrityError(f"session: {name} is {fragment.visibility.value} with focus {fragment.focus!a}")
    if fragment.waits and fragment.visibility not in (Visibility.FOLDED, Visibility.SUMMARIZED):
        raise IntegrityError(f"session: {name} is {fragment.visibility.value} and waits")


def _as_id(written: str) -> str:
    """An id as it was given out. Models write `F1A2B3`, and put quotes or brackets around it."""
    return "".join(written.split()).strip("\"'`[]()<>.,:").lower()


def _short(text: str) -> str:
    return ascii(text if len(text) <= 40 else text[:37] + "...")
