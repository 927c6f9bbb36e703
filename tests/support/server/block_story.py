"""Conversations in the Anthropic form, written by hand with `Blocks` or drawn by Hypothesis, and what is in them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from hypothesis import strategies as st

from acmserve.context.transcript.message import Message

TOOLS = ("search", "read", "memory")
PLACEHOLDER = "[tool result cleared]"


def count(text: str) -> int:
    """One token for each word."""
    return len(text.split())


class Blocks:
    """A conversation that grows."""

    def __init__(self) -> None:
        self.messages: list[Message] = []
        self.num_calls = 0

    def user(self, text: str = "Go on .") -> Blocks:
        self.messages.append({"role": "user", "content": text})
        return self

    def say(self, text: str, thinking: str = "") -> Blocks:
        self.messages.append({"role": "assistant", "content": [*_thinking(thinking), {"type": "text", "text": text}]})
        return self

    def step(self, *calls: tuple[str, str], thinking: str = "", aside: str = "", answered: bool = True) -> Blocks:
        """The assistant calls tools. Each call is (tool, its result). `aside` is what the user says beside them."""
        uses: list[dict[str, Any]] = []
        results: list[dict[str, Any]] = []
        for name, result in calls:
            self.num_calls += 1
            call_id = f"toolu_{self.num_calls}"
            uses.append({"type": "tool_use", "id": call_id, "name": name, "input": {"query": "a b c"}})
            results.append({"type": "tool_result", "tool_use_id": call_id, "content": result})
        self.messages.append({"role": "assistant", "content": [*_thinking(thinking), *uses]})
        if answered:
            texts = [{"type": "text", "text": aside}] if aside else []
            self.messages.append({"role": "user", "content": [*results, *texts]})
        return self


def _thinking(text: str) -> list[dict[str, Any]]:
    return [{"type": "thinking", "thinking": text, "signature": "s"}] if text else []


def blocks_of(messages: Sequence[Message], *types: str) -> list[dict[str, Any]]:
    """All blocks of these types, in order."""
    return [
        block
        for message in messages
        if isinstance(message["content"], list)
        for block in message["content"]
        if block["type"] in types
    ]


def cleared_ids(messages: Sequence[Message]) -> list[str]:
    return [block["tool_use_id"] for block in blocks_of(messages, "tool_result") if block["content"] == PLACEHOLDER]


def cleared_in_chat(messages: Sequence[Message]) -> list[str]:
    """The same in a chat."""
    return [message["tool_call_id"] for message in messages if message.get("content") == PLACEHOLDER]


_words = st.integers(0, 12).map(lambda number: " ".join(["w"] * number))


@st.composite
def conversations(draw: st.DrawFn, max_steps: int = 10) -> list[Message]:
    """Users, answers, single and parallel calls, thinking, text beside results, calls without results."""
    story = Blocks().user("Find it .")
    for _ in range(draw(st.integers(0, max_steps))):
        kind = draw(st.sampled_from(["tools", "tools", "tools", "user", "say", "think", "open"]))
        thinking = draw(st.sampled_from(["", "", "I think so ."]))
        if kind == "user":
            story.user()
        elif kind == "say":
            story.say("Found it .", thinking)
        elif kind == "think":
            story.messages.append({"role": "assistant", "content": _thinking("Only this .")})
        else:
            calls = draw(st.lists(st.tuples(st.sampled_from(TOOLS), _words), min_size=1, max_size=3))
            aside = draw(st.sampled_from(["", "", "And quickly ."]))
            story.step(*calls, thinking=thinking, aside=aside, answered=kind == "tools")
    return story.messages
