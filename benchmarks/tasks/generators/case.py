"""One case of `bench tasks`: a context in pieces, which of them the agent folds, questions, right answers. Pure.

    pieces     [intro][ updates ...... ][updates of the last round]      folded: the middle one
    full       [intro][ updates ...... ][updates of the last round][question]
    folded     [intro][marker][updates of the last round][question]

Every question can be scored in two ways. A model too small to answer in words still ranks words: its *choice* is the
candidate it finds most likely. The *answer* that it generates is scored as the paper of the task scores it. A case
knows no tokens, no engine and no fidelity. `tasks/prompt.py` makes tokens of it.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from acmserve.errors import IntegrityError

Scorer = Callable[[str, str], float]
"""From a generated answer and the right one to a score in [0, 1]."""


@dataclass(frozen=True, slots=True)
class CasePiece:
    """A part of the context that is folded as a whole, or not at all. It ends with a line.

    Without `has_marker` nothing stands for it once it is folded, as where a client strips reasoning.
    """

    text: str
    is_folded: bool = False
    has_marker: bool = True


@dataclass(frozen=True, slots=True)
class CaseQuestion:
    """`text` is what stands behind the context: a question, and the beginning of its answer. `choices` are how the
    answer may go on, and `gold` is the right one. A model that was never taught to chat can go on, too.

    `distractors` are the choices that a model gives which confuses what is folded with what is asked for: stale values.
    """

    text: str
    gold: str
    choices: tuple[str, ...]
    scorer: Scorer
    distractors: frozenset[str] = frozenset()
    max_tokens: int = 4

    def score(self, answer: str) -> float:
        """The score of a generated answer, in [0, 1]."""
        return self.scorer(answer, self.gold)


@dataclass(frozen=True, slots=True)
class TaskCase:
    """A context and the questions about it. `setting` names the sizes it was drawn with."""

    task: str
    setting: str
    seed: int
    pieces: tuple[CasePiece, ...]
    questions: tuple[CaseQuestion, ...]

    @property
    def name(self) -> str:
        """Unique in a run: `pi-llm/8x16-1/3`."""
        return f"{self.task}/{self.setting}/{self.seed}"

    @property
    def kept_text(self) -> str:
        """What is left in sight after the fold, without the marker."""
        return "".join(piece.text for piece in self.pieces if not piece.is_folded)

    def check_integrity(self) -> None:
        """Raise IntegrityError when nothing is folded, nothing is kept behind it, or an answer is no choice."""
        folds = [piece.is_folded for piece in self.pieces]
        if True not in folds or folds[-1]:
            raise IntegrityError(f"{self.name}: folded pieces {folds}; one must be, and the last must not")
        for piece in self.pieces:
            if not piece.text.endswith("\n"):
                raise IntegrityError(f"{self.name}: a piece ends with {piece.text[-20:]!r} and no line break")
        for question in self.questions:
            if question.choices.count(question.gold) != 1 or len(set(question.choices)) != len(question.choices):
                raise IntegrityError(f"{self.name}: {question.gold!r} is not one of {question.choices}")
            if question.gold in question.distractors or not question.distractors <= set(question.choices):
                raise IntegrityError(f"{self.name}: distractors {sorted(question.distractors)} of {question.gold!r}")


def digest(cases: Iterable[TaskCase]) -> str:
    """What tells two sets of cases apart: 16 hex digits over every text and every answer."""
    told = hashlib.sha256()
    for case in cases:
        told.update(repr((case.name, case.pieces)).encode())
        for question in case.questions:
            told.update(repr((question.text, question.gold, question.choices)).encode())
    return told.hexdigest()[:16]


def first_word_is(answer: str, gold: str) -> float:
    """1 when the answer begins with the right word, whatever follows. Case does not matter."""
    words = answer.strip().casefold().split()
    return float(bool(words) and words[0].strip(".,;:!?\"'*") == gold.casefold())
