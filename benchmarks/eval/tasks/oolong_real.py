r"""OOLONG, split of transcripts of games: rows of the user's file, and their scorer (arXiv 2511.02817). Pure.

    gold "84"                  answer "\boxed{83}"                 0.75
    gold "Fjord, Caleb"        answer "\boxed{Caleb, Beau}"        half
    gold "Fire Bolt"           answer "\boxed{\text{fire bolt}}"   right

The answer is what stands in the first box. A gold answer is a number, several texts behind commas, or one text. An
answer of another kind is wrong. A number that is wrong by d scores 0.75 to the power of d, and texts their share.

It makes no samples: the transcripts are the data set's own. The task `oolong` tells its rows by `question_type`.

Decision: an answer without a box is a text, as in the scorer of the data set, so it is never a number.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from acmserve.bench.eval.tasks.task import EvalSample, field_of, text_of
from acmserve.errors import InvalidRequest
from acmserve.validation import echo

PENALTY = 0.75
"""Of each unit that a number is wrong by, in both splits."""
SPLIT = "real"
_BOXES = (re.compile(r"\\boxed\{\\text\{([^}]*)\}\}"), re.compile(r"\\boxed\{+([^}]*)\}+"))


def is_row(row: Mapping[str, Any]) -> bool:
    """Whether a row is of this split, and not of the synthetic one."""
    return "question_type" in row and "answer_type" not in row


def read(row: Mapping[str, Any], task: str) -> EvalSample:
    """A row of the data set's split of transcripts. A setting is a type of question about so many episodes."""
    episodes = field_of(row, "episodes", task)
    if not isinstance(episodes, list):
        raise InvalidRequest(f"--data {task}", f"episodes is {echo(episodes)}, and no list.")
    return EvalSample(
        task,
        f"{text_of(row, 'question_type', task)}-{len(episodes)}",
        str(row.get("id", "")),
        text_of(row, "question", task),
        text_of(row, "answer", task),
        text_of(row, "context_window_text", task),
        group=str(row.get("context_window_id", "")),
        facts={"split": SPLIT},
    )


def score(answer: str, gold: str) -> float:
    """The score of the data set, in [0, 1]."""
    right, said = _parsed(gold), _boxed(answer)
    if isinstance(right, int) and isinstance(said, int):
        return distance_score(right, said)
    if isinstance(right, str) and isinstance(said, str):
        return float(right.strip().lower() == said.strip().lower())
    if isinstance(right, tuple) and isinstance(said, tuple) and right:
        return len({*right} & {*said}) / len(right)
    return 0.0


def distance_score(right: int, said: int) -> float:
    """What a number scores. 0 where it is so wrong that no float holds the distance."""
    try:
        return float(PENALTY ** abs(right - said))
    except OverflowError:
        return 0.0


Parsed = int | str | tuple[str, ...]


def _parsed(text: str) -> Parsed:
    try:
        return int(text)
    except ValueError:
        pass
    if "," in text:
        return tuple(part.strip() for part in text.split(",") if part.strip())
    return text


def _boxed(answer: str) -> Parsed:
    found = next((found for box in _BOXES if (found := box.search(answer))), None)
    return _parsed(found[1]) if found else answer
