"""Filler: a real text is folded that has nothing to do with what is asked. Most folds of an agent are of this kind.

    a topic of the Python manual           folded
    other topics, with three facts in them   kept: "Note: the locker of Sarah holds quartz."
    Note: the locker of Sarah holds

The text is the manual of the running Python, so another version gives other text. The digest of a run tells. A fold
hides a topic that is named nowhere else. The scorer asks for the right word first.
"""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import dataclass

from acmserve.bench.harness.workloads import VALUES
from acmserve.bench.tasks.generators.case import CasePiece, CaseQuestion, TaskCase, first_word_is
from acmserve.bench.tasks.generators.needlebench import PEOPLE

TASK = "unrelated"


@dataclass(frozen=True, slots=True)
class UnrelatedSizes:
    """Characters of text that are folded and kept (about four to a token)."""

    num_folded: int
    num_kept: int

    def __str__(self) -> str:
        return f"{self.num_folded}-{self.num_kept}"


SMALL = (UnrelatedSizes(1200, 3000), UnrelatedSizes(2400, 2400), UnrelatedSizes(1600, 4000), UnrelatedSizes(2400, 1200))


def make_case(seed: int, sizes: UnrelatedSizes, topics: Mapping[str, str], num_questions: int = 3) -> TaskCase:
    """One topic is folded, another one kept. `num_questions` facts stand in what is kept."""
    draw = random.Random(f"{TASK} {seed} {sizes}")
    long_enough = [name for name, text in topics.items() if len(text) > max(sizes.num_folded, sizes.num_kept)]
    folded, kept = draw.sample(long_enough, 2)
    people, values = draw.sample(PEOPLE, num_questions), draw.sample(VALUES, num_questions)
    lines = topics[kept][: sizes.num_kept].splitlines(keepends=True)
    for person, value in zip(people, values, strict=True):
        lines.insert(draw.randint(0, len(lines) - 1), f"Note: the locker of {person} holds {value}.\n")
    return TaskCase(
        TASK,
        str(sizes),
        seed,
        (
            CasePiece("Read these pages.\n"),
            CasePiece(topics[folded][: sizes.num_folded].rstrip("\n") + "\n", is_folded=True),
            CasePiece("".join(lines).rstrip("\n") + "\n"),
        ),
        tuple(
            CaseQuestion(
                f"Note: the locker of {person} holds",
                value,
                tuple(VALUES),
                first_word_is,
            )
            for person, value in zip(people, values, strict=True)
        ),
    )
