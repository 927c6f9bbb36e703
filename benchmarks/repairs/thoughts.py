"""A chain of tool steps with a thought in front of each call: a template drops all thoughts when the user speaks. Pure.

    thought    <think> The result says ... I look for the owner of anchor. It may be cedar ... </think>    dropped
    call       Call: read(path="basics/anchor")                                                            kept
    result     ...  The owner of anchor is pearl.  ...                                                     kept

Nothing stands for a dropped thought. The first hole lies at the beginning, and about twice what stays is gone. Some of
the results tell a fact, and these facts are asked for. In half of the sizes thoughts guess: they told other values of
the same keys in front of the result. A thought behind a result repeats what it told, as models do.
"""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import dataclass

from acmserve.bench.harness.workloads import KEYS, VALUES
from acmserve.bench.repairs.lists import lines_of
from acmserve.bench.tasks.generators.case import CasePiece, CaseQuestion, TaskCase, first_word_is

TASK = "chain of thoughts"
NUM_FACTS, NUM_ASKED = 6, 4
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
    ChainSizes(12, 350, 120, False),
    ChainSizes(16, 300, 100, True),
    ChainSizes(20, 250, 80, False),
)


def make_case(seed: int, sizes: ChainSizes, topics: Mapping[str, str]) -> TaskCase:
    """Each step reads on in a page of its own, and its thought is about the beginning of that page."""
    draw = random.Random(f"{TASK} {seed} {sizes}")
    keys = draw.sample(KEYS, NUM_FACTS)
    told = {key: draw.sample(VALUES, 1 + _NUM_GUESSES * sizes.guesses) for key in keys}
    step_of = dict(zip(sorted(draw.sample(range(sizes.num_steps), NUM_FACTS)), keys, strict=True))
    pieces = [CasePiece("User: find out who owns what. Read the pages, one after the other.\n")]
    seen = "I begin."
    for step, name in enumerate(draw.sample(sorted(topics), sizes.num_steps)):
        page = lines_of(topics[name], sizes.num_thought + sizes.num_result)
        cut = page.index("\n", sizes.num_thought - 1) + 1
        lines = page[cut:].splitlines(keepends=True)
        key = step_of.get(step)
        if key is not None:
            lines.insert(draw.randint(0, len(lines)), f"The owner of {key} is {told[key][-1]}.\n")
        thought = f"<think>\n{seen} I know this:\n{page[:cut]}{_plan(key, told)}\n</think>\n"
        called = f'Call: read(path="{name.lower()}/{key or step}")\nResult:\n{"".join(lines)}'
        pieces += [CasePiece(thought, is_folded=True, has_marker=False), CasePiece(called)]
        seen = f"So the owner of {key} is {told[key][-1]}." if key is not None else "That page names no owner."
    pieces.append(CasePiece(f"<think>\n{seen} That was the last page.\n</think>\n", is_folded=True, has_marker=False))
    pieces.append(CasePiece("I have read all pages.\n"))
    return TaskCase(TASK, str(sizes), seed, tuple(pieces), _questions(draw.sample(keys, NUM_ASKED), told))


def _plan(key: str | None, told: Mapping[str, list[str]]) -> str:
    if key is None:
        return "I read on."
    guesses = told[key][:-1]
    guessed = f" It may be {', or '.join(guesses)}." if guesses else ""
    return f"I look for the owner of {key}.{guessed}"


def _questions(keys: list[str], told: Mapping[str, list[str]]) -> tuple[CaseQuestion, ...]:
    return tuple(
        CaseQuestion(
            f"Answer: the owner of {key} is", told[key][-1], tuple(VALUES), first_word_is, frozenset(told[key][:-1])
        )
        for key in keys
    )
