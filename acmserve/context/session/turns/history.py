"""The turns of a session: the newest, in order, what waits for the next one, and the sums over all.

    edit, edit, evict --> noted --> next turn takes them --> turns [t7 t8 t9], totals of t0 .. t9

An immutable value, beside the session's state and no part of it. A turn that fails takes its conversation back, and
what it cost stays. `MAX_TURNS` and `MAX_BYTES` bound it. The oldest turn goes first, and the totals stay.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice

from acmserve.context.session.turns.totals import TurnTotals
from acmserve.context.session.turns.turn import LastTurn, SessionTurn, TurnEdit, TurnEviction
from acmserve.errors import IntegrityError

MAX_TURNS = 512
MAX_BYTES = 256 * 1024
"""Bounds of one session's turns, in number and as JSON."""
MAX_NOTES = 256
"""Edits, and evictions, that one turn names. Of more the last ones."""


@dataclass(frozen=True, slots=True)
class TurnHistory:
    """`edits` and `evictions` wait for the next turn. `sizes` are the bytes of `turns`.

    `cleared` has, for each of the vendor's edits, the tokens that its last answer said to be cleared.
    """

    totals: TurnTotals = field(default_factory=TurnTotals)
    turns: tuple[SessionTurn, ...] = ()
    edits: tuple[TurnEdit, ...] = ()
    evictions: tuple[TurnEviction, ...] = ()
    cleared: Mapping[str, int] = field(default_factory=dict)
    sizes: tuple[int, ...] = ()

    @property
    def next_index(self) -> int:
        """The number of the next turn."""
        return self.totals.turns

    @property
    def last_turn(self) -> LastTurn | None:
        """The newest turn in short. None where no turn is left."""
        return self.turns[-1].in_short() if self.turns else None

    def noted(self, edits: Sequence[TurnEdit] = (), evictions: Sequence[TurnEviction] = ()) -> TurnHistory:
        """The history with edits and evictions that the next turn will be the first to see."""
        return replace(
            self,
            totals=self.totals.noted(edits, evictions),
            edits=(*self.edits, *edits)[-MAX_NOTES:],
            evictions=(*self.evictions, *evictions)[-MAX_NOTES:],
        )

    def with_background(self, num_tokens: int) -> TurnHistory:
        """The history with what a background request computed. It is no turn."""
        return replace(self, totals=self.totals.with_background(num_tokens))

    def taken(self, turn: SessionTurn) -> TurnHistory:
        """The history with one more turn, which gets its number and what was noted.

        The oldest turns leave where they are too many. The newest one stays, whatever it has.
        """
        turn = replace(turn, index=self.next_index, edits=self.edits, evictions=self.evictions)
        turns, sizes = (*self.turns, turn), (*self.sizes, turn_size(turn))
        first = max(0, len(turns) - MAX_TURNS)
        num_bytes = sum(sizes[first:])
        while num_bytes > MAX_BYTES and first < len(turns) - 1:
            num_bytes -= sizes[first]
            first += 1
        return TurnHistory(self.totals.plus(turn), turns[first:], cleared=self.cleared, sizes=sizes[first:])

    def emptied(self) -> TurnHistory:
        """The history without its turns and notes. The totals stay."""
        return TurnHistory(self.totals, cleared=self.cleared)

    def page(self, after: int, limit: int) -> list[SessionTurn]:
        """At most `limit` turns behind the one of that index, in order. -1: from the oldest one that is left."""
        first = 0 if not self.turns else max(0, after + 1 - self.turns[0].index)
        return list(islice(self.turns, first, first + limit))

    def check_integrity(self) -> None:
        """Raise `IntegrityError` with the numbers where turns are missing, miscounted, or more than the bounds."""
        self.totals.check_integrity()
        last = self.next_index
        if [turn.index for turn in self.turns] != list(range(last - len(self.turns), last)):
            found = [turn.index for turn in self.turns[-5:]]
            raise IntegrityError(f"turns: the last {len(self.turns)} of {last} end with {found}")
        if list(self.sizes) != [turn_size(turn) for turn in self.turns]:
            raise IntegrityError(f"turns: {len(self.turns)} turns have other sizes than the {len(self.sizes)} counted")
        if len(self.turns) > MAX_TURNS or (len(self.turns) > 1 and sum(self.sizes) > MAX_BYTES):
            raise IntegrityError(f"turns: {len(self.turns)} turns of {sum(self.sizes)} bytes are above the bounds")


NO_TURNS = TurnHistory()


def turn_size(turn: SessionTurn) -> int:
    """Bytes of a turn as JSON."""
    return len(json.dumps(turn.as_dict(), ensure_ascii=False, separators=(",", ":")).encode("utf-8", "surrogatepass"))
