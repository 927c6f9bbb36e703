"""The outline of a transcript: for every message what may be taken out of it, and which result answers which call.

    entry   0 system    1 user      2 assistant(grep, read)   3 tool      4 tool      5 assistant
    role    PROTECTED   PROTECTED   ASSISTANT                 RESULT      RESULT      ASSISTANT
                                    results [3, 4]            use (2, 0)  use (2, 1)

Appended to as the conversation grows; an entry is read once. Decisions:

- Many clients use the same call id again in every turn, so a result answers the latest call of its id that has no
  result yet; a result without an id answers the first unanswered call of the last assistant message.
- Messages of the user and the system are never taken out, neither are roles that we do not know and the calls of the
  old `function_call` protocol, whose results cannot be told apart.

It does not know episodes, tokens, or what was taken out.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, NamedTuple

from acmserve.context.transcript.message import Message
from acmserve.context.transcript.reasoning import has_reasoning, without_reasoning
from acmserve.errors import IntegrityError


class Role(Enum):
    """What a message is to somebody who wants to take something out."""

    PROTECTED = "protected"
    ASSISTANT = "assistant"
    RESULT = "result"


class Use(NamedTuple):
    """One tool call: the entry of the assistant's message, and its position in `tool_calls`."""

    entry: int
    number: int


@dataclass(slots=True)
class Line:
    """One message. `results` has the entry of each call's result, None without one; `use` is a result's call."""

    role: Role
    is_user: bool = False
    has_text: bool = False
    has_reasoning: bool = False
    names: tuple[str, ...] = ()
    results: list[int | None] = field(default_factory=list)
    use: Use | None = None


def role_of(message: Message) -> Role:
    """What may be taken out of a message, by its role."""
    if message.get("role") == "assistant" and not message.get("function_call"):
        return Role.ASSISTANT
    return Role.RESULT if message.get("role") == "tool" else Role.PROTECTED


def tool_calls(message: Message) -> Sequence[Mapping[str, Any]]:
    """The tool calls of a message; what is no object among them counts as a call without a name."""
    calls = message.get("tool_calls")
    return [call if isinstance(call, Mapping) else {} for call in calls] if isinstance(calls, list | tuple) else ()


def call_name(call: Mapping[str, Any]) -> str:
    """The name of the tool that is called."""
    function = call.get("function")
    return str(function.get("name", "")) if isinstance(function, Mapping) else ""


def call_arguments(call: Mapping[str, Any]) -> object:
    """The arguments as the model wrote them: JSON text, or an object."""
    function = call.get("function")
    return function.get("arguments") if isinstance(function, Mapping) else None


def has_text(message: Message) -> bool:
    """Whether a message says anything besides its reasoning and its calls."""
    content = without_reasoning(message).get("content")
    if isinstance(content, list):
        return any(_part_says(part) for part in content)
    return bool(isinstance(content, str) and content.strip()) or bool(message.get("refusal") or message.get("audio"))


def _part_says(part: object) -> bool:
    text = part.get("text", part) if isinstance(part, Mapping) else part
    return bool(text.strip()) if isinstance(text, str) else bool(text)


class Pairing:
    """Finds the call that a result answers. Messages are given in order, each once."""

    def __init__(self) -> None:
        self._waiting: dict[str, deque[Use]] = {}
        self._last: deque[Use] = deque()

    def add_calls(self, entry: int, message: Message) -> None:
        """An assistant's message: its calls wait for results, and hide older ones of the same id."""
        calls = tool_calls(message)
        for call in calls:
            self._waiting.pop(_id(call.get("id")), None)
        self._last = deque(Use(entry, index) for index in range(len(calls)))
        for use, call in zip(self._last, calls, strict=True):
            self._waiting.setdefault(_id(call.get("id")), deque()).append(use)

    def take_result(self, message: Message) -> Use | None:
        """The call that this result answers; None where there is none."""
        key = _id(message.get("tool_call_id"))
        queue = self._waiting.get(key) if key else self._last
        if not queue:
            return None
        use = queue.popleft()
        if key and not queue:
            del self._waiting[key]
        if key and use in self._last:
            self._last.remove(use)
        return use


def _id(value: object) -> str:
    return value if isinstance(value, str) else ""


class Outline:
    """The outline of a transcript that only grows."""

    def __init__(self, messages: Iterable[Message] = ()) -> None:
        self.lines: list[Line] = []
        self._pairing = Pairing()
        self._num_omittable = [0]
        for message in messages:
            self.append(message)

    def __len__(self) -> int:
        return len(self.lines)

    def append(self, message: Message) -> Line:
        """Read one more message."""
        entry, role = len(self.lines), role_of(message)
        line = Line(role, is_user=message.get("role") == "user")
        if role is Role.ASSISTANT:
            line.has_text, line.has_reasoning = has_text(message), has_reasoning(message)
            line.names = tuple(call_name(call) for call in tool_calls(message))
            line.results = [None] * len(line.names)
            self._pairing.add_calls(entry, message)
        elif role is Role.RESULT:
            line.use = self._pairing.take_result(message)
            if line.use is not None:
                self.lines[line.use.entry].results[line.use.number] = entry
        self.lines.append(line)
        self._num_omittable.append(self._num_omittable[-1] + (role is not Role.PROTECTED))
        return line

    def reread(self, entry: int, message: Message) -> None:
        """A client has sent the same message in other words: without its reasoning, for instance."""
        if self.lines[entry].role is Role.ASSISTANT:
            self.lines[entry].has_reasoning = has_reasoning(message)

    def name(self, use: Use) -> str:
        """The tool that a call names."""
        return self.lines[use.entry].names[use.number]

    def result(self, use: Use) -> int | None:
        """The entry of a call's result."""
        return self.lines[use.entry].results[use.number]

    def uses(self) -> Iterable[Use]:
        """Every tool call, in order."""
        return (Use(entry, index) for entry, line in enumerate(self.lines) for index in range(len(line.names)))

    def last_step(self) -> int:
        """The entry of the model's last step, 0 where there is none."""
        backwards = range(len(self.lines) - 1, -1, -1)
        return next((entry for entry in backwards if self.lines[entry].role is Role.ASSISTANT), 0)

    def num_omittable(self, start: int, end: int) -> int:
        """How many of the entries `[start, end)` are messages of the assistant or results."""
        return self._num_omittable[end] - self._num_omittable[start]

    def check_integrity(self) -> None:
        """Raise `IntegrityError` when a call and its result do not name each other."""
        for entry, line in enumerate(self.lines):
            for index, result in enumerate(line.results):
                if result is not None and self.lines[result].use != (entry, index):
                    raise IntegrityError(f"outline: call {entry}.{index} has result {result}, which answers another")
            if line.use is not None and self.result(line.use) != entry:
                raise IntegrityError(f"outline: result {entry} answers {line.use}, which has {self.result(line.use)}")
        if self._num_omittable[-1] != sum(line.role is not Role.PROTECTED for line in self.lines):
            raise IntegrityError(f"outline: counted {self._num_omittable[-1]} messages that may be taken out")
