"""OOLONG: a question about all lines of a log, none of which answers it alone (Bertsch et al., arXiv 2511.02817).

    Monday 01: happy     \
    Monday 02: tired      |  folded: another day, on which another mood is the most frequent
    ...                  /
    Tuesday 01: calm        kept, and asked about: which mood is the most frequent? how often is it "calm"?

The most frequent mood of a day has three lines of five, and the two days never agree on it. It is asked for as the best
guess for one more line of the day: small models can do that, and they cannot count. Scorers are the paper's: a label is
right or not. A number that is wrong by d scores 0.75 ** d. Numbers are asked for in words, since SmolLM2 writes every
number with the same first token.
"""

from __future__ import annotations

import random
from dataclasses import dataclass

from acmserve.bench.eval.tasks.oolong_real import PENALTY
from acmserve.bench.tasks.generators.case import CasePiece, CaseQuestion, TaskCase, first_word_is

TASK = "aggregation"
MOODS = ("happy", "tired", "calm", "angry", "proud")
NUMBERS = ("zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten", "eleven", "twelve")


@dataclass(frozen=True, slots=True)
class OolongSizes:
    """Lines of the day that is folded and of the day that is kept."""

    num_folded: int
    num_kept: int

    def __str__(self) -> str:
        return f"{self.num_folded}-{self.num_kept}"


SMALL = (OolongSizes(30, 20), OolongSizes(20, 40), OolongSizes(60, 30), OolongSizes(40, 80))


def make_case(seed: int, sizes: OolongSizes) -> TaskCase:
    """Two days of a log, and two questions about the second."""
    draw = random.Random(f"{TASK} {seed} {sizes}")
    stale, frequent, rare = draw.sample(MOODS, 3)
    monday = _moods(draw, sizes.num_folded, stale)
    tuesday = _moods(draw, sizes.num_kept, frequent, rare, draw.randint(1, 4))
    return TaskCase(
        TASK,
        str(sizes),
        seed,
        (
            CasePiece("This log has one line for each person asked: the day, the number, the mood.\n"),
            CasePiece(_log("Monday", monday), is_folded=True),
            CasePiece(_log("Tuesday", tuesday)),
        ),
        (
            CaseQuestion(
                f"Tuesday {sizes.num_kept + 1:02d}:",
                frequent,
                MOODS,
                first_word_is,
                distractors=frozenset({stale}),
            ),
            CaseQuestion(
                f"In words, the number of lines of Tuesday with the mood {rare}:",
                NUMBERS[tuesday.count(rare)],
                NUMBERS,
                number_score,
            ),
        ),
    )


def number_score(answer: str, gold: str) -> float:
    """0.75 to the power of the distance. The first number of the answer counts, in words or digits. Without one, 0."""
    for word in answer.casefold().split():
        bare = word.strip(".,;:!?\"'*()")
        value = NUMBERS.index(bare) if bare in NUMBERS else int(bare) if bare.isascii() and bare.isdigit() else None
        if value is not None:
            return float(PENALTY ** min(abs(value - NUMBERS.index(gold)), 64))
    return 0.0


def _moods(draw: random.Random, num_lines: int, frequent: str, rare: str = "", num_rare: int = 0) -> list[str]:
    """`frequent` on three lines of five, `rare` on exactly `num_rare`, the others on what is left, in any order."""
    others = [mood for mood in MOODS if mood not in (frequent, rare)]
    moods = [frequent] * (num_lines * 3 // 5) + [rare] * num_rare
    while len(moods) < num_lines:
        moods.append(others[len(moods) % len(others)])
    draw.shuffle(moods)
    return moods


def _log(day: str, moods: list[str]) -> str:
    return "".join(f"{day} {number:02d}: {mood}\n" for number, mood in enumerate(moods, start=1))
