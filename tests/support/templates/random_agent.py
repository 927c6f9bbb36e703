"""An agent that does anything an agent may do: it thinks, calls tools in episodes, sends images, changes its tools.

Its histories are valid for the template that it talks to. It has no tools where the template knows none, and one call a
step where it takes one. No user speaks between results and answer where it wants an answer. All follows from the seed.
"""

from __future__ import annotations

import json
import random
from dataclasses import dataclass, field
from typing import Any

from acmserve.context.episodes.delimiter import Scope, run_delimiter
from acmserve.context.episodes.episode import Kind
from acmserve.context.transcript.message import Message

ONE_CALL = ("llama3", "gpt_oss")
_WORDS = (
    *(
        "harbour",
        "light",
        "the",
        "a",
        "of",
        "gull",
        "404",
        "def",
        "self.value",
        "+=",
        "1;",
        "path/to/file.py",
        "error:",
    ),
    *("naïve", "Straße", "漢字", '"quoted"', '{"json": [1, 2]}', "line\n    indented", "&", "retry\n\n", "don't"),
)
_TOOLS = ("grep", "read", "edit", "bash", "fetch")


@dataclass(slots=True)
class RandomAgent:
    """`messages` is the history that it resends. `tools` are those of its next request."""

    seed: int
    has_tools: bool = True
    max_calls: int = 3
    can_interrupt: bool = True
    messages: list[Message] = field(default_factory=list)
    tools: list[dict[str, Any]] = field(default_factory=list)
    random: random.Random = field(init=False)
    scope: Scope = field(default_factory=Scope)
    num_calls: int = 0
    num_episodes: int = 0
    has_thought: bool = False
    has_sent_images: bool = False

    def __post_init__(self) -> None:
        self.random = random.Random(self.seed)
        if self.random.random() < 0.7:
            self.messages.append({"role": "system", "content": self.text(20, 80)})
        self.change_tools()

    def text(self, least: int, most: int) -> str:
        return " ".join(self.random.choices(_WORDS, k=self.random.randint(least, most)))

    def change_tools(self) -> None:
        names = self.random.sample(_TOOLS, self.random.randint(1, len(_TOOLS))) if self.has_tools else []
        self.tools = [
            {
                "type": "function",
                "function": {
                    "name": name,
                    "description": self.text(5, 40),
                    "parameters": {
                        "type": "object",
                        "properties": {"path": {"type": "string"}, "n": {"type": "integer"}},
                    },
                },
            }
            for name in names
        ]

    def step(self) -> None:
        """The model answers, and where it is the user's turn, or at times anyway, the user goes on."""
        called = self.answer()
        if not called or (self.can_interrupt and self.random.random() < 0.05):
            self.ask()

    def ask(self) -> None:
        """The user says something, at times with an image."""
        text = self.text(3, 60)
        content: Any = text
        if self.random.random() < 0.15:
            url = f"https://example.org/{self.random.randint(0, 10**9)}.png?w={self.random.choice((64, 256, 700))}"
            content = [{"type": "text", "text": text}, {"type": "image_url", "image_url": {"url": url}}]
            self.has_sent_images = True
        elif self.random.random() < 0.3:
            content = [{"type": "text", "text": text}]
        self.messages.append({"role": "user", "content": content})

    def answer(self) -> bool:
        """The model answers. Whether it called tools, whose results stand behind it then."""
        said: dict[str, Any] = {"role": "assistant", "content": self.text(2, 60)}
        thought = self.text(10, 200)
        kind = self.random.random()
        if kind < 0.5:
            said[self.random.choice(("reasoning", "reasoning_content"))] = thought
        elif kind < 0.6:
            said["content"] = f"<think>\n{thought}\n</think>\n\n{said['content']}"
        self.has_thought |= kind < 0.6
        if not self.has_tools or self.random.random() < 0.3:
            self.messages.append(said)
            return False
        if self.random.random() < 0.4:
            said["content"] = ""
        steps = [self._call() for _ in range(self.random.randint(1, self.max_calls))]
        said["tool_calls"] = [call for call, _ in steps]
        self.messages += [said, *(result for _, result in steps)]
        return True

    def _call(self) -> tuple[dict[str, Any], Message]:
        if self.random.random() < 0.45:
            name, arguments = "delimiter", self._mark()
            done = run_delimiter(self.scope, arguments)
            self.scope, result = done.scope, done.result
        else:
            name, arguments = self.random.choice(_TOOLS), {"path": self.text(1, 12), "n": self.random.randint(0, 9)}
            result = self.text(5, 400)
        self.num_calls += 1
        call_id = f"call{self.num_calls % 100_000:05}"
        function = {"name": name, "arguments": json.dumps(arguments, ensure_ascii=self.random.random() < 0.5)}
        call = {"id": call_id, "type": "function", "function": function}
        return call, {"role": "tool", "tool_call_id": call_id, "content": result}

    def _mark(self) -> dict[str, Any]:
        if self.scope.active is not None:
            return (
                {"action": "end", "description": self.text(3, 15)} if self.random.random() < 0.9 else {"action": "end"}
            )
        self.num_episodes += 1
        names = [name for name, kind in self.scope.kinds.items() if kind is Kind.EXPL]
        start: dict[str, Any] = {"action": "start", "name": f"e{self.num_episodes}", "type": "expl"}
        if names and self.random.random() < 0.5:
            start |= {"type": "act", "dependencies": self.random.sample(names, 1)}
        return start
