"""Conversations for the sweep: each task in a session of its own, and all in one session, as in CWL's paper.

    alone      [system A][task A][steps]      [system B][task B][steps]
    together   [system A][task A][steps][done][task B][steps]

One session has one system message, that of the first task, and the tools of all tasks. No recording says how a task
ended, so a few words of the agent stand for it. Pure.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from acmserve.bench.agent.recording import RecordedStep, Recording, record
from acmserve.bench.agent.scripted_agent import Trace
from acmserve.context.transcript.message import Message

_DONE: Message = {"role": "assistant", "content": "This task is done."}


@dataclass(frozen=True, slots=True)
class SweptTasks:
    """The same tasks twice: each `alone`, and all `together` in one session."""

    alone: tuple[Recording, ...]
    together: Recording


def of_recordings(recordings: Sequence[Recording]) -> SweptTasks:
    """Conversations of several agents, one after the other."""
    tools = {str(tool["function"]["name"]): tool for one in recordings for tool in one.tools}
    steps = [step for number, one in enumerate(recordings) for step in _steps(one, number)]
    return SweptTasks(tuple(recordings), Recording("all tasks", tuple(tools.values()), tuple(steps)))


def of_trace(trace: Trace) -> SweptTasks:
    """The scripted agent's tasks. Its one session is recorded as one."""
    alone = [record(trace.with_tasks(number, 1), f"task {number + 1}", number) for number in range(len(trace.tasks))]
    return SweptTasks(tuple(alone), record(trace, "all tasks"))


def _steps(recording: Recording, number: int) -> Iterator[RecordedStep]:
    """The steps of the task of this number in one session. Ids of calls have its number, for they may come again."""
    first, *rest = [replace(step, new=tuple(_numbered(one, number) for one in step.new)) for step in recording.steps]
    if number:
        asked = tuple(message for message in first.new if message["role"] != "system")
        first = replace(first, new=(_DONE, *asked))
    yield from (first, *rest)


def _numbered(message: Mapping[str, Any], number: int) -> Message:
    named = dict(message)
    if message.get("tool_calls"):
        named["tool_calls"] = [{**call, "id": f"{number}-{call['id']}"} for call in message["tool_calls"]]
    if "tool_call_id" in message:
        named["tool_call_id"] = f"{number}-{message['tool_call_id']}"
    return named
