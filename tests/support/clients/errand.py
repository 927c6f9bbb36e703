"""What the model of the client matrix says: it reads the prompt as any model does, and does errands.

    user: errand 7: 4 steps          ->  four calls that read errand-7/step-1.txt and so on, then "Errand 7 is done."
    user: errand 7: 2 steps, helper  ->  first a call that starts a sub-agent, told "errand 70: 2 steps"
    a request for a summary          ->  a summary that repeats the errand and its last step
    a request without an errand      ->  "Noted."

Decision: the answer follows from the rendered prompt alone. Foreign clients send no field of ours, so nothing else can
tell the model which line is due. It says the same after a resume, a compaction, or an eviction.

It reads the ChatML of `chatml_tools.jinja`. Pure.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tests.support.clients.offered_tools import (
    Offered,
    command_call,
    helper_call,
    offered_tools,
    reading_call,
    waiting_call,
)

NOTED = "Noted."
ERRAND = re.compile(r"errand (\d+): (\d+) steps(, helper)?")
SUBMIT = "COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT"
"""What mini-swe-agent wants to be run at the end."""
SUMMARY_MARK = "Read so far"
"""What the summaries of this model have in them, and nothing else that it says."""
OF_ERRANDS = (
    "Each step is a file, and each file is read once, in order. Its lines tell what a river carries past a mill."
)
"""Makes a summary long enough to name its session."""
SUMMARY_WORDS = re.compile(r"summar|compact|checkpoint|handoff|state_snapshot", re.IGNORECASE)
_MESSAGE = re.compile(r"<\|im_start\|>(\w+)\n(.*?)(?=<\|im_start\|>|\Z)", re.DOTALL)
_CALL = re.compile(r"<tool_call>.*?</tool_call>", re.DOTALL)
AGENT_ID = re.compile(r'"agent_id":\s*"([^"]+)"')
RESULT = "<tool_response>"


@dataclass(frozen=True)
class Errand:
    """What the user asked for last, and what has been done of it since."""

    number: int
    num_steps: int
    num_done: int
    wants_helper: bool
    submits: bool = False
    awaited: str | None = None
    """The id of a helper that was started and not waited for."""

    def asked(self) -> str:
        """The words that ask for it."""
        return f"errand {self.number}: {self.num_steps} steps"


def answer(prompt: str) -> str:
    """The line that is due: text, or a tool call in the style of Hermes."""
    messages = [(role, text.removesuffix("<|im_end|>\n")) for role, text in _MESSAGE.findall(prompt)]
    if messages and messages[-1][0] == "assistant":
        messages.pop()
    errand = find_errand(messages)
    if errand is None:
        return NOTED
    tools = offered_tools(messages[0][1])
    if asks_for_summary(messages, has_tools=bool(tools)):
        done = path_of(errand.number, errand.num_done)
        return f"<summary>The user asks: {errand.asked()}. {OF_ERRANDS} {SUMMARY_MARK}: {done}.</summary>"
    return due(errand, tools)


def due(errand: Errand, tools: Sequence[Offered]) -> str:
    """The next call of an errand, or the words that end it."""
    call: tuple[str, Mapping[str, Any]] | None = None
    if errand.wants_helper:
        call = helper_call(tools, f"errand {errand.number * 10}: 2 steps")
    if call is None and errand.awaited is not None:
        call = waiting_call(tools, errand.awaited)
    if call is None and errand.num_done < errand.num_steps:
        call = reading_call(tools, path_of(errand.number, errand.num_done + 1))
    if call is None and errand.submits:
        call = command_call(tools, f"echo {SUBMIT}")
    if call is None:
        return f"Errand {errand.number} is done."
    return f"<tool_call>\n{json.dumps({'name': call[0], 'arguments': call[1]})}\n</tool_call>"


def find_errand(messages: Sequence[tuple[str, str]]) -> Errand | None:
    """The last errand in what people and summaries say, outside of calls and results."""
    said = [_said(role, text) for role, text in messages]
    for index in range(len(said) - 1, -1, -1):
        found = list(ERRAND.finditer(said[index]))
        if not found:
            continue
        asked = found[-1]
        number, num_steps = int(asked[1]), int(asked[2])
        since = [said[index][asked.end() :], *(text for role, text in messages[index + 1 :] if role == "assistant")]
        steps = [int(step) for step in re.findall(rf"errand-{number}/step-(\d+)\.txt", "\n".join(since))]
        is_helped = any(f"errand {number * 10}:" in text for text in since)
        return Errand(
            number,
            num_steps,
            max(steps, default=0),
            asked[3] is not None and not is_helped,
            SUBMIT in said[index],
            None if any("wait_agent" in text for text in since) else _helper_id(messages[index + 1 :]),
        )
    return None


def asks_for_summary(messages: Sequence[tuple[str, str]], *, has_tools: bool) -> bool:
    """Whether the last words of the user are a request to summarize, and neither an errand nor a summary.

    Who offers tools and wants none to be called says so with tags. Words about a summary stand in other messages, too.
    """
    role, text = messages[-1]
    if role != "user" or RESULT in text or ERRAND.match(text) or SUMMARY_WORDS.search(text) is None:
        return False
    return not has_tools or ("<summary>" in text and SUMMARY_MARK not in text)


def path_of(errand: int, step: int) -> str:
    """The file of a step, relative to the folder in which the client works."""
    return f"errand-{errand}/step-{step}.txt"


def _helper_id(messages: Sequence[tuple[str, str]]) -> str | None:
    found = [AGENT_ID.search(text) for role, text in messages if role == "user" and RESULT in text]
    return next((match[1] for match in found if match is not None), None)


def _said(role: str, text: str) -> str:
    if role == "system" or (role == "user" and RESULT in text):
        return ""
    return _CALL.sub("", text)
