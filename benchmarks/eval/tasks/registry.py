"""The tasks by name: the only list. Which samples a run has follows from it, from a seed, and from the user's files."""

from __future__ import annotations

import csv
import itertools
import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from acmserve.bench.eval.tasks import (
    babilong,
    frames,
    gsm_infinite,
    longbench,
    mrcr,
    needlebench,
    oolong,
    pi_llm,
)
from acmserve.bench.eval.tasks.task import EvalSample, EvalTask, Point
from acmserve.bench.eval.terminal import task as terminal
from acmserve.errors import AcmError, InvalidRequest
from acmserve.validation import listing

TASKS: dict[str, EvalTask] = {
    task.name: task
    for task in (
        *(pi_llm.TASK, needlebench.TASK, mrcr.TASK, mrcr.TASK_V2, oolong.TASK, babilong.TASK),
        *(gsm_infinite.TASK, frames.TASK, longbench.TASK, terminal.TASK),
    )
}

DEFAULT_TASKS = tuple(name for name, task in TASKS.items() if not task.runs_code)


def find_task(name: str) -> EvalTask:
    """The task of this name. Raises `InvalidRequest` with the list."""
    if name not in TASKS:
        raise InvalidRequest("--tasks", f"{name!r} is not known.", f"Choose {listing(list(TASKS))}.")
    return TASKS[name]


def make_samples(
    task: EvalTask, num: int, seed: int, parameters: Mapping[str, tuple[int, ...]], path: Path | None = None
) -> list[EvalSample]:
    """`num` contexts for each point of the grid, or the first `num` rows of the user's file."""
    content = None if path is None else read_data(path)
    if content is not None and task.read is not None:
        rows = content if isinstance(content, list) else []
        if not rows or not all(isinstance(row, dict) for row in rows):
            raise InvalidRequest(f"--data {task.name}", f"{path} holds no rows.", f"It takes {task.data}.")
        assert path is not None
        read = [task.read(row, path.stem) for row in rows[:num]]
        return [
            replace(one, name=f"{path.stem}/{number}", round=number, session_chars=len(read) * one.session_chars)
            for number, one in enumerate(read)
        ]
    points = list(_points(parameters))
    return [
        replace(one, round=number)
        for point in points
        for number in range(num)
        for one in task.make(point, seed + number, content)
    ]


def check_parameters(task: EvalTask, given: Mapping[str, Sequence[int]]) -> dict[str, tuple[int, ...]]:
    """The grid with what was given instead. Raises `InvalidRequest` for a name that the task does not have."""
    for name in given:
        if name not in task.parameters:
            raise InvalidRequest("--set", f"{task.name} has no {name!r}.", f"It has {listing(list(task.parameters))}.")
    return {name: tuple(given.get(name, values)) for name, values in task.parameters.items()}


def read_data(path: Path) -> Any:
    """A file of `--data`: JSON, JSON lines, or a table with a head, told apart by its name."""
    try:
        if path.suffix in (".csv", ".tsv"):
            csv.field_size_limit(sys.maxsize)
            with path.open(encoding="utf-8", newline="") as lines:
                return list(csv.DictReader(lines, delimiter="\t" if path.suffix == ".tsv" else ","))
        text = path.read_text(encoding="utf-8")
        if path.suffix == ".jsonl":
            return [json.loads(line) for line in text.splitlines() if line.strip()]
        return json.loads(text)
    except (OSError, ValueError, csv.Error) as error:
        raise AcmError(f"--data: {path} cannot be read: {error}. Give JSON, JSON lines, CSV or TSV.") from error


def _points(parameters: Mapping[str, tuple[int, ...]]) -> Iterator[Point]:
    for values in itertools.product(*parameters.values()):
        yield dict(zip(parameters, values, strict=True))
