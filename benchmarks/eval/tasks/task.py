"""What a task is: samples made by published parameters or read from the user's file, and the scorer of its paper. Pure.

    make   {"updates": 4}, seed 7   ->   one context, the questions about it, the right answers
    read   a row of the data set's own format   ->   the same
    score  sample, answer   ->   a number in [0, 1]

Decision: no data set is shipped. Facts carry over from the papers: parameters, key names, labels, formats, scorers.
Texts are the user's files. What is generated without them is small, and made of words of our own.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from acmserve.context.transcript.message import Message
from acmserve.errors import InvalidRequest
from acmserve.validation import echo

SHELL = "shell"
"""The agent of samples that are no question about a text, but work in a shell."""
CHARS_PER_TOKEN = 4
"""About what tokenizers make of English. Lengths in tokens are aimed at by it. What was served is counted."""


@dataclass(frozen=True, slots=True)
class EvalSample:
    """One question. `history` stands in front of it, and `context` is the long text that it is about.

    Samples of one `group` have the same context. `facts` are what the scorer needs beside `gold`. `agent` names who
    works on it, "" where it is asked. `session_chars` are those of the whole session, where it is part of one. Of a row
    that was read they are its own until all rows are there.
    `memory_tokens` bound a memory that the model writes. `round` counts the contexts of one setting, from 0.
    """

    task: str
    setting: str
    name: str
    question: str
    gold: str
    context: str = ""
    history: tuple[Message, ...] = ()
    group: str = ""
    max_tokens: int = 512
    facts: Mapping[str, Any] = field(default_factory=dict)
    agent: str = ""
    session_chars: int = 0
    memory_tokens: int = 1_024
    round: int = 0

    @classmethod
    def at(
        cls, task: str, point: Point, seed: int, question: str, gold: str, context: str = "", **more: Any
    ) -> EvalSample:
        """A sample that was made at a point of the grid, and is named by it and by its seed. `more` as in the class."""
        setting = setting_of(point)
        return cls(task, setting, f"{setting}/{seed}", question, gold, context, **more)

    @property
    def num_chars(self) -> int:
        """Characters of the whole prompt, or of the session."""
        return self.session_chars or len(self.context) + len(self.question) + sum(
            len(str(one["content"])) for one in self.history
        )

    def messages(self) -> list[Message]:
        """The prompt as the papers give it: the question behind its text, in one message."""
        asked = f"{self.context}\n\n{self.question}" if self.context else self.question
        return [*self.history, {"role": "user", "content": asked}]


Point = Mapping[str, int]


@dataclass(frozen=True, slots=True)
class EvalTask:
    """`parameters` are the small grid that runs by default, `published` that of the paper.

    `make` takes a point of the grid, a seed, and the parsed file of `--data` where `data` is a material. `read` takes a
    row of it, and the file's stem, where it holds rows. `preset` is the prompt that teaches the context tools for this
    task, "" where the paper has none. What `runs_code` runs commands that a model writes, so it has to be named.
    `guess` is the share of generated samples that are right by picking among the choices which a question names.
    """

    name: str
    paper: str
    parameters: Mapping[str, tuple[int, ...]]
    published: Mapping[str, tuple[int, ...]]
    make: Callable[[Point, int, Any], list[EvalSample]]
    score: Callable[[EvalSample, str], float]
    data: str
    read: Callable[[Mapping[str, Any], str], EvalSample] | None = None
    preset: str = ""
    runs_code: bool = False
    guess: float = 0.0


def setting_of(point: Point) -> str:
    """`updates 4, keys 46` as a name: `keys46-updates4`."""
    return "-".join(f"{name}{value}" for name, value in sorted(point.items()))


def check_range(task: str, point: Point, name: str, least: int, most: int | None = None) -> None:
    """Refuse a value of a parameter that no sample can be made of. Raises `InvalidRequest` with the remedy."""
    value = point[name]
    if value < least or (most is not None and value > most):
        remedy = f"Give {least} or more." if most is None else f"Give {least} to {most}."
        raise InvalidRequest("--set", f"{task}.{name} is {value}.", remedy)


def field_of(row: Mapping[str, Any], name: str, task: str) -> Any:
    """A field of a row of the user's file. Raises `InvalidRequest` with the fields that are there."""
    if name not in row:
        has = ", ".join(sorted(map(str, row))[:12])
        raise InvalidRequest(f"--data {task}", f"a row has no {name!r}; it has {has}.", "Give the data set's own rows.")
    return row[name]


def text_of(row: Mapping[str, Any], name: str, task: str) -> str:
    """A field that has to be text."""
    value = field_of(row, name, task)
    if not isinstance(value, str):
        raise InvalidRequest(f"--data {task}", f"{name} is {echo(value)}, and no text.")
    return value
