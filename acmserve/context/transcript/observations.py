"""Which messages of the user are observations: what a program answered to the assistant's text, typed by nobody.

    user         Find the bug.                                   a task: no assistant stands in front
    assistant    I look. ```bash\\nls```                          an action
    user         <returncode>0</returncode><output>a.py</output>  an observation, a result like that of a tool
    assistant    It is in a.py.                                  no action
    user         Thanks. And now?                                a turn of the user

Some agents write calls and results as plain text. `auto` takes a message for an observation where two things hold. The
text in front holds an action (a fenced block, a tag, `Action:`), and the message begins as harnesses begin results. So
a person who answers to a code block stays a user. `user` takes every user message behind an assistant's text, and a
list of beginnings those that begin so. `off` takes none.

Decision: a message is judged once, when it is taken in, by itself and the message in front of it. The transcript keeps
the judgement. A later change of the rule would else change old prompts. Texts are compared and matched in linear time,
because they come from clients. It does not know what is done with observations.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from acmserve.context.transcript.message import Message, texts
from acmserve.context.transcript.parts import tool_calls
from acmserve.errors import InvalidRequest
from acmserve.validation import echo_json

MODES = ("auto", "user", "off")
MAX_BEGINNINGS, MAX_BEGINNING_CHARS = 16, 200
_LOOKED_AT_CHARS = 400
_REMEDY = 'Give "auto", "user", "off", or how they begin, such as ["Observation:", "<output>"].'
_ACTION = re.compile(
    r"```|<(?:tool_call|tool|function|invoke|execute|bash|python|code|command|commands|action|run)\b"
    r"|^[ \t*#]*(?:action|command|tool call|calling tools)s?\b[^\n:]{0,40}:"
    r'|"(?:commands|command|keystrokes|action|tool|tool_name|code)"[ \t]*:',
    re.IGNORECASE | re.MULTILINE,
)
_BLOCK = re.compile(r"```.*?(?:```|\Z)", re.DOTALL)
_FINAL = re.compile(r"^[ \t]*FINAL(?:_VAR)?\(", re.MULTILINE)
_OUTPUT = re.compile(
    r"observations?[ \t]*\d{0,4}[ \t]*:"
    r"|<(?:returncode|return_code|exit_code|exitcode|output|observation|stdout|tool_response|tool_result|tool_output"
    r"|function_results?|function_response|execution_results?|execution_output|command_output|terminal_output"
    r"|repl_output)\b[^<>\n]{0,80}>"
    r"|(?:new|current) terminal (?:output|state|screen)\b"
    r"|(?:terminal|repl|shell|command|console|code|tool|execution|function|interpreter) (?:output|results?|logs?)\b"
    r"[^\n:]{0,80}:"
    r"|code executed:"
    r"|\[?execution result of\b"
    r"|\[tool (?:result|output|response)\b"
    r"|call id:[^\n]{0,80}\n",
    re.IGNORECASE,
)


@dataclass(frozen=True, slots=True)
class ObservationRule:
    """`mode` is one of `MODES`. `beginnings` take its place where there are any."""

    mode: str = "auto"
    beginnings: tuple[str, ...] = ()

    def takes(self, message: Message, before: Message | None) -> bool:
        """Whether `message`, which stands behind `before`, is an observation."""
        if before is None or message.get("role") != "user" or before.get("role") != "assistant":
            return False
        if self.beginnings:
            begins = _beginning(message).startswith(self.beginnings)
        elif self.mode == "auto":
            begins = _OUTPUT.match(_beginning(message)) is not None and has_action(before)
        else:
            begins = self.mode == "user"
        return begins and is_plain_answer(before)

    def as_json(self) -> object:
        """What `parse_observations` reads back equal."""
        return list(self.beginnings) if self.beginnings else self.mode


AUTO = ObservationRule()


def parse_observations(value: object, field: str) -> ObservationRule:
    """The rule that a person wrote. Raises `InvalidRequest` for `field`."""
    if isinstance(value, str) and value in MODES:
        return ObservationRule(value)
    if not isinstance(value, list | tuple) or not 1 <= len(value) <= MAX_BEGINNINGS:
        raise InvalidRequest(field, f"{echo_json(value)} is no rule for observations.", _REMEDY)
    for text in value:
        if not isinstance(text, str) or not text.strip() or len(text) > MAX_BEGINNING_CHARS:
            raise InvalidRequest(field, f"{echo_json(text)} is no beginning of a message.", _REMEDY)
    return ObservationRule("auto", tuple(text.lstrip() for text in value))


def is_plain_answer(message: Message) -> bool:
    """Whether a message is the assistant's, and calls no tool."""
    return message.get("role") == "assistant" and not tool_calls(message) and not message.get("function_call")


def has_action(message: Message) -> bool:
    """Whether the assistant's text asks for something to be run."""
    return any(_ACTION.search(text) for _, text in texts(message))


def has_final_answer(message: Message) -> bool:
    """Whether the assistant's text ends its work outside of code, as a recursive language model writes it."""
    return any(_FINAL.search(_BLOCK.sub("", text)) for _, text in texts(message))


def _beginning(message: Message) -> str:
    """The first characters that say anything."""
    return next((text.lstrip()[:_LOOKED_AT_CHARS] for _, text in texts(message) if text.strip()), "")
