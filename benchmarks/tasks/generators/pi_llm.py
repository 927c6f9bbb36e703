"""PI-LLM: a stream of updates to the same keys. Only the last value of a key counts (Wang & Sun, arXiv 2506.08184).

    anchor: cedar      round 1   \
    basket: pearl                 |  folded: stale, and of the same form as what counts
    ...                          /
    anchor: frost      last round(s): kept, and asked about

This is the context that folding helps most and that moved KV serves worst. The kept lines were read while the stale
ones stood in front of them. The paper has 46 keys and 2 to 256 updates. Small models get fewer of both. A key gets
every value at most once (as long as there are enough), so a wrong answer tells whether it is a stale one.
The scorer is the paper's: the share of keys whose last value is given.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass

from acmserve.bench.harness.workloads import KEYS, STREAM_BEGINS, VALUES
from acmserve.bench.tasks.generators.case import CasePiece, CaseQuestion, TaskCase, first_word_is

TASK = "pi-llm"


@dataclass(frozen=True, slots=True)
class UpdateSizes:
    """Keys, updates of each, and how many of the last rounds stay in sight."""

    num_keys: int
    num_updates: int
    num_kept: int = 1

    def __str__(self) -> str:
        return f"{self.num_keys}x{self.num_updates}-{self.num_kept}"


SMALL = (
    UpdateSizes(8, 16),
    UpdateSizes(8, 4),
    UpdateSizes(8, 24, 10),
    UpdateSizes(12, 8),
    UpdateSizes(6, 16, 3),
    UpdateSizes(8, 32, 16),
)
PAPER = tuple(UpdateSizes(46, num_updates) for num_updates in (2, 4, 8, 16, 32, 64, 128, 256))


def make_case(seed: int, sizes: UpdateSizes, num_questions: int = 4) -> TaskCase:
    """Updates in random order, `num_questions` keys asked for."""
    draw = random.Random(f"{TASK} {seed} {sizes}")
    keys = draw.sample(KEYS, sizes.num_keys)
    values = {key: list(_values(draw, sizes.num_updates)) for key in keys}
    rounds = [
        "".join(f"{key}: {values[key][number]}\n" for key in draw.sample(keys, len(keys)))
        for number in range(sizes.num_updates)
    ]
    first_kept = sizes.num_updates - sizes.num_kept
    return TaskCase(
        TASK,
        str(sizes),
        seed,
        (
            CasePiece(f"Each line sets a key to a new value; only the last value of a key counts. {STREAM_BEGINS}\n"),
            CasePiece("".join(rounds[:first_kept]), is_folded=True),
            CasePiece("".join(rounds[first_kept:])),
        ),
        tuple(_question(key, values[key]) for key in draw.sample(keys, min(num_questions, len(keys)))),
    )


def _values(draw: random.Random, num: int) -> Iterator[str]:
    """Values without repetition. Of more than there are, none comes twice in a row."""
    last = ""
    while num > 0:
        batch = draw.sample(VALUES, len(VALUES))
        if batch[0] == last:
            batch.reverse()
        yield from batch[:num]
        num, last = num - len(batch), batch[-1]


def _question(key: str, values: list[str]) -> CaseQuestion:
    return CaseQuestion(
        f"{key}:",
        values[-1],
        tuple(VALUES),
        first_word_is,
        distractors=frozenset(values) - {values[-1]},
    )
