"""A chain of tool steps with a thought in front of each call: a template drops all thoughts when the user speaks. Pure.

    thought    <think> The result says ... Who owns anchor? I guess cedar, ... </think>    dropped, without a marker
    call       Call: read(path="basics/3")                                                kept
    result     ...  owner of anchor: pearl  ...                                           kept

The first hole lies at the beginning, and two to three times what stays is gone. Facts are asked for that results tell.
In some sizes thoughts guess: they told other values of the same keys, in front of the result. In others they name the
key alone. The thought behind a result repeats what it told, as models do.
"""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import dataclass

from acmserve.bench.harness.workloads import KEYS, VALUES
from acmserve.bench.repairs.lists import lines_of
from acmserve.bench.tasks.generators.case import CasePiece, CaseQuestion, TaskCase, first_word_is

TASK = "chain of thoughts"
NUM_ASKED = 5
_NUM_GUESSES = 2


@dataclass(frozen=True, slots=True)
class ChainSizes:
    """Steps, characters of each thought and of each result, and whether thoughts guess what the result will tell."""

    num_steps: int
    num_thought: int
    num_result: int
    guesses: bool

    def __str__(self) -> str:
        return f"{self.num_steps}x{self.num_thought}-{self.num_result}{' guesses' if self.guesses else ''}"


SIZES = (
    ChainSizes(8, 450, 180, True),
    ChainSizes(8, 450, 180, False),
    ChainSizes(12, 350, 120, True),
    ChainSizes(6, 800, 240, False),
)


def make_case(seed: int, sizes: ChainSizes, topics: Mapping[str, str]) -> TaskCase:
    """Each step reads on in a page of its own, and its thought goes on about that page."""
    draw = random.Random(f"{TASK} {seed} {sizes}")
    keys = draw.sample(KEYS, sizes.num_steps)
    told = {key: draw.sample(VALUES, 1 + _NUM_GUESSES * sizes.guesses) for key in keys}
    names = draw.sample(sorted(topics), sizes.num_steps)
    pieces = [CasePiece("User: find out who owns what. Read the pages, one after the other.\n")]
    seen = "Nothing is known yet."
    for key, name in zip(keys, names, strict=True):
        page = lines_of(topics[name], sizes.num_thought + sizes.num_result)
        cut = page.index("\n", sizes.num_thought - 1) + 1
        pieces.append(CasePiece(_thought(seen, key, told[key][:-1], page[:cut]), is_folded=True, has_marker=False))
        lines = page[cut:].splitlines(keepends=True)
        lines.insert(draw.randint(0, len(lines)), f"owner of {key}: {told[key][-1]}\n")
        pieces.append(CasePiece(f'Call: read(path="{name.lower()}/{key}")\nResult:\n{"".join(lines)}'))
        seen = f"The result says that the owner of {key} is {told[key][-1]}."
    pieces.append(CasePiece(f"<think>\n{seen} That was the last one.\n</think>\n", is_folded=True, has_marker=False))
    pieces.append(CasePiece("Answer: I have read all pages.\n"))
    return TaskCase(TASK, str(sizes), seed, tuple(pieces), _questions(draw.sample(keys, NUM_ASKED), told))


def _thought(seen: str, key: str, guesses: list[str], text: str) -> str:
    guessed = f"The owner of {key} may be {', or '.join(guesses)}." if guesses else f"I do not know the owner of {key}."
    return f"<think>\n{seen} What comes next? I remember this:\n{text}{guessed} So I read the page.\n</think>\n"


def _questions(keys: list[str], told: Mapping[str, list[str]]) -> tuple[CaseQuestion, ...]:
    return tuple(
        CaseQuestion(
            f"Answer: the owner of {key} is", told[key][-1], tuple(VALUES), first_word_is, frozenset(told[key][:-1])
        )
        for key in keys
    )
