"""Conversations whose middle is folded, at about 5,500 tokens. Text and sizes are those of `bench edit`.

              500     2000      3000
    read    [ head ][ folded ][ rest ][ question ]
    asked   [ head ][ marker ][ rest ][ question ]

On ordinary text, the manual of the running Python, what is folded says little of the answer. In a list of doors that
later lines paint anew, it is what moved KV remembers wrongly. Each case has another text.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from acmserve.bench.edit.kinds import EditSizes
from acmserve.bench.harness.library_text import Library, cut
from acmserve.context.transcript.message import Message
from acmserve.context.transcript.tokenizer import Tokenizer, count_tokens

ORDINARY, SUPERSEDED = "ordinary text", "superseded lines"
KINDS = (ORDINARY, SUPERSEDED)
_TOPICS_OF_A_CASE = 4
_COLOURS = ("red", "blue", "green", "white", "grey")
_QUESTIONS = {
    ORDINARY: "Say in your own words what this page is about.",
    SUPERSEDED: "What colours have the doors now? List them, the first room first.",
}
_MARKERS = {ORDINARY: "[folded]", SUPERSEDED: "The old list is no longer of use."}


@dataclass(frozen=True, slots=True)
class SpeculationCase:
    """`read` is sent first, then `asked`, of which the middle is folded."""

    kind: str
    number: int
    read: tuple[Message, ...]
    asked: tuple[Message, ...]


def make_case(kind: str, number: int, library: Library, tokenizer: Tokenizer, sizes: EditSizes) -> SpeculationCase:
    """The same for the same library and tokenizer."""
    head, folded, rest = _texts(kind, number, library, tokenizer, sizes)

    def spoken(middle: str) -> tuple[Message, ...]:
        return ({"role": "user", "content": f"{head}\n{middle}\n{rest}\n\n{_QUESTIONS[kind]}"},)

    return SpeculationCase(kind, number, spoken(folded), spoken(_MARKERS[kind]))


def _texts(kind: str, number: int, library: Library, tokenizer: Tokenizer, sizes: EditSizes) -> tuple[str, str, str]:
    topics = list(library.topics.values())
    first = number * _TOPICS_OF_A_CASE % len(topics)
    page = "\n".join(topics[first:] + topics[:first])
    if kind == ORDINARY:
        head, folded, rest = cut_parts(page, (sizes.prefix, sizes.folded, sizes.suffix), tokenizer)
        return head, folded, rest
    draw = random.Random(number)
    old, new = (painted(draw, word) for word in ("", " now"))
    [head] = cut_parts(page, (sizes.prefix,), tokenizer)
    return head, whole_lines(old, sizes.folded, tokenizer), whole_lines(new, sizes.suffix, tokenizer)


def cut_parts(text: str, sizes: Sequence[int], tokenizer: Tokenizer) -> list[str]:
    """Pieces that follow each other."""
    found, start = [], 0
    for size in sizes:
        found.append(cut(text[start:], size, tokenizer))
        start += len(found[-1])
    return found


def painted(draw: random.Random, word: str) -> Iterator[str]:
    """A line for each room, without end."""
    room = 0
    while True:
        room += 1
        yield f"The door of room {room} is{word} painted {draw.choice(_COLOURS)}."


def whole_lines(lines: Iterator[str], num_tokens: int, tokenizer: Tokenizer) -> str:
    """As many whole lines as there is room for."""
    found: list[str] = []
    left = num_tokens
    for line in lines:
        left -= count_tokens(tokenizer, line) + 1
        if left < 0:
            return "\n".join(found)
        found.append(line)
    raise AssertionError("the lines have no end")
