"""Edits that clients make by themselves: cleared tool results, stripped reasoning, and most of a page removed. Pure.

    clearing     $ sed -n 1,12p shutil.py        kept: the calls
                 ...  # TODO(anchor): ask cedar   folded: all results but the last `keep` ones
    reasoning    Thinking: "I look for the owner of anchor. It was cedar, and then ..."    dropped, without a marker
                 Answer: Note: the owner of anchor is pearl.                               kept
    removal      a page of the manual with facts. All but its end is folded, three to twelve times what stays

Facts are asked for that the kept text tells. In the first two the folded text told other values of the same keys.
"""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import dataclass

from acmserve.bench.harness.library_text import Library
from acmserve.bench.harness.workloads import KEYS, VALUES
from acmserve.bench.repairs.lists import lines_of
from acmserve.bench.tasks.generators.case import CasePiece, CaseQuestion, TaskCase, first_word_is

CLEARING, REASONING, REMOVAL = "clearing", "stripped reasoning", "large removal"


@dataclass(frozen=True, slots=True)
class ClearingSizes:
    """Results of reads, the last ones that stay, and lines of each."""

    num_results: int
    num_kept: int
    num_lines: int

    def __str__(self) -> str:
        return f"keep {self.num_kept} of {self.num_results}x{self.num_lines}"


KEEP_ONE = (ClearingSizes(5, 1, 14), ClearingSizes(4, 1, 24))
KEEP_THREE = (ClearingSizes(7, 3, 9), ClearingSizes(6, 3, 12))
_NUM_NOTES = 3
_NUM_FACTS = 3


def clearing(seed: int, sizes: ClearingSizes, library: Library) -> TaskCase:
    """Reads of one file, window by window. The folded ones and the last one have notes about the same few keys."""
    draw = random.Random(f"{CLEARING} {seed} {sizes}")
    name = draw.choice(sorted(library.sources))
    source = [line for line in library.sources[name].splitlines() if line.strip()]
    first = draw.randrange(len(source) - sizes.num_results * sizes.num_lines)
    *keys, other = draw.sample(KEYS, _NUM_NOTES + 2)
    told: dict[str, list[str]] = {key: [] for key in (*keys, other)}
    pieces = [CasePiece("$ cat README\nThe last note about a key counts.\n")]
    for number in range(sizes.num_results):
        start = first + number * sizes.num_lines
        window = source[start : start + sizes.num_lines]
        is_kept = number >= sizes.num_results - sizes.num_kept
        is_last = number == sizes.num_results - 1
        in_window = keys[:_NUM_NOTES] if is_last else [other] if is_kept else draw.sample(keys, _NUM_NOTES)
        for key in in_window:
            value = draw.choice([value for value in VALUES if value not in told[key]])
            told[key].append(value)
            window.insert(draw.randint(1, len(window)), f"# TODO({key}): ask {value}")
        pieces.append(CasePiece(f"$ sed -n '{start},{start + sizes.num_lines}p' {name}\n"))
        pieces.append(CasePiece("\n".join(window) + "\n", is_folded=not is_kept))
    questions = tuple(_question(f"# TODO({key}): ask", told[key]) for key in draw.sample(keys[:_NUM_NOTES], _NUM_NOTES))
    return TaskCase(CLEARING, str(sizes), seed, tuple(pieces), questions)


@dataclass(frozen=True, slots=True)
class ReasoningSizes:
    """Steps, and characters of each thought and of each answer."""

    num_steps: int
    num_thought: int
    num_answer: int

    def __str__(self) -> str:
        return f"{self.num_steps}x{self.num_thought}-{self.num_answer}"


REASONING_SIZES = (ReasoningSizes(3, 500, 500), ReasoningSizes(4, 250, 600), ReasoningSizes(2, 1000, 700))


def reasoning(seed: int, sizes: ReasoningSizes, topics: Mapping[str, str]) -> TaskCase:
    """Thoughts about a page weigh owners of keys, the answer below quotes the page and tells the right one."""
    draw = random.Random(f"{REASONING} {seed} {sizes}")
    keys = draw.sample(KEYS, sizes.num_steps)
    told: dict[str, list[str]] = {}
    pieces = [CasePiece("Answer each question from the manual.\n")]
    for step, name in enumerate(draw.sample(sorted(topics), sizes.num_steps)):
        page = lines_of(topics[name], sizes.num_thought + sizes.num_answer)
        half = page.index("\n", sizes.num_thought // 2) + 1
        told[keys[step]] = draw.sample(VALUES, 3)
        wrong, other, right = told[keys[step]]
        thought = (
            f"Thinking: who owns {keys[step]}? It says here:\n{page[: sizes.num_thought].rsplit(chr(10), 1)[0]}\n"
            f"So the owner of {keys[step]} is {wrong}. No, that was {other} then, and it is {right} now.\n"
        )
        pieces.append(CasePiece(f"Question: who owns {keys[step]}, and what does the page {name} say?\n"))
        pieces.append(CasePiece(thought, is_folded=True, has_marker=False))
        answer = page[half:][: sizes.num_answer].rsplit("\n", 1)[0]
        pieces.append(CasePiece(f"Answer: the owner of {keys[step]} is {right}. The page says:\n{answer}\n"))
    questions = tuple(_question(f"Answer: the owner of {key} is", told[key]) for key in draw.sample(keys, len(keys)))
    return TaskCase(REASONING, str(sizes), seed, tuple(pieces), questions)


@dataclass(frozen=True, slots=True)
class RemovalSizes:
    """Characters of the text that stays, and how many times as much is folded."""

    num_chars: int
    times: int

    def __str__(self) -> str:
        return f"{self.num_chars}x{self.times}"


REMOVAL_SIZES = (RemovalSizes(900, 3), RemovalSizes(600, 6), RemovalSizes(500, 10))


def removal(seed: int, sizes: RemovalSizes, topics: Mapping[str, str]) -> TaskCase:
    """One page, with facts all over it. The end of it stays."""
    draw = random.Random(f"{REMOVAL} {seed} {sizes}")
    num_folded = sizes.num_chars * sizes.times
    long_enough = sorted(name for name, text in topics.items() if len(text) > 1.2 * (num_folded + sizes.num_chars))
    page = lines_of(topics[draw.choice(long_enough)], num_folded + sizes.num_chars).splitlines(keepends=True)
    sums = [sum(map(len, page[:number])) for number in range(len(page))]
    at = next(number for number, length in enumerate(sums) if length >= num_folded)
    folded, kept = page[:at], page[at:]
    keys = draw.sample(KEYS, _NUM_FACTS + 2 * sizes.times)
    values = draw.sample(VALUES, len(keys))
    for number, (key, value) in enumerate(zip(keys, values, strict=True)):
        lines = kept if number < _NUM_FACTS else folded
        lines.insert(draw.randint(0, len(lines) - 1), f"Note: the locker of {key} holds {value}.\n")
    questions = tuple(
        CaseQuestion(f"Note: the locker of {key} holds", value, tuple(VALUES), first_word_is)
        for key, value in list(zip(keys, values, strict=True))[:_NUM_FACTS]
    )
    pieces = (CasePiece("Read this page.\n"), CasePiece("".join(folded), is_folded=True), CasePiece("".join(kept)))
    return TaskCase(REMOVAL, str(sizes), seed, pieces, questions)


def _question(text: str, told: list[str]) -> CaseQuestion:
    """The last value told is right, and those before it mislead."""
    return CaseQuestion(text, told[-1], tuple(VALUES), first_word_is, distractors=frozenset(told[:-1]) - {told[-1]})
