"""GSM-Infinite: grade-school arithmetic over a chain of given length, in noise of given length (arXiv 2502.05252).

    The number of crates of iron in the mill is 7. The number of crates of jade in the pier is the number of ... plus 4.
    What is the number of crates of ... ?     "Answer: 19."

Of the paper: rows with `problem`, `question`, `solution` and `op` (operations that the answer needs), and the reading
of answers. The right number stands behind "Answer: " in `solution`. What is generated without a file has `ops`
operations in random order, and other sums beside it until about `tokens` are there.
"""

from __future__ import annotations

import itertools
import random
import re
from collections.abc import Mapping
from typing import Any

from acmserve.bench.eval.tasks.task import EvalSample, EvalTask, Point, setting_of, text_of
from acmserve.bench.harness.workloads import KEYS, VALUES
from acmserve.errors import InvalidRequest

NAME = "gsm-infinite"
_DIGITS = ""
_MARKS = (
    *(("answer: ", "."), ("solution: ", "."), ("oxed{", "}"), ("**answer:** ", "."), ("**answer: ", "**")),
    *(("final answer: answer: ", "."), ("\nanswer: ", "."), ("\\text{answer: } ", _DIGITS)),
    *(("is ", "."), ("answer: ", "\n")),
)
"""How answers are marked, in the order in which they are looked for, and what ends the number behind them.

Marks of `_LAST` count where they stand last. Behind the one with `_DIGITS` the number ends with its digits.
"""
_LAST = frozenset({"oxed{", "is "})


def make(point: Point, seed: int, material: Any = None) -> list[EvalSample]:
    """One chain of sums, its sentences in random order among those of other chains."""
    draw = random.Random(f"{NAME} {seed} {setting_of(point)}")
    names = [f"crates of {thing} at the {place}" for thing in VALUES for place in KEYS]
    draw.shuffle(names)
    chain, value = _chain(draw, names, point["ops"])
    asked, told = chain[-1][0], [text for _, text in chain]
    while sum(map(len, told)) < 4 * point["tokens"] and len(names) > point["ops"]:
        told += [text for _, text in _chain(draw, names, draw.randint(1, max(1, point["ops"])))[0]]
    draw.shuffle(told)
    question = f"What is the number of {asked}? Think as long as you need, and end in the form 'Answer: number.'"
    return [
        EvalSample.at(
            NAME,
            point,
            seed,
            question,
            str(value),
            " ".join(told),
        )
    ]


def read(row: Mapping[str, Any], stem: str) -> EvalSample:
    """A row of the data set."""
    solution = text_of(row, "solution", NAME)
    found = re.search(r"Answer: (-?\d+)\.", solution + ".")
    if found is None:
        raise InvalidRequest(f"--data {NAME}", "a solution has no 'Answer: number.'.")
    question = f"{text_of(row, 'question', NAME)} End in the form 'Answer: number.'"
    setting = f"ops{row.get('op', '?')}"
    return EvalSample(NAME, setting, str(row.get("id", "")), question, found[1], text_of(row, "problem", NAME))


def read_number(answer: str) -> int | None:
    """The number that an answer is read as: behind the first mark behind which a whole number stands."""
    # A backspace with the character in front of it is a "\\b" that was read as an escape.
    text = re.sub(".\x08", "b", answer).lower()
    for mark, end in _MARKS:
        at = text.rfind(mark) if mark in _LAST else text.find(mark)
        if at < 0:
            continue
        rest = text[at + len(mark) :]
        found = _number_of_digits(rest) if end == _DIGITS else rest.split(end)[0]
        try:
            return int(found)
        except ValueError:
            continue
    return None


def _number_of_digits(text: str) -> str:
    return "".join(itertools.takewhile(str.isdigit, text))


def _chain(draw: random.Random, names: list[str], num_ops: int) -> tuple[list[tuple[str, str]], int]:
    """What each sentence defines, and the last value. It takes the names that it uses."""
    value = draw.randint(2, 9)
    before = names.pop()
    found = [(before, f"The number of {before} is {value}.")]
    for _ in range(num_ops):
        name, number = names.pop(), draw.randint(2, 9)
        word, value = ("plus", value + number) if draw.random() < 0.7 else ("times", value * number)
        found.append((name, f"The number of {name} is the number of {before} {word} {number}."))
        before = name
    return found, value


TASK = EvalTask(
    name=NAME,
    paper="GSM-Infinite: How Do Your LLMs Behave over Infinitely Increasing Context Length and Reasoning Complexity?, "
    "arXiv 2502.05252",
    parameters={"ops": (2, 4), "tokens": (500,)},
    published={"ops": (2, 5, 10, 15, 20, 25, 30), "tokens": (0, 8_000, 16_000, 32_000)},
    make=make,
    score=lambda sample, answer: float(read_number(answer) == int(sample.gold)),
    data="rows with `problem`, `question`, `solution`, `op`",
    read=read,
)
