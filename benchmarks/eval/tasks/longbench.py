"""LongBench v2: questions with four choices over long texts (arXiv 2412.15204).

    text, question, (A) ... (B) ... (C) ... (D) ...     "The correct answer is (B)"

Of the data set: rows with `context`, `question`, `choice_A` to `choice_D`, `answer`, and the reading of the letter.
What is generated asks where in the text a line stands that was hidden in it.
"""

from __future__ import annotations

import random
import re
from collections.abc import Mapping
from typing import Any

from acmserve.bench.eval.tasks.haystack import hay, hide
from acmserve.bench.eval.tasks.task import EvalSample, EvalTask, Point, setting_of, text_of
from acmserve.bench.harness.workloads import KEYS, NAMES, VALUES
from acmserve.errors import InvalidRequest
from acmserve.validation import echo

NAME = "longbench-v2"
LETTERS = "ABCD"


def make(point: Point, seed: int, material: Any = None) -> list[EvalSample]:
    """Four people and what each of them left in the text: which of four did one of them leave?"""
    draw = random.Random(f"{NAME} {seed} {setting_of(point)}")
    people, things = draw.sample(NAMES, 4), draw.sample(VALUES, 4)
    lines = [
        f"{person} left a box of {thing} in the {draw.choice(KEYS)} room."
        for person, thing in zip(people, things, strict=True)
    ]
    number = draw.randrange(4)
    choices = draw.sample(things, 4)
    asked = f"What did {people[number]} leave in a room?"
    return [
        EvalSample.at(
            NAME,
            point,
            seed,
            _question(asked, choices),
            LETTERS[choices.index(things[number])],
            hide(hay(draw, point["tokens"]), lines, 10, 20),
            max_tokens=128,
        )
    ]


def read(row: Mapping[str, Any], stem: str) -> EvalSample:
    """A row of the data set."""
    choices, gold = [text_of(row, f"choice_{letter}", NAME) for letter in LETTERS], text_of(row, "answer", NAME)
    if gold not in tuple(LETTERS):
        raise InvalidRequest(f"--data {NAME}", f"the answer {echo(gold)} is none of {', '.join(LETTERS)}.")
    return EvalSample(
        NAME,
        f"{row.get('length', '?')}-{row.get('difficulty', '?')}",
        str(row.get("_id", "")),
        _question(text_of(row, "question", NAME), choices),
        gold,
        text_of(row, "context", NAME),
        max_tokens=128,
    )


def read_letter(answer: str) -> str | None:
    """The letter that an answer is read as, None without one."""
    text = answer.replace("*", "")
    found = re.search(r"The correct answer is \(([A-D])\)", text) or re.search(r"The correct answer is ([A-D])", text)
    return found[1] if found else None


def _question(asked: str, choices: list[str]) -> str:
    told = "\n".join(f"({letter}) {choice}" for letter, choice in zip(LETTERS, choices, strict=True))
    return f'{asked}\n{told}\nAnswer in the form "The correct answer is (letter)".'


TASK = EvalTask(
    name=NAME,
    paper="LongBench v2: Towards Deeper Understanding and Reasoning on Realistic Long-Context Multitasks, "
    "arXiv 2412.15204",
    parameters={"tokens": (1_000,)},
    published={"tokens": (8_000, 32_000, 128_000)},
    make=make,
    score=lambda sample, answer: float(read_letter(answer) == sample.gold),
    data="rows with `context`, `question`, `choice_A` to `choice_D`, `answer`",
    read=read,
    guess=1 / len(LETTERS),
)
