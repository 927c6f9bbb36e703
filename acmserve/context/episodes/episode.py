"""One episode of a transcript: a stretch of work that the agent has named, or that lies between two named ones.

    entry    4              5       6      7     8             9
             start "find"   result  grep   ...   end           result       Episode(start=4, end=10, close_entry=8)
             [----------------------- "find", expl -------------------]

An episode owns the texts (and the reasoning) of some messages, and tool calls with their results. Ownership is by call
and not by message, because one message may end an episode and start the next. Immutable. It holds entry numbers, never
text.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from acmserve.context.transcript.outline import Use


class Kind(Enum):
    """What an episode did: it gathered information, or it acted on the world."""

    EXPL = "expl"
    ACT = "act"


@dataclass(frozen=True, slots=True)
class Episode:
    """`number` counts the episodes in the order of their starts. `depends_on` are numbers of earlier expl episodes.

    `name` is None for work that the agent did not annotate: exploratory, with unknown dependents. `end` is the entry
    behind the last one, None while the episode is active. `close_entry` has the message with the call that ended it.
    """

    number: int
    name: str | None
    kind: Kind
    start: int
    depends_on: tuple[int, ...] = ()
    end: int | None = None
    close_entry: int | None = None
    description: str | None = None
    messages: tuple[int, ...] = ()
    uses: tuple[Use, ...] = ()

    @property
    def is_closed(self) -> bool:
        return self.end is not None

    @property
    def label(self) -> str:
        """What a report calls it."""
        return self.name if self.name is not None else f"unannotated work from message {self.start}"

    @property
    def note(self) -> str | None:
        """The line that remains of an exploration when all else of it is gone."""
        if self.kind is Kind.ACT or self.description is None:
            return None
        return f"[explored {self.name}: {self.description}]"
