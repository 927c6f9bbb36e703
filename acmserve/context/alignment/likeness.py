"""Whether two messages are versions of one: a reminder was glued on, a date changed, a block was rewritten.

Two texts are alike when they share at least half of the longer one, as their start and end or as whole lines. Two texts
of which the longer one holds the shorter one are alike, too. What was redacted in one of them says nothing. Messages
that call the same tools and say the same are alike, too, although a client has cleared the arguments.

It reads texts without their white space, each once, and costs a pass over both.
"""

from __future__ import annotations

from collections import Counter
from functools import cached_property

from acmserve.context.alignment.normal_form import call_forms, core
from acmserve.context.transcript.message import Message, texts

GONE = "\x00"
"""Stands for each character of a text that was redacted."""
GONE_ARGUMENT = "\x7f"
"""The same in the arguments of a call. It needs no escape in JSON, so the arguments get no longer."""

_MIN_HELD = 16
_MIN_SHARED = 8
_MIN_LINE = 4


class Sketch:
    """What is compared of a message. Made when it is first asked for."""

    def __init__(self, message: Message) -> None:
        self.role = message.get("role")
        self._message = message

    @cached_property
    def text(self) -> str:
        """Its texts without their white space, and without what was redacted."""
        return "".join(core(text) for _, text in texts(self._message))

    @cached_property
    def calls(self) -> list[tuple[str, object]]:
        """The tools that it calls, and their arguments."""
        return [(call[0], call[1]) if isinstance(call, list) else ("", call) for call in call_forms(self._message)]

    @cached_property
    def clear(self) -> str:
        return self.text.replace(GONE, "")

    @cached_property
    def lines(self) -> Counter[str]:
        """Its lines without their white space, all but the shortest."""
        found = (core(line) for _, text in texts(self._message) for line in text.splitlines())
        return Counter(line for line in found if len(line) >= _MIN_LINE)


def likeness(old: Sketch, new: Sketch) -> int:
    """How many characters two messages of the same role share, 0 where they are no versions of one. See the module."""
    if old.role != new.role:
        return 0
    if old.calls and have_same_calls(old, new) and old.text == new.text:
        return 1 + len(new.text)
    if not old.clear or not new.clear:
        return 0
    shorter, longer = sorted((old.clear, new.clear), key=len)
    if len(shorter) >= _MIN_HELD and shorter in longer:
        return len(shorter)
    num_at_ends = shared_start(old.text, new.text)
    num_at_ends += shared_end(old.text, new.text, min(len(old.text), len(new.text)) - num_at_ends)
    num_in_lines = sum(len(line) * min(num, new.lines[line]) for line, num in old.lines.items() if line in new.lines)
    num_hidden = len(old.text) - len(old.clear)
    is_alike = (
        (num_at_ends >= _MIN_SHARED and 2 * num_at_ends >= max(len(old.clear), len(new.clear) - num_hidden))
        or 2 * num_in_lines >= len(longer)
        or (num_in_lines >= _MIN_HELD and 5 * num_in_lines >= 4 * len(shorter))
    )
    return max(num_at_ends, num_in_lines) if is_alike else 0


def have_same_calls(old: Sketch, new: Sketch) -> bool:
    """Whether two messages call the same tools in order. A client may have cleared the arguments."""
    return len(old.calls) == len(new.calls) and all(
        name == other and (not now or now == before)
        for (name, before), (other, now) in zip(old.calls, new.calls, strict=True)
    )


def shared_start(a: str, b: str) -> int:
    """How many characters two texts have in common at their start."""
    low, high = 0, min(len(a), len(b))
    while low < high:
        middle = (low + high + 1) // 2
        if a[low:middle] == b[low:middle]:
            low = middle
        else:
            high = middle - 1
    return low


def shared_end(a: str, b: str, most: int) -> int:
    """How many characters two texts have in common at their end, at most `most`."""
    low, high = 0, max(0, most)
    while low < high:
        middle = (low + high + 1) // 2
        if a[len(a) - middle : len(a) - low] == b[len(b) - middle : len(b) - low]:
            low = middle
        else:
            high = middle - 1
    return low
