"""The task `terminal`: twenty small tasks in a shell (`tasks.json`), each with setup, instruction and check.

    {"name": "rename", "setup": "touch a.txt", "instruction": "Rename ...", "check": "test -f a.log"}

A sample is one of them, and all of a seed are one group, which a way may play in one session. Seeds differ in order.
What is recorded as the answer is what was said, and whether the check passed. So a run that goes on has the whole
session. The file of `--data` has rows of this form.
"""

from __future__ import annotations

import json
import random
from collections.abc import Mapping
from importlib.resources import files
from typing import Any

from acmserve.bench.eval.tasks.task import SHELL, EvalSample, EvalTask, Point, setting_of, text_of

NAME = "terminal"
CHARS_OF_A_TASK = 3_000
"""About what a task adds to its session: so a budget can be a share of it."""


def make(point: Point, seed: int, material: Any = None) -> list[EvalSample]:
    """The first tasks of the file, in an order of their own for each seed but 0."""
    rows = json.loads((files("acmserve.bench.eval.terminal") / "tasks.json").read_text(encoding="utf-8"))
    chosen = rows[: point["tasks"]]
    if seed:
        random.Random(f"{NAME} {seed}").shuffle(chosen)
    setting = setting_of(point)
    num_chars = len(chosen) * CHARS_OF_A_TASK
    return [_sample(row, setting, f"{setting}/{seed}/{row['name']}", f"{setting}/{seed}", num_chars) for row in chosen]


def read(row: Mapping[str, Any], stem: str) -> EvalSample:
    """A row of the user's file. All its tasks are one group, whose length is known when all are read."""
    return _sample(row, "shell", text_of(row, "name", NAME), stem, CHARS_OF_A_TASK)


def _sample(row: Mapping[str, Any], setting: str, name: str, group: str, num_chars: int) -> EvalSample:
    return EvalSample(
        NAME,
        setting,
        name,
        text_of(row, "instruction", NAME),
        "",
        group=group,
        facts={field: text_of(row, field, NAME) for field in ("setup", "check")},
        agent=SHELL,
        session_chars=num_chars,
    )


def score(sample: EvalSample, answer: str) -> float:
    """1 where the check passed."""
    return float(bool(answer) and json.loads(answer)["solved"] is True)


TASK = EvalTask(
    name=NAME,
    paper="tasks of our own, in one session as in Beyond Compaction, arXiv 2606.11213",
    parameters={"tasks": (20,)},
    published={"tasks": (20,)},
    make=make,
    score=score,
    data="rows: `name`, `setup`, `instruction`, `check`",
    read=read,
    runs_code=True,
)
