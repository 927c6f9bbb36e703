"""What somebody says of rollouts, as JSON lines.

    {"session_id": "a", "correct": true, "group": "question-7"}
    {"session_id": "a", "thread": "main#1", "correct": false, "group": "question-7"}
    {"session_id": "b", "reward": 0.5, "group": "question-7", "out_of_scope": ["branch-2"], "failed": [4]}

`correct` becomes a reward by Equation 4 of *Sculptor* (arXiv 2508.04664), and `reward` is taken as it is. Rollouts with
one `group` had one query. `thread` is for several samples of one prompt, which are rollouts of their own. FoldGRPO asks
for the branches that left their task, and for the completions whose tool call failed.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from acmserve.errors import MalformedRecord
from acmserve.validation import echo, listing

JUDGED = ("session_id", "thread", "correct", "reward", "group", "out_of_scope", "failed")
"""The fields of a line."""


@dataclass(frozen=True, slots=True)
class Judgement:
    """What somebody says of one rollout. Either `correct` or `reward` is set."""

    correct: bool | None = None
    reward: float | None = None
    group: str | None = None
    out_of_scope: tuple[str, ...] = ()
    failed: tuple[int, ...] = ()


Judgements = Mapping[tuple[str, str | None], Judgement]
"""By session id and thread. The thread is None for all that has no line of its own."""


def read_judgements(lines: Iterable[str]) -> dict[tuple[str, str | None], Judgement]:
    """The judgements of the lines. Raises `MalformedRecord`, which names line and field."""
    found: dict[tuple[str, str | None], Judgement] = {}
    for line, text in enumerate(lines, 1):
        if text.strip():
            value = _parse(line, text)
            session_id, thread = value.get("session_id"), value.get("thread")
            if not isinstance(session_id, str):
                raise MalformedRecord(line, "session_id", f"must be a string, not {echo(session_id)}")
            if thread is not None and not isinstance(thread, str):
                raise MalformedRecord(line, "thread", f"must be a string, not {echo(thread)}")
            if (session_id, thread) in found:
                raise MalformedRecord(line, "session_id", f"{echo(session_id)} has an earlier line")
            found[session_id, thread] = _judgement(line, value)
    return found


def _parse(line: int, text: str) -> Mapping[str, Any]:
    try:
        value = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise MalformedRecord(line, "", f"is no JSON ({error})") from error
    if not isinstance(value, dict):
        raise MalformedRecord(line, "", f"must be an object, not {echo(value)}")
    for key in value:
        if key not in JUDGED:
            raise MalformedRecord(line, str(key), f"is unknown; a line of rewards knows {listing(JUDGED)}")
    return value


def _judgement(line: int, value: Mapping[str, Any]) -> Judgement:
    if ("correct" in value) == ("reward" in value):
        raise MalformedRecord(line, "correct", "or reward must be there, and not both")
    correct, group = value.get("correct"), value.get("group")
    reward: Any = value.get("reward")
    is_number = isinstance(reward, int | float) and not isinstance(reward, bool)
    if "correct" in value and not isinstance(correct, bool):
        raise MalformedRecord(line, "correct", f"must be true or false, not {echo(correct)}")
    if "reward" in value and not (is_number and math.isfinite(reward)):
        raise MalformedRecord(line, "reward", f"must be a finite number, not {echo(reward)}")
    if group is not None and not isinstance(group, str):
        raise MalformedRecord(line, "group", f"must be a string, not {echo(group)}")
    scope, failed = value.get("out_of_scope", []), value.get("failed", [])
    if not isinstance(scope, list) or not all(isinstance(thread, str) for thread in scope):
        raise MalformedRecord(line, "out_of_scope", f"must be an array of threads, not {echo(scope)}")
    if not isinstance(failed, list) or not all(type(number) is int for number in failed):
        raise MalformedRecord(line, "failed", f"must be an array of numbers of completions, not {echo(failed)}")
    return Judgement(correct, reward, group, tuple(scope), tuple(failed))
