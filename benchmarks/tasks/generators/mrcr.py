"""MRCR: the n-th request of the same kind in a long conversation, word for word (Vodrahalli et al., arXiv 2409.12640).

    The note about the window: Silver elm and ...      \
    The poem about the saddle: Dark flint and ...       |  folded: answers to other requests
    ...                                                /
    The riddle about the barrel: Warm teak and ...        kept: all of the kind that is asked for, and some others
    The riddle about the barrel: Low kelp and ...
    Once more, the second riddle about the barrel:

Requests of one kind have the same words and different answers, so only the order tells them apart. Where a kind was
asked for once, there is nothing to count. Each answer begins with another word, so that word tells which one is meant.
The scorer is the published one: how similar the generated text is to the right one (difflib's ratio), 0 unless it
begins like it. What the model writes behind the right text counts against it.
"""

from __future__ import annotations

import random
from dataclasses import dataclass

from acmserve.bench.eval.tasks.mrcr import score_v1
from acmserve.bench.harness.workloads import KEYS, VALUES
from acmserve.bench.tasks.generators.case import CasePiece, CaseQuestion, TaskCase

TASK = "coreference"
FORMS = ("riddle", "note", "poem", "slogan", "letter")
ORDINALS = ("first", "second", "third", "fourth")
# Each is one token of SmolLM2 behind a space.
# fmt: off
OPENERS = (
    "Red", "Blue", "Green", "Silver", "Golden", "Dark", "Bright", "Old", "Young", "Small", "Great", "Cold", "Warm",
    "Soft", "Hard", "Deep", "High", "Low", "Fast", "Slow", "Wild", "Free", "Rich", "Poor", "Strong", "Dry", "Wet",
    "Heavy", "Light", "Sharp",
)
# fmt: on
_NUM_OTHERS = 12


@dataclass(frozen=True, slots=True)
class MrcrSizes:
    """Requests of each kind that is asked for, other entries that are folded, and others that are kept."""

    num_same: int
    num_folded: int
    num_kept: int

    def __str__(self) -> str:
        return f"{self.num_same}s-{self.num_folded}-{self.num_kept}"


SMALL = (MrcrSizes(1, 8, 14), MrcrSizes(2, 5, 16), MrcrSizes(1, 12, 10), MrcrSizes(1, 4, 18))


def make_case(seed: int, sizes: MrcrSizes, num_questions: int = 2) -> TaskCase:
    """As many kinds are asked for as there are questions, each at another place in its order."""
    draw = random.Random(f"{TASK} {seed} {sizes}")
    kinds = [(draw.choice(FORMS), topic) for topic in draw.sample(KEYS, num_questions + _NUM_OTHERS)]
    asked, others = kinds[:num_questions], kinds[num_questions:]
    num_entries = sizes.num_folded + sizes.num_kept + num_questions * sizes.num_same
    notes = [_note(draw, opener) for opener in draw.sample(OPENERS, num_entries)]
    folded_kinds = [draw.choice(others) for _ in range(sizes.num_folded)]
    kept_kinds = [kind for kind in asked for _ in range(sizes.num_same)]
    kept_kinds += [draw.choice(others) for _ in range(sizes.num_kept)]
    draw.shuffle(kept_kinds)
    folded = list(zip(folded_kinds, notes, strict=False))
    kept = list(zip(kept_kinds, notes[sizes.num_folded :], strict=True))
    return TaskCase(
        TASK,
        str(sizes),
        seed,
        (
            CasePiece("These texts were asked for so far, in this order.\n"),
            CasePiece("".join(_entry(*entry) for entry in folded), is_folded=True),
            CasePiece("".join(_entry(*entry) for entry in kept)),
        ),
        tuple(_question(draw, kind, kept, tuple(note for _, note in folded)) for kind in asked),
    )


def similarity(answer: str, gold: str) -> float:
    """The published score. The first word stands for the random string.

    The answer goes on where the prompt ends, so one space in front of it belongs to the prompt.
    """
    return score_v1(answer.removeprefix(" "), gold, gold.split()[0])


def _note(draw: random.Random, opener: str) -> str:
    """A line of our own: an opener that no other line of the conversation has, and four things."""
    one, two, three, four = draw.sample(VALUES, 4)
    return f"{opener} {one} and {two}, {three} and {four}."


def _entry(kind: tuple[str, str], note: str) -> str:
    return f"The {kind[0]} about the {kind[1]}: {note}\n"


def _question(
    draw: random.Random, kind: tuple[str, str], kept: list[tuple[tuple[str, str], str]], folded: tuple[str, ...]
) -> CaseQuestion:
    same = [note for other, note in kept if other == kind]
    number = draw.randrange(len(same))
    which = f"{ORDINALS[number]} " if len(same) > 1 else ""
    return CaseQuestion(
        f"Once more, the {which}{kind[0]} about the {kind[1]}:",
        same[number],
        (*folded, *(note for _, note in kept)),
        similarity,
        distractors=frozenset(folded),
        max_tokens=24,
    )
