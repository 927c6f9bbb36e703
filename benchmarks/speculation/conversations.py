"""Conversations of three documents, of which one after the other is folded. Sizes, texts and questions are drawn.

    read     [ first ][ second ][ third, question ]
    turn 1   [marker ][ second ][ third, question ]
    turn 2   [marker ][ marker ][ third, question ][ answer ][ another question ]

Behind each fold stands text enough for a draft. No two conversations have one text.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass

from acmserve.bench.harness.library_text import Library
from acmserve.bench.speculation.cases import ORDINARY, SUPERSEDED, cut_parts, painted, whole_lines
from acmserve.context.transcript.message import Message
from acmserve.context.transcript.tokenizer import Tokenizer

SOURCE = "source code"
KINDS = (SUPERSEDED, ORDINARY, SOURCE)
TURNS = 2
_FOLDED, _LAST = (300, 900), (700, 1_500)
"""Tokens of a document that is folded, and of the one that stays."""
_MARKERS = (
    "[folded]",
    "This part was taken out.",
    "It is no longer of use.",
    "[a document that was read and put away]",
)
_QUESTIONS = {
    SUPERSEDED: ("What colours have the doors now? List them, the first room first.", "Which doors are red now?"),
    ORDINARY: ("Say in your own words what this page is about.", "Name its most important rule, and give an example."),
    SOURCE: ("Explain what this code does, step by step.", "Which functions are defined here? List their names."),
}
_SAID = ("I have read it.", "I have read that, too.")


@dataclass(frozen=True, slots=True)
class FoldedConversation:
    """`documents` as they are read. In turn 1 the first of `markers` stands for the first one, and so on."""

    kind: str
    number: int
    documents: tuple[str, str, str]
    markers: tuple[str, str]

    @property
    def read(self) -> list[Message]:
        """What the session reads first."""
        return self._messages(0)

    def asked(self, answers: Sequence[str]) -> list[Message]:
        """The turn behind so many answers."""
        said: list[Message] = []
        for answer, question in zip(answers, _QUESTIONS[self.kind][1:], strict=False):
            said += [{"role": "assistant", "content": answer}, {"role": "user", "content": question}]
        return [*self._messages(len(answers) + 1), *said]

    def _messages(self, num_folded: int) -> list[Message]:
        shown = [*self.markers[:num_folded], *self.documents[num_folded:]]
        shown[-1] += f"\n\n{_QUESTIONS[self.kind][0]}"
        told: list[Message] = [{"role": "user", "content": f"Read this.\n{shown[0]}"}]
        for text, answer in zip(shown[1:], _SAID, strict=True):
            told += [{"role": "assistant", "content": answer}, {"role": "user", "content": text}]
        return told


def make_conversation(number: int, library: Library, tokenizer: Tokenizer) -> FoldedConversation:
    """Kinds in turns. The same for the same library and tokenizer."""
    kind, draw = KINDS[number % len(KINDS)], random.Random(number)
    sizes = (draw.randint(*_FOLDED), draw.randint(*_FOLDED), draw.randint(*_LAST))
    first, second, third = _documents(kind, draw, library, sizes, tokenizer)
    one, other = draw.sample(_MARKERS, TURNS)
    return FoldedConversation(kind, number, (first, second, third), (one, other))


def _documents(
    kind: str, draw: random.Random, library: Library, sizes: Sequence[int], tokenizer: Tokenizer
) -> list[str]:
    if kind == SUPERSEDED:
        words = ("", " then", " now")
        return [whole_lines(painted(draw, word), size, tokenizer) for word, size in zip(words, sizes, strict=True)]
    pages = [library.sources[draw.choice(list(library.sources))]] if kind == SOURCE else library.topics.values()
    text = "\n".join(pages)
    start = draw.randrange(len(text))
    return cut_parts(text[start:] + text[:start], sizes, tokenizer)
