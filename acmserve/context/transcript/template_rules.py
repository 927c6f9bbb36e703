"""What the served chat template takes and shows, as data: probed once by rendering small chats.

    chat                                     a strict template
    user, assistant, assistant               refuses: two of a role in a row
    user, call, result, user                 refuses: no answer of the model between
    user, assistant "text" with a call       takes it, and does not show the text

An eviction leaves such neighbours, and `alternation.py` mends them by these rules. Pure: who renders is passed in.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any

from acmserve.context.transcript.message import Message

Shows = Callable[[Sequence[Message]], str | None]
"""The chat as the template writes it. None where it refuses."""

_USER, _ANSWER, _RESULT, _THOUGHT, _BESIDE = "Harbour.", "Lighthouse.", "Seven gulls.", "Perhaps tides.", "Let me look."


class Reasoning(Enum):
    """Which reasoning of the model the template shows again."""

    KEPT = "kept"
    RECENT = "kept since the last user message"
    DROPPED = "dropped"


@dataclass(frozen=True, slots=True)
class TemplateRules:
    """Each flag says that the template takes such a chat. The defaults take everything.

    `calls_with_text`: the text of a message that calls tools is shown. `results_then_user`: a user message may follow
    the results of tools. `text_then_calls`: a message that calls tools may follow one of the assistant that says
    something only, and both are shown.
    """

    tools: bool = True
    assistants_in_a_row: bool = True
    users_in_a_row: bool = True
    text_then_calls: bool = True
    calls_with_text: bool = True
    results_then_user: bool = True
    assistant_first: bool = True
    system_later: bool = True
    result_without_call: bool = True
    reasoning: Reasoning = Reasoning.KEPT

    @property
    def policy(self) -> str:
        """What becomes of neighbours that an eviction leaves, in words."""
        text_before_calls = self.text_then_calls or not self.tools
        merges = not (
            self.assistants_in_a_row and self.users_in_a_row and (text_before_calls or not self.calls_with_text)
        )
        bridges = self.tools and not (self.results_then_user and (self.text_then_calls or self.calls_with_text))
        splits = self.tools and not self.calls_with_text
        words = [word for does, word in ((merges, "merged"), (bridges, "bridged"), (splits, "split")) if does]
        return ", ".join(words) or "as they are"

    def __str__(self) -> str:
        refused = [
            what
            for takes, what in (
                (self.tools, "tools"),
                (self.assistants_in_a_row, "two assistant messages in a row"),
                (self.users_in_a_row, "two user messages in a row"),
                (self.text_then_calls or not self.tools, "a text before a call"),
                (self.results_then_user or not self.tools, "a user message behind results"),
                (self.assistant_first, "an assistant message first"),
                (self.system_later, "a system message later"),
            )
            if not takes
        ]
        takes = f"refuses {', '.join(refused)}" if refused else "takes every order of messages"
        return f"{takes}; reasoning is {self.reasoning.value}; neighbours that an eviction leaves: {self.policy}"


TAKES_ALL = TemplateRules()
STRICT = TemplateRules(
    assistants_in_a_row=False,
    users_in_a_row=False,
    text_then_calls=False,
    calls_with_text=False,
    results_then_user=False,
    assistant_first=False,
    system_later=False,
    result_without_call=False,
)
"""What every template takes: for one that cannot be probed."""


def probe_rules(show: Shows) -> TemplateRules:
    """The rules of a template. `STRICT` where it does not even show a message of a user."""
    user, answer = _said("user", _USER), _said("assistant", _ANSWER)
    if not _shown(show, [user], _USER):
        return STRICT
    call, result = _calling(""), {"role": "tool", "tool_call_id": "call00001", "name": "look", "content": _RESULT}
    tools = _shown(show, [user, call, result], _RESULT)
    beside = [user, _calling(_BESIDE), result]
    return TemplateRules(
        tools=tools,
        assistants_in_a_row=_shown(show, [user, answer, _said("assistant", _BESIDE), user], _ANSWER, _BESIDE),
        users_in_a_row=_shown(show, [user, _said("user", _BESIDE)], _USER, _BESIDE),
        text_then_calls=tools and _shown(show, [user, answer, call, result, answer, user], _ANSWER, _RESULT),
        calls_with_text=tools and _shown(show, beside, _BESIDE, _RESULT),
        results_then_user=tools and _shown(show, [user, call, result, user], _RESULT),
        assistant_first=_shown(show, [answer, user], _ANSWER),
        system_later=_shown(show, [user, answer, _said("system", _BESIDE), user], _BESIDE),
        result_without_call=_shown(show, [user, result], _RESULT),
        reasoning=_reasoning(show, user, result, tools=tools),
    )


def _reasoning(show: Shows, user: Message, result: Message, *, tools: bool) -> Reasoning:
    thought = {"reasoning": _THOUGHT, "reasoning_content": _THOUGHT}
    if _shown(show, [user, {**_said("assistant", _ANSWER), **thought}, user], _THOUGHT):
        return Reasoning.KEPT
    recent = (
        [user, {**_calling(""), **thought}, result] if tools else [user, {**_said("assistant", _ANSWER), **thought}]
    )
    return Reasoning.RECENT if _shown(show, recent, _THOUGHT) else Reasoning.DROPPED


def _said(role: str, text: str) -> dict[str, Any]:
    return {"role": role, "content": text}


def _calling(text: str) -> dict[str, Any]:
    call = {"id": "call00001", "type": "function", "function": {"name": "look", "arguments": {"at": "sea"}}}
    return {"role": "assistant", "content": text, "tool_calls": [call]}


def _shown(show: Shows, messages: Sequence[Message], *texts: str) -> bool:
    written = show(messages)
    return written is not None and all(text in written for text in texts)


@dataclass(frozen=True, slots=True)
class Overheads:
    """Tokens that the chat template writes around a message, a tool call, and a tool's result."""

    message: int = 4
    call: int = 8
    result: int = 4
