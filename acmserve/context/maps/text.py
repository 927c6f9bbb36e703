"""A context map as text: how it stands in a prompt, and how a text that a person edited becomes a map again.

    ## CONTEXT ROADMAP
    (Index of what the context contains and where to find it)
    [cr-00001] 388 records, one a line               an id of the map: this item, with its score
    a line without an id                             a new item
                                                     an item that is missing was deleted

Reading back what was written gives the same items. It counts no tokens.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator
from dataclasses import dataclass, field

from acmserve.context.maps.item import MapItem, read_item_text
from acmserve.context.maps.map import ContextMap
from acmserve.context.maps.section import BY_SLUG, BY_TITLE, SECTIONS, Section
from acmserve.errors import InvalidRequest

MAX_TEXT_CHARS = 200_000
MAX_GIVEN_NUMBER = 99_999
_ITEM = re.compile(r"\[([a-z]{2})-(\d{5,9})\]\s*(.*)")
_BULLETS = ("- ", "* ")


def render_map(context_map: ContextMap) -> str:
    """The map as it stands in a prompt. Without items, the initial map of PEEK's appendix F."""
    parts = []
    for section in SECTIONS:
        lines = [item.line for item in context_map.items if item.section is section]
        if lines or (section.always_shown and section.name in context_map.sections):
            parts.append("\n".join([f"## {section.title}", f"({section.description})", *lines]))
    return "\n\n".join(parts)


@dataclass(slots=True)
class _Reading:
    """What was read so far. Numbers of new items begin behind every number that the map or the text has."""

    given_out: int
    before: dict[int, MapItem]
    last_number: int
    known: dict[int, MapItem] = field(default_factory=dict)
    new: list[tuple[Section, str]] = field(default_factory=list)

    def take(self, section: Section, line: str, number_of_line: int) -> None:
        where = f"line {number_of_line}: "
        match = _ITEM.fullmatch(line)
        slug, digits, rest = ("", "0", line) if match is None else match.groups()
        try:
            text = read_item_text(rest.removeprefix(_bullet(rest)) if match is None else rest, "text")
        except InvalidRequest as error:
            raise InvalidRequest("text", where + error.message, error.remedy) from None
        number = int(digits)
        if match is None:
            self.new.append((section, text))
            return
        if slug != section.slug:
            other = BY_SLUG[slug].title if slug in BY_SLUG else "no section"
            raise InvalidRequest(
                "text",
                f"{where}[{slug}-{digits}] belongs to {other}, not to {section.title}.",
                "Leave the id out to add the line here as a new item.",
            )
        if number in self.known:
            raise InvalidRequest(
                "text", f"{where}[{slug}-{digits}] is there twice.", "Leave the id of one of them out."
            )
        old = self.before.get(number)
        if old is not None and old.section is section:
            self.known[number] = MapItem(section, number, text, old.score)
        elif self.given_out < number <= MAX_GIVEN_NUMBER:
            self.known[number] = MapItem(section, number, text)
            self.last_number = max(self.last_number, number)
        else:
            self.new.append((section, text))


def parse_map(text: str, base: ContextMap) -> tuple[tuple[MapItem, ...], int]:
    """The items that a text says, and the last number given out. Raises `InvalidRequest` naming the line.

    An id that `base` has keeps its number and score. An id of an item deleted earlier becomes a new item. One that was
    never given out (the text of another map) is taken as it is.
    """
    if len(text) > MAX_TEXT_CHARS:
        raise InvalidRequest("text", f"has {len(text):,} characters; at most {MAX_TEXT_CHARS:,} are read.")
    before = {item.number: item for item in base.items}
    reading = _Reading(base.last_number, before, base.last_number)
    for section, line, number in _item_lines(text, base.sections):
        reading.take(section, line, number)
    new = (
        MapItem(section, number, text)
        for number, (section, text) in enumerate(reading.new, start=reading.last_number + 1)
    )
    items = (*(reading.known[number] for number in sorted(reading.known)), *new)
    return items, reading.last_number + len(reading.new)


def _item_lines(text: str, sections: Collection[str]) -> Iterator[tuple[Section, str, int]]:
    """Every line that is an item, with its section and its number in the text."""
    section, is_first = None, False
    for number, raw in enumerate(text.splitlines(), start=1):
        line = raw.strip()
        if line.startswith("## "):
            title = line[3:].strip().upper()
            if title not in BY_TITLE or BY_TITLE[title].name not in sections:
                known = ", ".join(title for title, section in BY_TITLE.items() if section.name in sections)
                raise InvalidRequest("text", f"line {number}: {title[:40]!a} is no section.", f"Sections: {known}.")
            section, is_first = BY_TITLE[title], True
        elif is_first and line.startswith("(") and line.endswith(")"):
            is_first = False
        elif line:
            if section is None:
                raise InvalidRequest(
                    "text", f"line {number} stands before any section.", "Begin with '## CONTEXT ROADMAP'."
                )
            is_first = False
            yield section, line, number


def _bullet(line: str) -> str:
    return next((bullet for bullet in _BULLETS if line.startswith(bullet)), "")
