"""A fragment: a named span of the conversation that can be hidden and shown again.

    message 3  "....[=========== piece 0 ===========]"       a fragment may span several messages of its role.
    message 4  (another role: not part of it)                A piece is a span of characters in one text,
    message 5  "[= piece 1 =]........................"       and never changes once it is cut

Fragments may lie in one another, and never cross (`nesting.py`). A fragment holds offsets, never text: the text stays
where it is, so a restore shows it byte for byte whatever happened in between. While it is not visible, `shown` has what
stands in the place of each piece, fixed when it was hidden. The same edits give the same bytes for ever, which is what
keeps the prefix of the conversation cached. One that `waits` is hidden for whoever asks, and its text still stands in
the prompt (`waiting.py`).
"""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass
from enum import Enum

from acmserve.context.transcript.message import Place


class Visibility(Enum):
    """What the model sees of a fragment."""

    VISIBLE = "visible"
    FOLDED = "folded"
    SUMMARIZED = "summarized"
    REDACTED = "redacted"


@dataclass(frozen=True, slots=True, order=True)
class Piece:
    """Characters `[start, end)` of the text at `place`."""

    place: Place
    start: int
    end: int

    def overlaps(self, other: Piece) -> bool:
        return self.place == other.place and self.start < other.end and other.start < self.end

    def covers(self, other: Piece) -> bool:
        return self.place == other.place and self.start <= other.start and other.end <= self.end


@dataclass(frozen=True, slots=True)
class Fragment:
    """`num_tokens` is the size of the text. `shown` has one replacement for each piece, None while it is visible.

    `summaries` keeps every summary ever made as (focus, text): asking again with the same focus costs nothing.
    `focus` is that of the summary which is shown. `waits`: the prompt still shows the text, though it was hidden.
    `more` is how its suite says that further folds follow its marker, "" for the server's own words.
    """

    fragment_id: str
    role: str
    pieces: tuple[Piece, ...]
    num_tokens: int
    visibility: Visibility = Visibility.VISIBLE
    shown: tuple[str, ...] | None = None
    focus: str | None = None
    summaries: tuple[tuple[str, str], ...] = ()
    waits: bool = False
    more: str = ""

    @property
    def hidden(self) -> bool:
        return self.visibility is not Visibility.VISIBLE

    def shown_at(self, piece: Piece) -> str:
        """What stands in the place of one of its pieces while it is hidden."""
        return "" if self.shown is None else self.shown[bisect_left(self.pieces, piece)]

    def summary(self, focus: str) -> str | None:
        """The stored summary with this focus, if there is one."""
        return dict(self.summaries).get(focus)
