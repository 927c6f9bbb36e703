"""Conversations of agents as they are really written: with tools, with results as plain text, with parts, with JSON."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

Message = dict[str, Any]
TASK = "Find the bug and mend it ."


def fenced(number: int, result: str) -> list[Message]:
    """A fenced command, and its output in tags."""
    said = f"THOUGHT: look at {number} .\n\n```bash\ncat file{number}.py\n```"
    return [_assistant(said), _user(f"<returncode>0</returncode>\n<output>\n{result}\n</output>")]


def react(number: int, result: str) -> list[Message]:
    """A thought, an action, an observation."""
    return [_assistant(f"Thought: look .\nAction: read[{number}]"), _user(f"Observation: {result}")]


def parts(number: int, result: str) -> list[Message]:
    """Calls and results as text in lists of parts."""
    said = f"Calling tools:\n[{{'id': 'c{number}', 'function': {{'name': 'read'}}}}]"
    return [
        {"role": "assistant", "content": [{"type": "text", "text": said}]},
        {"role": "user", "content": [{"type": "text", "text": f"Observation:\n{result}"}]},
    ]


def terminal(number: int, result: str) -> list[Message]:
    """Keystrokes as JSON, and the screen."""
    said = json.dumps({"analysis": f"step {number}", "commands": [{"keystrokes": "ls\n", "duration": 0.1}]})
    return [_assistant(said), _user(f"New Terminal Output:\n\n{result}")]


def repl(number: int, result: str) -> list[Message]:
    """Code for a REPL, and what it printed."""
    return [_assistant(f"```repl\nprint(part{number})\n```"), _user(f"Code executed:\n```\n\nREPL output:\n{result}")]


def tools(number: int, result: str) -> list[Message]:
    """A tool call, and a tool's message."""
    call = {"id": f"c{number}", "type": "function", "function": {"name": "read", "arguments": '{"n": 1}'}}
    return [
        {"role": "assistant", "content": f"Look at {number} .", "tool_calls": [call]},
        {"role": "tool", "tool_call_id": f"c{number}", "content": result},
    ]


STYLES: dict[str, Callable[[int, str], list[Message]]] = {
    "fenced": fenced,
    "react": react,
    "parts": parts,
    "terminal": terminal,
    "repl": repl,
    "tools": tools,
}


@dataclass
class AgentTrace:
    """A conversation that grows by one step a turn. Now and then the agent answers, and a person asks on."""

    style: str
    seed: int
    max_words: int = 120
    question_share: float = 0.05
    messages: list[Message] = field(default_factory=list)
    asked: list[Message] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._random = random.Random(self.seed)
        self._num_steps = 0
        self.messages.append({"role": "system", "content": "You mend programs ."})
        self._ask(TASK)

    def _ask(self, text: str) -> None:
        self.messages.append(_user(text))
        self.asked.append(self.messages[-1])

    def grow(self) -> None:
        """One step, or an answer and the next question."""
        if self._num_steps and self._random.random() < self.question_share:
            self.messages.append(_assistant(f"It is done , step {self._num_steps} ."))
            self._ask(f"Thanks , and number {self._num_steps} ?")
            return
        self._num_steps += 1
        words = " ".join(["word"] * self._random.randint(1, self.max_words))
        self.messages += STYLES[self.style](self._num_steps, f"{self._num_steps} {words}")


def _assistant(text: str) -> Message:
    return {"role": "assistant", "content": text}


def _user(text: str) -> Message:
    return {"role": "user", "content": text}
