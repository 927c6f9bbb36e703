"""NeedleBench, multi-needle reasoning: a family tree scattered over a long text (Li et al., arXiv 2407.11963).

    haystack           folded: no needle in it, only another family's
    hay needle hay needle hay    kept: "It is known that the parent of David is Sarah."
    Who is the oldest known ancestor of David?

Names and haystack are our own. The haystack is prose of the Python manual, as the paper's is prose, or lines of a
ledger that all read alike, as logs do. The needles of a chain stand in random order, so it cannot be read off in one
go. Other families stand around, and all their names may be chosen. The scorer is the paper's: the right name or
nothing. Of the names that an answer mentions, the first one counts. One needle asks for a parent and is what small
models can do.
"""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise

from acmserve.bench.harness.workloads import KEYS, VALUES
from acmserve.bench.tasks.generators.case import CasePiece, CaseQuestion, TaskCase

TASK = "needles"
# Each is one token of SmolLM2, and so of another first token than all others.
# fmt: off
PEOPLE = (
    "Alice", "Bernard", "Clara", "David", "Edward", "Frank", "George", "Helen", "Jack", "Karen", "Louis", "Martin",
    "Nancy", "Oliver", "Peter", "Robert", "Sarah", "Thomas", "Victor", "Walter", "Laura", "Henry", "Emma", "Daniel",
    "Julia", "Simon", "Rachel", "Philip", "Monica", "Adam", "Diana", "Felix", "Grace", "Hannah", "Isaac", "Joseph",
)
# fmt: on


@dataclass(frozen=True, slots=True)
class NeedleSizes:
    """Needles of each chain, lines of hay that are folded, and lines that are kept."""

    num_needles: int
    num_folded: int
    num_kept: int
    is_token_counts: bool = False

    def __str__(self) -> str:
        return f"{self.num_needles}n-{self.num_folded}-{self.num_kept}{'-ledger' if self.is_token_counts else ''}"


SMALL = (
    NeedleSizes(1, 16, 40),
    NeedleSizes(1, 24, 36, is_token_counts=True),
    NeedleSizes(2, 20, 36),
    NeedleSizes(1, 36, 16),
)


def make_case(seed: int, sizes: NeedleSizes, topics: Mapping[str, str], num_questions: int = 2) -> TaskCase:
    """One chain for each question and one that is folded, all of different people."""
    draw = random.Random(f"{TASK} {seed} {sizes}")
    num_chains, length = num_questions + 1, sizes.num_needles + 1
    people = draw.sample(PEOPLE, num_chains * length)
    chains = [people[length * i : length * (i + 1)] for i in range(num_chains)]
    nums = sizes.num_folded, sizes.num_kept
    folded, kept = _token_counts(draw, *nums) if sizes.is_token_counts else _prose(draw, topics, *nums)
    _hide(draw, folded, _needles(chains[0]))
    _hide(draw, kept, [needle for chain in chains[1:] for needle in _needles(chain)])
    return TaskCase(
        TASK,
        str(sizes),
        seed,
        (
            CasePiece("Read these notes. Some of them tell who is the parent of whom.\n"),
            CasePiece("".join(folded), is_folded=True),
            CasePiece("".join(kept)),
        ),
        tuple(_question(chain, chains[0], tuple(sorted(people))) for chain in chains[1:]),
    )


def name_is(answer: str, gold: str) -> float:
    """1 when the first person that the answer names is the right one."""
    words = (word.strip(".,;:!?\"'*()") for word in answer.split())
    return float(next((word for word in words if word in PEOPLE), None) == gold)


def _token_counts(draw: random.Random, num_folded: int, num_kept: int) -> tuple[list[str], list[str]]:
    days = range(1, 1 + num_folded + num_kept)
    lines = [f"On day {day} the {draw.choice(KEYS)} was traded for {draw.choice(VALUES)}.\n" for day in days]
    return lines[:num_folded], lines[num_folded:]


def _prose(
    draw: random.Random, topics: Mapping[str, str], num_folded: int, num_kept: int
) -> tuple[list[str], list[str]]:
    """The beginnings of two topics that are long enough, without empty lines."""
    lines = {name: [line + "\n" for line in text.splitlines() if line.strip()] for name, text in topics.items()}
    names = draw.sample([name for name in lines if len(lines[name]) >= max(num_folded, num_kept)], 2)
    return lines[names[0]][:num_folded], lines[names[1]][:num_kept]


def _needles(chain: list[str]) -> list[str]:
    return [f"It is known that the parent of {child} is {parent}.\n" for child, parent in pairwise(chain)]


def _hide(draw: random.Random, lines: list[str], needles: list[str]) -> None:
    """Put every needle somewhere into the lines, in random order."""
    for needle in draw.sample(needles, len(needles)):
        lines.insert(draw.randint(0, len(lines)), needle)


def _question(chain: list[str], folded_chain: list[str], people: tuple[str, ...]) -> CaseQuestion:
    youngest, oldest = chain[0], chain[-1]
    asked = "the parent" if len(chain) == 2 else "the oldest known ancestor"
    return CaseQuestion(
        f"It is known that {asked} of {youngest} is",
        oldest,
        people,
        name_is,
        distractors=frozenset(folded_chain),
    )
