"""Requests as agents' clients send them: their shapes, with texts of our own.

A client keeps its history and adds what it is answered. `body` and `headers` are those of its next request.
"""

from __future__ import annotations

import copy
import json
from dataclasses import dataclass, field
from typing import Any

TOOLS = ("read", "write", "grep", "run")
SYSTEM = "You are an agent of the valley's archive.\n" + "\n".join(
    f"Rule {n}: keep shelf {n * 7 % 31} in the order of the ledgers, and name what you move." for n in range(40)
)
TITLE_SYSTEM = "You write titles.\nAnswer with one line of at most six words, and nothing else."
SUMMARY_SYSTEM = "You condense conversations.\nSay what was done, what was found, and what is left to do."
AGENT_SYSTEM = "You are a searcher.\n" + "\n".join(f"Look through cupboard {n}, and report." for n in range(12))


def chat_tools(*names: str) -> list[dict[str, Any]]:
    return [{"type": "function", "function": {"name": name, "parameters": {"type": "object"}}} for name in names]


@dataclass
class ChatClient:
    """One conversation over /v1/chat/completions."""

    system: str = SYSTEM
    tools: tuple[str, ...] = TOOLS
    headers: dict[str, str] = field(default_factory=dict)
    extra: dict[str, Any] = field(default_factory=dict)
    messages: list[dict[str, Any]] = field(default_factory=list)

    def user(self, text: str) -> ChatClient:
        self.messages.append({"role": "user", "content": text})
        return self

    def answer(self, text: str) -> ChatClient:
        self.messages.append({"role": "assistant", "content": text})
        return self

    def call(self, name: str, result: str, **arguments: Any) -> ChatClient:
        """The model calls a tool, and the client sends its result."""
        number = len(self.messages)
        function = {"name": name, "arguments": json.dumps(arguments)}
        calls = [{"id": f"call-{number}", "type": "function", "function": function}]
        self.messages.append({"role": "assistant", "content": None, "tool_calls": calls})
        self.messages.append({"role": "tool", "tool_call_id": f"call-{number}", "content": result})
        return self

    @property
    def body(self) -> dict[str, Any]:
        head = [{"role": "system", "content": self.system}] if self.system else []
        body: dict[str, Any] = {"model": "m", "messages": [*head, *self.messages]}
        return body | ({"tools": chat_tools(*self.tools)} if self.tools else {}) | self.extra

    def side(self, system: str, *messages: dict[str, Any]) -> ChatClient:
        """A side request of the same session: another system prompt, no tools."""
        return ChatClient(system, (), self.headers, self.extra, copy.deepcopy(list(messages)))


def work(client: ChatClient, topic: str, num_rounds: int, first: int = 0) -> ChatClient:
    """Rounds of a tool call and its result about a topic, all different."""
    for n in range(first, first + num_rounds):
        client.call("grep", f"{topic}: {n} entries on page {n * 13 % 101}, the last of {n * 7} is torn.", word=f"w{n}")
    return client
