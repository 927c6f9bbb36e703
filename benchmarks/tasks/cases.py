"""Which cases `bench tasks` runs: as many of each task, its sizes in turn, the same ones for the same seed. Pure."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial

from acmserve.bench.tasks.generators import mrcr as task_coreference
from acmserve.bench.tasks.generators import needlebench as task_needles
from acmserve.bench.tasks.generators import oolong as task_aggregation
from acmserve.bench.tasks.generators import pi_llm as task_pi_llm
from acmserve.bench.tasks.generators import unrelated as task_unrelated
from acmserve.bench.tasks.generators.case import TaskCase

TASKS = (task_pi_llm.TASK, task_needles.TASK, task_coreference.TASK, task_aggregation.TASK, task_unrelated.TASK)
FIT, HELD_OUT = "fit", "held out"


def make_cases(
    num_each: int,
    seed: int,
    topics: Mapping[str, str],
    updates: Sequence[task_pi_llm.UpdateSizes] = task_pi_llm.SMALL,
) -> list[TaskCase]:
    """`num_each` cases of every task, the tasks in turn.

    `topics` are long texts by name, for haystacks and unrelated folds. `updates` are the sizes of PI-LLM.
    """
    streams = [_stream(draws, seed) for draws in _draws(topics, updates)]
    cases = [next(stream) for _ in range(num_each) for stream in streams]
    for case in cases:
        case.check_integrity()
    return cases


def half_of(case: TaskCase) -> str:
    """Thresholds may be chosen on one half of the seeds and are judged on the other."""
    return FIT if case.seed % 2 == 0 else HELD_OUT


def _draws(
    topics: Mapping[str, str], updates: Sequence[task_pi_llm.UpdateSizes]
) -> list[list[Callable[[int], TaskCase]]]:
    """For each task, a maker of cases for each of its sizes."""
    return [
        [partial(task_pi_llm.make_case, sizes=sizes) for sizes in updates],
        [partial(task_needles.make_case, sizes=sizes, topics=topics) for sizes in task_needles.SMALL],
        [partial(task_coreference.make_case, sizes=sizes) for sizes in task_coreference.SMALL],
        [partial(task_aggregation.make_case, sizes=sizes) for sizes in task_aggregation.SMALL],
        [partial(task_unrelated.make_case, sizes=sizes, topics=topics) for sizes in task_unrelated.SMALL],
    ]


def _stream(draws: list[Callable[[int], TaskCase]], seed: int) -> Iterator[TaskCase]:
    """All sizes, again and again, with even and odd seeds in turn. Runs with neighbouring seeds share no case."""
    for number in itertools.count(10_000 * seed):
        for index, draw in enumerate(draws):
            yield draw(2 * number + (number + index) % 2)
