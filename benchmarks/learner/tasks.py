"""The tasks to learn from, and those to be judged by: other seeds, other texts, other names.

    even seeds   two to four documents of 280 to 360 tokens. All of them do not fit, and the last one is asked for
    odd seeds    two to four documents of 30 to 70 tokens. All of them fit, and any one is asked for

The limit of the first kind leaves room for the tools, for the calls of a model that folds, and for less than two
documents. So it does not matter how well, but where somebody folds. The limit of the second kind leaves room for the
longest answer in each turn, so that words cost nothing there. Needless folds fit, too, where they pay. They hide what
may be asked for, and nothing brings it back. A fold that would not pay is refused, and its calls may break the limit.
"""

from __future__ import annotations

import random
from collections.abc import Callable

from acmserve.bench.learner.sessions import MAX_ANSWER_TOKENS
from acmserve.training.fold_or_fail import WORDS, FoldOrFail, TaskWords, make_task

TRAINING_SEED, HELD_OUT_SEED = 0, 1_000_000
FITTING = 1.25
CALL_TOKENS = 180
"""Tokens that the calls and results behind one document may have."""
TURN_TOKENS = 24
"""Tokens of a turn besides its document and its answer: what the template and the user say."""
SAID_TOKENS = MAX_ANSWER_TOKENS + TURN_TOKENS
"""Tokens that a turn of a short task may have besides its document."""

HELD_OUT_WORDS = TaskWords(
    ("scarlet", "bronze", "turquoise", "pale", "wooden", "striped", "yellow", "marble", "black", "rusty"),
    ("kettle", "wagon", "violin", "ladder", "chapel", "barrel", "windmill", "anchor", "saddle", "lantern"),
    ("Snow", "The postman", "A young sailor", "Everybody", "A pair of horses", "The widow", "My uncle", "Thunder"),
    ("drifted over", "hurried past", "forgot", "sketched", "circled", "reached", "dreamed of", "sang about"),
    ("the valley", "a wide river", "the southern coast", "the library", "a quiet forest", "the old mill"),
    ("at noon", "all winter", "in the evening", "with a smile", "yet again", "after the storm"),
)


def training_tasks(num: int, count_tokens: Callable[[str], int], prompt_tokens: int) -> list[FoldOrFail]:
    """The first tasks to learn from."""
    return _tasks(TRAINING_SEED, num, count_tokens, prompt_tokens, WORDS)


def held_out_tasks(num: int, count_tokens: Callable[[str], int], prompt_tokens: int) -> list[FoldOrFail]:
    """The first tasks to be judged by. They share no name and no sentence with the others."""
    return _tasks(HELD_OUT_SEED, num, count_tokens, prompt_tokens, HELD_OUT_WORDS)


def _tasks(
    first: int, num: int, count_tokens: Callable[[str], int], prompt_tokens: int, words: TaskWords
) -> list[FoldOrFail]:
    made = []
    for seed in range(first, first + num):
        draw, needs_fold = random.Random(f"sizes {seed}"), seed % 2 == 0
        num_documents = draw.randint(2, 4)
        overhead = (num_documents - 1) * CALL_TOKENS if needs_fold else (num_documents + 1) * SAID_TOKENS
        made.append(
            make_task(
                seed,
                count_tokens,
                num_documents=num_documents,
                document_tokens=draw.randint(280, 360) if needs_fold else draw.randint(30, 70),
                fitting=FITTING if needs_fold else None,
                overhead=prompt_tokens + overhead,
                asks="last" if needs_fold else "any",
                words=words,
            )
        )
    return made
