"""One item of a context map: a line of knowledge with an id that stays its own, and the score that tags gave it.

    [cr-00001] 388 records, one a line: Date | User | Text
     |  number, from the map's one counter
     section

An item is one line of text whatever a model wrote: white space is joined, characters that cannot be shown are left out.
"""

from __future__ import annotations

import re
import unicodedata
from dataclasses import dataclass

from acmserve.context.maps.section import Section
from acmserve.errors import IntegrityError, InvalidRequest

MAX_ITEM_CHARS = 1000
SCORES = {"helpful": 1, "harmful": -1, "stale": -1, "neutral": 0}
ID_PATTERN = re.compile(r"([a-z]{2})-(\d{5,9})")
_UNSHOWN = frozenset({"Cc", "Cs", "Cf"})
_JOINERS = frozenset("\u200c\u200d")  # letters of Persian and emoji need them, though they are format characters


@dataclass(frozen=True, slots=True)
class MapItem:
    """`score` is the sum of its tags: helpful +1, harmful and stale -1, neutral 0."""

    section: Section
    number: int
    text: str
    score: int = 0

    @property
    def item_id(self) -> str:
        """What operations and tags call it."""
        return f"{self.section.slug}-{self.number:05d}"

    @property
    def line(self) -> str:
        """How it stands in the map."""
        return f"[{self.item_id}] {self.text}"

    def check_integrity(self) -> None:
        """Raise `IntegrityError` when the text is not one clean line."""
        if self.number < 1 or not self.text or self.text != one_line(self.text) or len(self.text) > MAX_ITEM_CHARS:
            raise IntegrityError(f"map: item {self.item_id} has {len(self.text)} characters that are no clean line")


def one_line(text: str) -> str:
    """The text as one line: white space joined, control characters and halves of surrogate pairs left out."""
    if not (text.isascii() and text.isprintable()):
        text = "".join(c for c in text if c.isspace() or c in _JOINERS or unicodedata.category(c) not in _UNSHOWN)
    return " ".join(text.split())


def read_item_text(value: object, field: str) -> str:
    """The text of an item that a model or a person wrote. Raises `InvalidRequest`."""
    if not isinstance(value, str):
        raise InvalidRequest(field, f"must be a text, not {type(value).__name__}.")
    # What is far too long is refused before it is cleaned.
    text = one_line(value) if len(value) <= 4 * MAX_ITEM_CHARS else value
    if not text:
        raise InvalidRequest(field, "is empty.")
    if len(text) > MAX_ITEM_CHARS:
        raise InvalidRequest(
            field, f"has {len(text):,} characters; an item has at most {MAX_ITEM_CHARS:,}.", "Shorten or split it."
        )
    return text
