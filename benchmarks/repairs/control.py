"""The control: a repair that looks at the question, and computes what has words in common with it.

    question       # TODO(anchor): ask
    kept           ...  # TODO(anchor): ask cedar  ...  # TODO(basket): ask elm  ...
                        |---- computed ----)            |- where the budget lasts

It gains on the question that it saw and loses on others. A benchmark with one question a cache would call it a win, so
`bench repairs` is red where this one is not caught. Pure.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from math import log

from acmserve.bench.tasks.prompt import Span, Tokens

BUDGET = 0.1
NUM_BEHIND = 5


def lexical_ranges(prompt: Tokens, spans: Sequence[Span], question: Tokens, budget: float = BUDGET) -> list[list[int]]:
    """Ranges of `spans` of the prompt that match the question best. The best, and more up to `budget` of the tokens.

    A match is a run of tokens of the question, worth the sum of their rarities. What stands behind it belongs to it.
    Matches worth less than half of the best one are none: they are the form of the question, not what it asks for.
    """
    positions = [position for start, end in spans for position in range(start, end)]
    counts = Counter(prompt[position] for position in positions)
    asked = set(question)
    runs: list[tuple[float, int, int]] = []
    for start, end in spans:
        at = start
        while at < end:
            behind = at
            while behind < end and prompt[behind] in asked:
                behind += 1
            if behind > at:
                worth = sum(log(len(positions) / counts[token]) for token in prompt[at:behind])
                runs.append((-worth, at, min(behind + NUM_BEHIND, end)))
            at = max(behind, at + 1)
    chosen: set[int] = set()
    for worth, start, end in sorted(runs):
        is_over = bool(chosen) and len(chosen) + end - start > budget * len(positions)
        if is_over or 2 * worth > min(runs)[0]:
            break
        chosen |= set(range(start, end))
    return [[position, position + 1] for position in sorted(chosen)]
