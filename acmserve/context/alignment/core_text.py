"""Where a span of one message stands in another one: the same in other words, or a changed version of it.

    old    "Read this: [ line 1 ... line 9 ]\n"                      part None, characters [11, 31)
    core   "Readthis:[line1...line9]"                                [9, 24)        white space does not count
    new    ["Read this:", "[ line 1 ... line 9 ]", "Reminder."]      part 1, characters [0, 20)

What both texts have at their start and at their end keeps its place. Between the two a span is found by its content.
What stands around it decides where the content comes several times. A span that comes to stand in several parts is
several spans. White space behind it stays with it where the new text has the same. An argument of a call is found as
a whole only.

Decision: a short text between start and end is not looked for, since it may be found where it does not belong.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import Any

import numpy as np

from acmserve.context.alignment.likeness import shared_end, shared_start
from acmserve.context.alignment.normal_form import core
from acmserve.context.transcript.call_arguments import ArgumentPart, argument_at, argument_texts
from acmserve.context.transcript.message import Message, Part, texts

_MIN_SOUGHT = 8
_NUM_AROUND = 32
_WHITE_SPACE = np.array([code for code in range(0x3001) if chr(code).isspace()], dtype=np.uint32)

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
    def codes(self) -> np.ndarray[Any, np.dtype[np.uint32]]:
        """The code points of `text`."""
        return code_points(self.text)

    @cached_property
    def _places(self) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
        """For each character of `text` the number of its text in `texts`, and its position there."""
        owners, positions = [np.empty(0, np.int64)], [np.empty(0, np.int64)]
        for number, (_, text) in enumerate(self.texts):
            found = np.flatnonzero(~np.isin(code_points(text), _WHITE_SPACE))
            positions.append(found)
            owners.append(np.full(len(found), number))
        return np.concatenate(owners), np.concatenate(positions)

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
        number = next((number for number, (at, _) in enumerate(self.texts) if at == part), len(self.texts))
        owners, positions = self._places
        first, last = np.searchsorted(owners, [number, number + 1])
        found = np.searchsorted(positions[first:last], [start, end]) + first
        return int(found[0]), int(found[1])

    def spans(self, start: int, end: int) -> list[Span]:
        """Characters `[start, end)` of `text` as spans, one for each part in which they stand."""
        owners, positions = self._places
        found: list[Span] = []
        for number in np.unique(owners[start:end]):
            first, last = np.searchsorted(owners, [number, number + 1])
            first, last = max(int(first), start), min(int(last), end)
            found.append((self.texts[number][0], int(positions[first]), int(positions[last - 1]) + 1))
        return found

    def at(self, part: Part) -> str:
        """The text of a part."""
        return next(text for at, text in self.texts if at == part)


def code_points(text: str) -> np.ndarray[Any, np.dtype[np.uint32]]:
    """The characters of a text as numbers."""
    return np.frombuffer(text.encode("utf-32-le", "surrogatepass"), dtype=np.uint32)


class TextMap:
    """Carries spans from one message into another one."""

    def __init__(self, old: Message, new: Message) -> None:
        self._messages = old, new
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
        old, new = self._messages
        text = argument_at(old, part)
        found = [at for at, other in argument_texts(new) if other == text]
        if part in found:
            return [span]
        return [(found[0], *span[1:])] if len(found) == 1 else []

    def _find(self, start: int, end: int) -> int | None:
        """The position in the new text of characters of the old one."""
        old, new = self.old.text, self.new.text
        shift = len(new) - len(old)
        if end <= self._num_start:
            return start
        if start >= len(old) - self._num_end:
            return start + shift
        sought = old[start:end]
        if len(sought) < _MIN_SOUGHT:
            return None
        found = _positions(new, sought)
        if len(found) < 2:
            return found[0] if found else None
        before = old[max(0, start - _NUM_AROUND) : start]
        behind = old[end : end + _NUM_AROUND]
        num_fit = {at: _num_fit(new, at, at + end - start, before, behind) for at in found}
        expected = start * len(new) // max(1, len(old))
        return max(found, key=lambda at: (num_fit[at], -abs(at - expected), -at))


def _positions(text: str, sought: str, most: int = 256) -> list[int]:
    found = list[int]()
    at = text.find(sought)
    while at >= 0 and len(found) < most:
        found.append(at)
        at = text.find(sought, at + 1)
    return found


def _num_fit(text: str, start: int, end: int, before: str, behind: str) -> int:
    """How many characters around `[start, end)` are those that stood there."""
    left = text[max(0, start - len(before)) : start]
    return shared_end(left, before, min(len(left), len(before))) + shared_start(text[end : end + len(behind)], behind)


def _grown(span: Span, text: str, behind: str) -> Span:
    """A span with the white space behind it that was part of it."""
    part, start, end = span
    return part, start, end + shared_start(text[end : end + len(behind)], behind)


def _from_start(span: Span, text: str) -> Span:
    """A span that began a text, with the white space in front of it."""
    part, start, end = span
    return (part, 0, end) if text[:start].isspace() else span
