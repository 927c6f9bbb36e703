"""Puts the message of an answer together from the chunks of its stream (`chat.completion.chunk`).

    {"role": "assistant", "content": ""}  {"content": "He"}  {"tool_calls": [{"index": 0, "function": {"arguments": ..

The result is the message that the same answer would carry if it were not streamed. It knows the chunks of OpenAI's
protocol, neither sessions nor vLLM.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

_TEXTS = ("content", "reasoning_content", "reasoning", "refusal")


class MessageBuilder:
    """`finish_reason` is None until the stream has said it. `index` is that of the choice."""

    def __init__(self, index: int = 0) -> None:
        self._index = index
        self.finish_reason: str | None = None
        self._texts: dict[str, list[str]] = {}
        self._calls: dict[int, dict[str, Any]] = {}

    def add(self, chunk: Mapping[str, Any]) -> Mapping[str, Any]:
        """Take one chunk in. Returns its delta ({} where it has none)."""
        for choice in chunk.get("choices") or ():
            if choice.get("index", 0) != self._index:
                continue
            self.finish_reason = choice.get("finish_reason") or self.finish_reason
            delta: Mapping[str, Any] = choice.get("delta") or {}
            for name in _TEXTS:
                if isinstance(delta.get(name), str):
                    self._texts.setdefault(name, []).append(delta[name])
            for call in delta.get("tool_calls") or ():
                self._add_call(call)
            return delta
        return {}

    def message(self) -> dict[str, Any]:
        """The assistant's message as far as it has come."""
        message: dict[str, Any] = {"role": "assistant", "content": "".join(self._texts.get("content", ())) or None}
        for name in _TEXTS[1:]:
            if name in self._texts:
                message[name] = "".join(self._texts[name])
        if self._calls:
            message["tool_calls"] = [self._calls[index] for index in sorted(self._calls)]
        return message

    def _add_call(self, delta: Mapping[str, Any]) -> None:
        call = self._calls.setdefault(
            delta.get("index", 0), {"id": None, "type": "function", "function": {"name": "", "arguments": ""}}
        )
        call["id"] = delta.get("id") or call["id"]
        function = delta.get("function") or {}
        call["function"]["name"] = function.get("name") or call["function"]["name"]
        call["function"]["arguments"] += function.get("arguments") or ""


class GroupBuilder:
    """Puts the messages of several answers together, each chunk in the answer of its own."""

    def __init__(self, num_answers: int) -> None:
        self._builders = [MessageBuilder(index) for index in range(num_answers)]
        self._open = set(range(num_answers))

    @property
    def is_over(self) -> bool:
        """Whether the stream has said how each answer ends."""
        return not self._open

    def add(self, chunk: Mapping[str, Any]) -> None:
        """Take one chunk in."""
        for index in {choice.get("index", 0) for choice in chunk.get("choices") or ()}:
            if 0 <= index < len(self._builders):
                self._builders[index].add(chunk)
                if self._builders[index].finish_reason is not None:
                    self._open.discard(index)

    def messages(self) -> list[dict[str, Any]]:
        """The messages in order, as far as they have come."""
        return [builder.message() for builder in self._builders]
