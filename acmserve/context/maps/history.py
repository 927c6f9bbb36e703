"""What happened to a context map, change by change: the diagnosis, tags, operations and evictions of each update.

    model   an update after a query, carried out or failed (`error`)       edit   text or settings, set by hand

Texts of models are cut short here: a history is for people, and it is stored with its map.
"""

from __future__ import annotations

from dataclasses import dataclass

from acmserve.context.maps.item import MapItem

MAX_HISTORY = 64
MAX_NOTE_CHARS = 4000


@dataclass(frozen=True, slots=True)
class OperationNote:
    """One operation as it was asked for. `refused` says why it was not carried out, "" where it was."""

    kind: str
    item_id: str = ""
    section: str = ""
    content: str = ""
    refused: str = ""


@dataclass(frozen=True, slots=True)
class MapChange:
    """One change. `at` is in seconds since the epoch. `session_id` names whose query it learned from.

    `ignored` lists parts of an answer that made no sense. `error` is "" unless nothing was changed because of it.
    """

    kind: str
    at: float
    version: int
    num_tokens: int
    session_id: str = ""
    diagnosis: str = ""
    reasoning: str = ""
    tags: tuple[tuple[str, str], ...] = ()
    operations: tuple[OperationNote, ...] = ()
    evicted: tuple[MapItem, ...] = ()
    ignored: tuple[str, ...] = ()
    error: str = ""


def shorten(text: str, max_chars: int = MAX_NOTE_CHARS) -> str:
    """The text, cut where it is too long for a note."""
    return text if len(text) <= max_chars else text[: max_chars - 3] + "..."
