"""Where a span of one message stands in another one: the same in other words, or a changed version of it.

    old    "Read this: [ line 1 ... line 9 ]\n"                      part None, characters [11, 31)
    core   "Readthis:[line1...line9]"                                [9, 24)        white space does not count
    new    ["Read this:", "[ line 1 ... line 9 ]", "Reminder."]      part 1, characters [0, 20)

What both texts have at their start and at their end keeps its place. Between the two a span is found by its content.
What stands around it decides where the content comes several times. A span that comes to stand in several parts is
several spans. White space behind it stays with it where the new text has the same. An argument of a call is found as
a whole only.

Decisions: a short text between start and end is not looked for, since it may be found where it does not belong. What
is looked through for all spans of a history is bounded (`SearchRoom`). A span that is looked for behind that is not
found, and never found elsewhere.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import Any

import numpy as np

from acmserve.context.alignment.likeness import shared_end, shared_start
from acmserve.context.alignment.normal_form import core
from acmserve.context.transcript.call_arguments import ArgumentPart, argument_texts
from acmserve.context.transcript.message import Message, Part, texts

_MIN_SOUGHT = 8
_NUM_AROUND = 32
_MAX_KNOWN_CHARS = 1000
_MAX_LOOKED_THROUGH = 200_000_000
_NUM_FOR_PLACE = 1000
_IS_WHITE_SPACE = np.array([chr(code).isspace() for code in range(0x3002)])

Span = tuple[Part, int, int]
"""Part (None where the content is a string), and characters `[start, end)` of the text there."""


class CoreText:
    """Texts of a message without their white space, and where each of its characters stands.

    They are those of its content, unless others are given.
    """

    def __init__(self, message: Message, others: Sequence[tuple[Part, str]] | None = None) -> None:
        self.texts = texts(message) if others is None else others
        self.text = "".join(core(text) for _, text in self.texts)

    @cached_property
    def _places(self) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
        """For each character of `text` the number of its text in `texts`, and its position there."""
        codes = code_points("".join(text for _, text in self.texts))
        found = np.flatnonzero(~_IS_WHITE_SPACE[np.minimum(codes, len(_IS_WHITE_SPACE) - 1)])
        nums = np.array([len(text) for _, text in self.texts], dtype=np.int64)
        owners = np.repeat(np.arange(len(nums)), nums)[found]
        return owners, found - (np.cumsum(nums) - nums)[owners]

    def num_in_line_before(self, position: int, most: int) -> int:
        """How many of the characters in front of one of `text` stand in the line of the character before it."""
        return self._num_until_break([position - number for number in range(most)])

    def num_in_line_behind(self, position: int, most: int) -> int:
        """How many of the characters from one of `text` on stand in the line of the character before it."""
        return self._num_until_break([position + number for number in range(most)])

    def _num_until_break(self, positions: Sequence[int]) -> int:
        return next((number for number, at in enumerate(positions) if self._breaks_before(at)), len(positions))

    def _breaks_before(self, at: int) -> bool:
        """Whether another line or part begins with a character of `text`."""
        owners, positions = self._places
        if not 0 < at < len(positions):
            return True
        first, last = int(owners[at - 1]), int(owners[at])
        return first != last or "\n" in self.texts[last][1][int(positions[at - 1]) : int(positions[at])]

    def core_span(self, span: Span) -> tuple[int, int]:
        """The characters of `text` that lie in a span."""
        part, start, end = span
        number = self._numbers.get(part, len(self.texts))
        owners, positions = self._places
        first, last = np.searchsorted(owners, [number, number + 1])
        found = np.searchsorted(positions[first:last], [start, end]) + first
        return int(found[0]), int(found[1])

    def spans(self, start: int, end: int) -> list[Span]:
        """Characters `[start, end)` of `text` as spans, one for each part in which they stand."""
        owners, positions = self._places
        found: list[Span] = []
        first = start
        while first < end:
            number = int(owners[first])
            last = min(int(np.searchsorted(owners, number + 1)), end)
            found.append((self.texts[number][0], int(positions[first]), int(positions[last - 1]) + 1))
            first = last
        return found

    def at(self, part: Part) -> str:
        """The text of a part."""
        return self.texts[self._numbers[part]][1]

    @cached_property
    def _numbers(self) -> dict[Part, int]:
        """For each part its number in `texts`."""
        return {part: number for number, (part, _) in enumerate(self.texts)}


def code_points(text: str) -> np.ndarray[Any, np.dtype[np.uint32]]:
    """The characters of a text as numbers."""
    return np.frombuffer(text.encode("utf-32-le", "surrogatepass"), dtype=np.uint32)


class SearchRoom:
    """How many characters may still be looked through. To judge a place is as much as a thousand of them."""

    def __init__(self, num_left: int | None = None) -> None:
        self._num_left = _MAX_LOOKED_THROUGH if num_left is None else num_left

    @property
    def is_spent(self) -> bool:
        """Whether nothing is looked for any more."""
        return self._num_left <= 0

    def spend(self, num_chars: int) -> None:
        """Count what was looked through."""
        self._num_left -= num_chars


class TextMap:
    """Carries spans from one message into another one. All maps of a history share its `room`."""

    def __init__(self, old: Message, new: Message, room: SearchRoom | None = None) -> None:
        self._messages = old, new
        self._room = SearchRoom() if room is None else room
        self._found: dict[tuple[int, int], int | None] = {}
        self._known: dict[str, list[int]] = {}
        self.old, self.new = CoreText(old), CoreText(new)
        a, b = self.old.text, self.new.text
        self._num_start = shared_start(a, b)
        self._num_end = shared_end(a, b, min(len(a), len(b)) - self._num_start)

    def carry(self, span: Span) -> list[Span]:
        """Where a span stands now. Nothing where its text is no more."""
        if isinstance(span[0], ArgumentPart):
            return self._carry_argument(span[0], span)
        start, end = self.old.core_span(span)
        if start == end:
            return []
        at = self._find(start, end)
        if at is None:
            return []
        found = self.new.spans(at, at + end - start)
        part, first, last = span
        text = self.old.at(part)[first:last]
        if first == 0:
            found[0] = _from_start(found[0], self.new.at(found[0][0]))
        found[-1] = _grown(found[-1], self.new.at(found[-1][0]), text[len(text.rstrip()) :])
        return found

    def _carry_argument(self, part: ArgumentPart, span: Span) -> list[Span]:
        """A span of an argument stands where the very text is: in its place, or in one other place."""
        found = self._arguments.get(self._old_arguments.get(part, ""), {})
        if part in found:
            return [span]
        return [(next(iter(found)), *span[1:])] if len(found) == 1 else []

    @cached_property
    def _old_arguments(self) -> dict[ArgumentPart, str]:
        return dict(argument_texts(self._messages[0]))

    @cached_property
    def _arguments(self) -> dict[str, dict[ArgumentPart, None]]:
        """Where each text stands in the arguments of the new message, in order."""
        found: dict[str, dict[ArgumentPart, None]] = {}
        for at, text in argument_texts(self._messages[1]):
            found.setdefault(text, {})[at] = None
        return found

    def _find(self, start: int, end: int) -> int | None:
        """The position in the new text of characters of the old one. The same are looked for once."""
        if (start, end) not in self._found:
            self._found[start, end] = self._look_for(start, end)
        return self._found[start, end]

    def _look_for(self, start: int, end: int) -> int | None:
        old, new = self.old.text, self.new.text
        shift = len(new) - len(old)
        if end <= self._num_start:
            return start
        if start >= len(old) - self._num_end:
            return start + shift
        sought = old[start:end]
        if len(sought) < _MIN_SOUGHT or self._room.is_spent:
            return None
        found = self._positions(sought)
        if len(found) < 2:
            return found[0] if found else None
        self._room.spend(_NUM_FOR_PLACE * len(found))
        before = old[max(0, start - _NUM_AROUND) : start]
        behind = old[end : end + _NUM_AROUND]
        num_fit = {at: _num_fit(new, at, at + end - start, before, behind) for at in found}
        expected = start * len(new) // max(1, len(old))
        return max(found, key=lambda at: (num_fit[at], -abs(at - expected), -at))

    def _positions(self, sought: str) -> list[int]:
        """Where a text stands in the new one. Several spans may have the same text."""
        found = self._known.get(sought)
        if found is None:
            found = _positions(self.new.text, sought)
            self._room.spend(len(self.new.text) + len(sought) * (len(found) + 1))
            if len(sought) <= _MAX_KNOWN_CHARS:
                self._known[sought] = found
        return found


def _positions(text: str, sought: str, most: int = 256) -> list[int]:
    found = list[int]()
    at = text.find(sought)
    while at >= 0 and len(found) < most:
        found.append(at)
        at = text.find(sought, at + 1)
    return found


def _num_fit(text: str, start: int, end: int, before: str, behind: str) -> int:
    """How many characters around `[start, end)` are those that stood there."""
    left, right = text[max(0, start - len(before)) : start], text[end : end + len(behind)]
    num_left = len(before) if left == before else shared_end(left, before, min(len(left), len(before)))
    return num_left + (len(behind) if right == behind else shared_start(right, behind))


def _grown(span: Span, text: str, behind: str) -> Span:
    """A span with the white space behind it that was part of it."""
    part, start, end = span
    return part, start, end + shared_start(text[end : end + len(behind)], behind)


def _from_start(span: Span, text: str) -> Span:
    """A span that began a text, with the white space in front of it."""
    part, start, end = span
    return (part, 0, end) if text[:start].isspace() else span
