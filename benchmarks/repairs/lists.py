"""A list of settings inside prose: its older rounds are folded, the last one stays between pages of a manual. Pure.

    intro
    page, rounds of `key: value`     folded: stale, and of the same form as what counts
    page, last round, page           kept. The list is a small part of it
    key:                             asked

Most of the kept text has nothing to do with what was folded, and a small part contradicts it. A careful repair moves
the first and computes the second.
"""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import dataclass

from acmserve.bench.harness.workloads import KEYS, VALUES
from acmserve.bench.tasks.generators.case import CasePiece, CaseQuestion, TaskCase, first_word_is

TASK = "lists in prose"
NUM_ASKED = 5


@dataclass(frozen=True, slots=True)
class ListSizes:
    """Keys of the list, rounds of it, and characters of prose on each side of the last round."""

    num_keys: int
    num_rounds: int
    num_chars: int

    def __str__(self) -> str:
        return f"{self.num_keys}x{self.num_rounds}-{self.num_chars}"


SIZES = (ListSizes(8, 10, 500), ListSizes(6, 8, 800), ListSizes(10, 5, 700))


def make_case(seed: int, sizes: ListSizes, topics: Mapping[str, str]) -> TaskCase:
    """Five of the keys are asked for."""
    draw = random.Random(f"{TASK} {seed} {sizes}")
    keys = draw.sample(KEYS, sizes.num_keys)
    values = {key: draw.sample(VALUES, sizes.num_rounds) for key in keys}
    rounds = [
        "".join(f"{key}: {values[key][number]}\n" for key in draw.sample(keys, len(keys)))
        for number in range(sizes.num_rounds)
    ]
    pages = [lines_of(topics[name], sizes.num_chars) for name in draw.sample(sorted(topics), 3)]
    return TaskCase(
        TASK,
        str(sizes),
        seed,
        (
            CasePiece("Notes. Lines like `key: value` are settings, and the last value of a key counts.\n"),
            CasePiece(pages[0] + "".join(rounds[:-1]), is_folded=True),
            CasePiece(pages[1] + rounds[-1] + pages[2]),
        ),
        tuple(
            CaseQuestion(
                f"{key}:", values[key][-1], tuple(VALUES), first_word_is, distractors=frozenset(values[key][:-1])
            )
            for key in draw.sample(keys, NUM_ASKED)
        ),
    )


def lines_of(text: str, num_chars: int) -> str:
    """Whole lines from the beginning of a text, without empty ones, at least `num_chars` characters."""
    lines: list[str] = []
    for line in text.splitlines():
        if sum(map(len, lines)) >= num_chars:
            break
        if line.strip():
            lines.append(line.strip() + "\n")
    return "".join(lines)
