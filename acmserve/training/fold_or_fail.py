"""Fold or fail: a small task that only a model which folds can solve, made of nothing but a seed.

    turn 1   Document 1 of 4. Rain fell on the harbour ... The code of the amber door is 4821. Another document follows.
    turn 2   Document 2 of 4. ...
    last     What is the code of the silver lamp? Answer with the code alone.

All documents together are longer than the limit of tokens, and any one of them is not. A context that keeps them all
breaks the limit, which earns -1 by Equation 4 of *Sculptor* (arXiv 2508.04664). One that folds what was read earns +1
for the right answer. Knows no server and no tokenizer: the caller counts tokens and asks.

Decision: the question is about the last document by default, so that folding the others costs nothing. Asked about any
of them, a model has to find or restore what it folded. Where `fitting` is None all documents fit. A fold gains nothing
then, and may hide what is asked for.
"""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

from acmserve.errors import IntegrityError, InvalidRequest
from acmserve.training.reward import RewardLimits, outcome_reward
from acmserve.training.rollout import Rollout

READ = "Say ok when you have read it."
"""How each turn with a document ends."""
_FOLLOWS, _LAST = "Another document follows.", "This was the last document."
_CODE = re.compile(r"(?<!\d)\d{4}(?!\d)")


@dataclass(frozen=True, slots=True)
class TaskWords:
    """What documents are made of. `colours` and `things` name what has a code, one of each for a document."""

    colours: tuple[str, ...]
    things: tuple[str, ...]
    subjects: tuple[str, ...]
    verbs: tuple[str, ...]
    places: tuple[str, ...]
    times: tuple[str, ...]


WORDS = TaskWords(
    ("amber", "silver", "violet", "copper", "ivory", "crimson", "olive", "indigo", "golden", "grey"),
    ("door", "lamp", "boat", "piano", "tower", "bicycle", "garden", "mirror", "clock", "bridge"),
    ("Rain", "A merchant", "The old captain", "Nobody", "A flock of geese", "The baker", "Her cousin", "Fog"),
    ("fell on", "walked along", "remembered", "painted", "crossed", "left", "looked for", "spoke of"),
    ("the harbour", "a narrow street", "the northern hills", "the market", "an empty field", "the railway"),
    ("at dawn", "for many years", "in the autumn", "without a word", "once more", "before the feast"),
)


@dataclass(frozen=True, slots=True)
class FoldOrFail:
    """One task. `turns` are what the user says, one after the other. `codes` are those of all documents.

    `overhead` are the tokens that a context holds besides documents: tools, calls, markers, the question.
    `needs_fold` is false where all documents fit into the limit.
    """

    seed: int
    documents: tuple[str, ...]
    question: str
    answer: str
    codes: frozenset[str]
    max_tokens: int
    overhead: int = 0
    needs_fold: bool = True

    @property
    def turns(self) -> tuple[str, ...]:
        ends = [_FOLLOWS] * (len(self.documents) - 1) + [_LAST]
        parts = (f"{document}\n\n{end} {READ}" for document, end in zip(self.documents, ends, strict=True))
        return (*parts, self.question)

    def is_right(self, text: str) -> bool:
        """Whether an answer names the code that was asked for, and no other number of four digits."""
        return set(_CODE.findall(text)) == {self.answer}

    def reward(self, rollout: Rollout, text: str, max_calls: int = RewardLimits().max_calls) -> float:
        """Equation 4 for a rollout that ended with this text."""
        limits = RewardLimits(max_calls, self.max_tokens)
        return outcome_reward(rollout, is_correct=self.is_right(text), limits=limits)

    def check_integrity(self, count_tokens: Callable[[str], int]) -> None:
        """Raise IntegrityError when the limit can be kept without a fold, or not even with one document in sight.

        Where no fold is needed, raise when it cannot be kept without one.
        """
        sizes = [count_tokens(document) for document in self.documents]
        room = self.max_tokens - self.overhead
        if not (max(sizes) < room < sum(sizes) if self.needs_fold else sum(sizes) < room):
            raise IntegrityError(f"a limit of {self.max_tokens} tokens for {self.overhead}, and documents of {sizes}")
        holding = [document for document in self.documents if self.answer in document]
        if len(holding) != 1 or len(self.codes) != len(self.documents):
            raise IntegrityError(f"{len(holding)} documents hold the answer, and there are {len(self.codes)} codes")


def make_task(
    seed: int,
    count_tokens: Callable[[str], int],
    *,
    num_documents: int = 4,
    document_tokens: int = 300,
    fitting: float | None = 2.5,
    overhead: int = 0,
    asks: Literal["last", "any"] = "last",
    words: TaskWords = WORDS,
) -> FoldOrFail:
    """The task of a seed. `fitting` documents fit into the limit, beside `overhead` tokens of other things.

    None says that all of them fit. The same seed with other `words` is another task of the same shape.

    Raises `InvalidRequest` where a number would let all of them fit, or only one.
    """
    most = min(len(words.colours), len(words.things))
    if not 2 <= num_documents <= most:
        raise InvalidRequest("num_documents", f"must be from 2 to {most}, not {num_documents}")
    if fitting is not None and not 1 < fitting < num_documents:
        raise InvalidRequest("fitting", f"must be above 1 and below {num_documents} documents, not {fitting}")
    if document_tokens < (least := count_tokens(_document(random.Random(0), words, 1, 1, "amber door", "0000", 0))):
        raise InvalidRequest("document_tokens", f"must be at least {least}, not {document_tokens}")
    draw = random.Random(f"fold-or-fail {seed}")
    names = [
        f"{colour} {thing}"
        for colour, thing in zip(
            draw.sample(words.colours, num_documents), draw.sample(words.things, num_documents), strict=True
        )
    ]
    codes = [str(code) for code in draw.sample(range(1000, 10_000), num_documents)]
    documents = []
    for place, (name, code) in enumerate(zip(names, codes, strict=True), 1):
        filler, text = draw.getrandbits(64), ""
        num_sentences = 0
        while count_tokens(text) < document_tokens:
            num_sentences += 1
            text = _document(random.Random(filler), words, place, num_documents, name, code, num_sentences)
        documents.append(text)
    asked = num_documents - 1 if asks == "last" else draw.randrange(num_documents)
    task = FoldOrFail(
        seed,
        tuple(documents),
        f"What is the code of the {names[asked]}? Answer with the code alone.",
        codes[asked],
        frozenset(codes),
        _limit([count_tokens(document) for document in documents], fitting) + overhead,
        overhead,
        needs_fold=fitting is not None,
    )
    task.check_integrity(count_tokens)
    return task


def _limit(sizes: Sequence[int], fitting: float | None) -> int:
    """About `fitting` documents, more than the longest one, and fewer than all. With None, more than all."""
    if fitting is None:
        return sum(sizes) + 1
    wanted = int(fitting * sum(sizes) / len(sizes))
    return min(max(wanted, max(sizes) + 1), sum(sizes) - 1)


def _document(
    draw: random.Random, words: TaskWords, place: int, num_documents: int, name: str, code: str, num_sentences: int
) -> str:
    """Sentences without a number, and one fact somewhere between them."""
    where = draw.random()
    parts = [
        " ".join(map(draw.choice, (words.subjects, words.verbs, words.places, words.times))) + "."
        for _ in range(num_sentences)
    ]
    parts.insert(int(where * (num_sentences + 1)), f"The code of the {name} is {code}.")
    return " ".join([f"Document {place} of {num_documents}.", *parts])
