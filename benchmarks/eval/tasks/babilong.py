"""BABILong: facts about people and things, hidden in a long text (arXiv 2406.10149).

    hay "Mina went to the garden." hay "Lars took the milk." hay "Mina went to the office." hay
    Where is Mina?    office

Of the paper: the tasks' labels, and the scorer. The scorer reads the first sentence of the answer, and takes out the
labels that the question names. The score is 1 where the right label is the only one left. The user's file has rows
`input`, `question`, `target`, and `task` (`qa1` to `qa5`) where the file's name does not say it. What is generated is
the first task, with sentences of our own: the last place of a person.
"""

from __future__ import annotations

import random
import re
from collections.abc import Collection, Mapping
from typing import Any

from acmserve.bench.eval.tasks.haystack import hay, hide
from acmserve.bench.eval.tasks.task import EvalSample, EvalTask, Point, setting_of, text_of
from acmserve.errors import InvalidRequest
from acmserve.validation import echo

NAME = "babilong"
_PLACES = frozenset({"bathroom", "bedroom", "garden", "hallway", "kitchen", "office"})
LABELS: Mapping[str, frozenset[str]] = dict.fromkeys(("qa1", "qa2", "qa3", "qa4"), _PLACES) | {
    "qa5": frozenset({"Bill", "Fred", "Jeff", "Mary", "apple", "football", "milk"})
}
_ENDS = (".", "<context>", "<example>", "Question")
_PEOPLE = ("Mina", "Lars", "Ines", "Hugo")
_WAYS = ("went to", "walked to", "came back to", "hurried to")


def make(point: Point, seed: int, material: Any = None) -> list[EvalSample]:
    """Ten moves of four people in a text of `tokens`, and where one of them is at the end."""
    draw = random.Random(f"{NAME} {seed} {setting_of(point)}")
    moves = [(draw.choice(_PEOPLE), draw.choice(sorted(_PLACES))) for _ in range(10)]
    facts = [f"{person} {draw.choice(_WAYS)} the {place}." for person, place in moves]
    person = draw.choice([person for person, _ in moves])
    gold = [place for mover, place in moves if mover == person][-1]
    context = (
        "The text holds sentences about where people went. Where a person was in several places, the last one counts.\n"
        f"{hide(hay(draw, point['tokens']), facts, 5, 9)}"
    )
    return [
        EvalSample.at(
            NAME,
            point,
            seed,
            f"Where is {person}? Answer with the name of the place alone.",
            gold,
            context,
            facts={"task": "qa1", "asked": f"Where is {person}?"},
        )
    ]


def read(row: Mapping[str, Any], stem: str) -> EvalSample:
    """A row of the data set."""
    named = str(row.get("task", "")) or stem
    found = re.search(r"qa\d+", named)
    if found is None:
        raise InvalidRequest(
            f"--data {NAME}", f"{echo(named)} names no task.", "Name the file after qa1 to qa5, or give rows a 'task'."
        )
    if found[0] not in LABELS:
        raise InvalidRequest(
            f"--data {NAME}", f"{found[0]} is not supported: its labels are not known here.", "Give qa1 to qa5."
        )
    question = text_of(row, "question", NAME)
    return EvalSample(
        NAME,
        found[0],
        "",
        f"{question.strip()} Answer as briefly as you can.",
        text_of(row, "target", NAME),
        text_of(row, "input", NAME),
        facts={"task": found[0], "asked": question},
    )


def label_score(answer: str, gold: str, question: str, labels: Collection[str]) -> float:
    """1 where the right label is the only one that the answer names beside those of the question."""
    said = answer.lower()
    for end in _ENDS:
        said = said.split(end)[0]
    named = {label.lower() for label in labels if label.lower() in said and label.lower() not in question.lower()}
    return float(named == {gold.lower()})


TASK = EvalTask(
    name=NAME,
    paper="BABILong: Testing the Limits of LLMs with Long Context Reasoning-in-a-Haystack, arXiv 2406.10149",
    parameters={"tokens": (1_000,)},
    published={"tokens": (0, 1_000, 2_000, 4_000, 8_000, 16_000, 32_000, 64_000, 128_000)},
    make=make,
    score=lambda sample, answer: label_score(answer, sample.gold, sample.facts["asked"], LABELS[sample.facts["task"]]),
    data="rows with `input`, `question`, `target`, and `task` where the file's name does not say it",
    read=read,
    guess=1 / len(_PLACES),
)
