"""Random traces of edits, what a schedule of commits computes on them, and the cheapest schedule there is.

The distribution was fixed before the rule was tuned. A trace has 2,000 to 20,000 tokens cut into 4 to 10 texts, of
which each edit hides one, in one of three orders. It has 2 to 14 steps, of which each edits with a chance drawn per
trace. A step grows by 40 to 160 tokens, and one step in six by 300 to 3,000.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache

from acmserve.context.edits.commit import CommitView, WaitingEdit, edit_share, plan_commit

MARKER = 20


@dataclass(frozen=True)
class CommitTrace:
    """`edits[t]` is the text that step t hides, None for none. `growths[t]` are the tokens that it appends."""

    texts: tuple[int, ...]
    edits: tuple[int | None, ...]
    growths: tuple[int, ...]

    def num_behind(self, first: int, hidden: frozenset[int], step: int) -> int:
        """Tokens from a text to the end of the prompt behind step `step`."""
        shown = sum(MARKER if n in hidden else size for n, size in enumerate(self.texts) if n >= first)
        return shown + sum(self.growths[: step + 1])


def random_trace(seed: int) -> CommitTrace:
    draw = random.Random(seed)
    cuts = sorted(draw.randrange(200, 20_000) for _ in range(draw.randint(4, 10)))
    texts = tuple(max(MARKER + 60, b - a) for a, b in zip([0, *cuts], cuts, strict=False))
    order = list(range(len(texts)))
    kind, chance = draw.randrange(3), draw.random()
    if kind == 1:
        order.reverse()
    elif kind == 2:
        draw.shuffle(order)
    num_steps = draw.randint(2, 14)
    edits = tuple(order.pop(0) if order and draw.random() < chance else None for _ in range(num_steps))
    growths = tuple(draw.randint(300, 3_000) if draw.random() < 1 / 6 else draw.randint(40, 160) for _ in edits)
    return CommitTrace(texts, edits, growths)


Decide = Callable[[CommitTrace, int, frozenset[int], frozenset[int]], frozenset[int]]


def num_computed(trace: CommitTrace, decide: Decide) -> int:
    """Tokens that all steps and the end of the turn compute, the first prompt not counted."""
    total, waiting, landed = 0, frozenset[int](), frozenset[int]()
    for step, edit in enumerate(trace.edits):
        waiting |= frozenset() if edit is None else {edit}
        due = decide(trace, step, waiting, landed)
        waiting, landed = waiting - due, landed | due
        total += trace.num_behind(min(due), landed, step) if due else trace.growths[step]
    last = len(trace.edits) - 1
    return total + (trace.num_behind(min(waiting), landed | waiting, last) if waiting else 0)


def now(_: CommitTrace, __: int, waiting: frozenset[int], ___: frozenset[int]) -> frozenset[int]:
    return waiting


def by_rule(trace: CommitTrace, step: int, waiting: frozenset[int], landed: frozenset[int]) -> frozenset[int]:
    every = landed | waiting
    edits = [WaitingEdit(str(n), trace.num_behind(n, every, step)) for n in sorted(waiting)]
    share = edit_share(edit is not None for edit in trace.edits[: step + 1])
    saved = sum(trace.texts[n] - MARKER for n in waiting)
    prompt = trace.num_behind(0, landed, step)
    view = CommitView(tuple(edits), prompt, trace.growths[step], share, saved)
    return frozenset(map(int, plan_commit(view).fragment_ids))


def cheapest(trace: CommitTrace) -> int:
    """What the best schedule computes that knows the whole trace: any cut at any step."""
    last = len(trace.edits) - 1

    @cache
    def best(step: int, waiting: frozenset[int], landed: frozenset[int]) -> int:
        if step > last:
            return trace.num_behind(min(waiting), landed | waiting, last) if waiting else 0
        edit = trace.edits[step]
        here = waiting if edit is None else waiting | {edit}
        found = [trace.growths[step] + best(step + 1, here, landed)]
        for first in here:
            due = frozenset(n for n in here if n >= first)
            after = landed | due
            found.append(trace.num_behind(first, after, step) + best(step + 1, here - due, after))
        return min(found)

    return best(0, frozenset(), frozenset())
