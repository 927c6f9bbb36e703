"""A conversation of an agent as it was recorded, in the form in which `bench trace` replays it.

    step 0   new: system, user                                prompt 0
    step 1   new: what the assistant said, results            prompt 1 = prompt 0 + new
    step 2   new: what the assistant said, results, user      prompt 2 = prompt 1 + new

What a server answers is never appended: the recorded words are, so that every server sees the same prompts.
The calls of `delimiter` are carried out here, where no server does it.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from acmserve.bench.agent.pause import ANY_TOOL, MOST_SECONDS, OF_TOOL, PERSON, WaitDistribution, draw_waits
from acmserve.bench.agent.scripted_agent import SYSTEM, TOOLS, Exchanged, Trace
from acmserve.context.episodes.delimiter import DELIMITER, DELIMITER_TOOL, Scope, run_delimiter
from acmserve.context.transcript.message import Message

_CALL = re.compile(r"<tool_call>\n(.*?)\n</tool_call>", re.DOTALL)


@dataclass(frozen=True, slots=True)
class RecordedStep:
    """One prompt: what it has that the one before had not, and the seconds that a tool or the user took before it.

    `fleeting` stands behind `new` in this prompt alone.
    """

    new: tuple[Message, ...]
    pause: float = 0.0
    fleeting: tuple[Message, ...] = ()


@dataclass(frozen=True, slots=True)
class Recording:
    """`steps[0].new` begins with the system message. Messages are in OpenAI's form, with tool calls and results."""

    name: str
    tools: tuple[Mapping[str, Any], ...]
    steps: tuple[RecordedStep, ...]


def record(trace: Trace, name: str, seed: int = 0) -> Recording:
    """The conversation as messages. Its tools and its user take as long as those of real agents, drawn by the seed."""
    pauses = iter(draw_waits(waits_of(trace.requests), seed))
    waiting: list[Message] = [{"role": "system", "content": SYSTEM}]
    steps: list[RecordedStep] = []
    scope = Scope()
    for request in trace.requests:
        pause = min(next(pauses), MOST_SECONDS)
        if request.asked is not None:
            waiting.append({"role": "user", "content": request.asked})
        for said in request.said:
            steps.append(RecordedStep(tuple(waiting), pause))
            pause = 0.0
            message = read_said(said, len(steps))
            scope, results = _mark(scope, message)
            waiting = [message, *results]
        if request.result is not None:
            call = message["tool_calls"][-1]["id"]
            waiting.append({"role": "tool", "tool_call_id": call, "content": request.result})
    return Recording(name, (*TOOLS, DELIMITER_TOOL), tuple(steps))


def waits_of(requests: Sequence[Exchanged]) -> list[WaitDistribution]:
    """What each request waits for: what the user writes, or the tool that the answer before it called last."""
    return [PERSON, *map(_wait_between, requests, requests[1:])] if requests else []


def _wait_between(request: Exchanged, following: Exchanged) -> WaitDistribution:
    if following.asked is not None:
        return PERSON
    called = [json.loads(body)["name"] for said in request.said for body in _CALL.findall(said)]
    return OF_TOOL.get(next((name for name in reversed(called) if name != DELIMITER), ""), ANY_TOOL)


def rotated(trace: Trace, num_tasks: int) -> Trace:
    """The same tasks, another one first: what a second agent does meanwhile."""
    tasks = trace.tasks
    first = num_tasks % len(tasks)
    return replace(trace, requests=tuple(request for task in tasks[first:] + tasks[:first] for request in task))


def read_said(said: str, number: int) -> dict[str, Any]:
    """What a model said in the words of the parser `hermes`, as a message with tool calls."""
    bodies = [json.loads(body) for body in _CALL.findall(said)]
    message: dict[str, Any] = {"role": "assistant", "content": said.partition("<tool_call>")[0].rstrip("\n")}
    if bodies:
        message["tool_calls"] = [
            {
                "id": f"call-{number}-{index}",
                "type": "function",
                "function": {"name": body["name"], "arguments": json.dumps(body["arguments"])},
            }
            for index, body in enumerate(bodies)
        ]
    return message


def _mark(scope: Scope, message: Message) -> tuple[Scope, list[Message]]:
    """Carry out the calls of `delimiter` in a message. Raises InvalidRequest for one that is refused."""
    results: list[Message] = []
    for call in message.get("tool_calls") or ():
        if call["function"]["name"] == DELIMITER:
            marked = run_delimiter(scope, call["function"]["arguments"])
            if marked.error is not None:
                raise marked.error
            scope = marked.scope
            results.append({"role": "tool", "tool_call_id": call["id"], "content": marked.result})
    return scope, results
