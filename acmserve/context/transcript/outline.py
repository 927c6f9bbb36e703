"""The outline of a transcript: for every message what may be taken out of it, and which result answers which call.

    entry   0 system    1 user      2 assistant(grep, read)   3 tool      4 tool      5 assistant
    role    PROTECTED   PROTECTED   ASSISTANT                 RESULT      RESULT      ASSISTANT
                                    results [3], [4]          use (2, 0)  use (2, 1)

An observation (`observations.py`) is the result of the text in front of it. Its use is (entry, TEXT).

Appended to as the conversation grows. An entry is read once. Decisions:

- Many clients use the same call id again in every turn. So a result answers the latest call of its id that has no
  result yet. A result without an id answers the first unanswered call of the last assistant message.
- Some clients send a second result for a call. It is one more result of that call, and shares its fate.
- Messages of the user and the system are never taken out. Neither are roles that we do not know, and the calls of the
  old `function_call` protocol, whose results cannot be distinguished.

- What the commands of a message do is read off with it (`commands/effect.py`), so that no later plan reads them again.

It does not know episodes, tokens, or what was taken out.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from acmserve.context.transcript.commands.effect import NOTHING_KNOWN, CommandEffect, effects_of
from acmserve.context.transcript.message import Message
from acmserve.context.transcript.parts import CallParts, Parts, Role, has_reasoning, read_calls, read_parts
from acmserve.errors import IntegrityError

TEXT = -1
"""The number of the use that is a message's own text, which an observation answers."""
OBSERVATION = "observation"
"""What stands for the name of a tool where there is none."""


class Use(NamedTuple):
    """One tool call: the entry of the assistant's message, and its position in `tool_calls`, or `TEXT`."""

    entry: int
    number: int


@dataclass(slots=True)
class Line:
    """One message. `results` has the entries of each call's results. `use` is a result's call.

    `observation` is the entry of what answers the text. `effect` is what the commands do, of the calls or in the text.
    """

    role: Role
    is_user: bool = False
    has_text: bool = False
    has_reasoning: bool = False
    names: tuple[str, ...] = ()
    results: list[list[int]] = field(default_factory=list)
    use: Use | None = None
    observation: int | None = None
    effect: CommandEffect = NOTHING_KNOWN

    def results_of(self, number: int) -> list[int]:
        """The entries of the results of a call, or with `TEXT` that of the observation."""
        if number == TEXT:
            return [] if self.observation is None else [self.observation]
        return self.results[number]


def pair_results(messages: Sequence[Message], observations: Collection[int] = ()) -> list[tuple[Role, Use | None]]:
    """The role of each message, and the call that it answers where it is a result of one."""
    pairing = _Pairing()
    pairs: list[tuple[Role, Use | None]] = []
    speaker: int | None = None
    for entry, parts in enumerate(read_calls(messages, observations)):
        use: Use | None = None
        if parts.role is Role.ASSISTANT:
            pairing.add_calls(entry, parts.calls)
        elif parts.is_observation:
            use = None if speaker is None else Use(speaker, TEXT)
        elif parts.role is Role.RESULT:
            use = pairing.take_result(parts.call_id)
        speaker = entry if parts.role is Role.ASSISTANT and not parts.calls else None
        pairs.append((parts.role, use))
    return pairs


class _Pairing:
    """Finds the call that a result answers. Messages are given in order, each once, and each costs the same.

    `_waiting` has the calls without a result, by id, and `_answered` the last one with a result. `_last` has the calls
    of the last message, and `_end` the last of them. Answered calls leave its front when a result without an id comes.
    """

    def __init__(self) -> None:
        self._waiting: dict[str, deque[Use]] = {}
        self._last: deque[tuple[Use, str]] = deque()
        self._answered: dict[str, Use] = {}
        self._end: Use | None = None

    def add_calls(self, entry: int, calls: Sequence[CallParts]) -> None:
        """An assistant's message: its calls wait for results, and hide older ones of the same id."""
        for call in calls:
            self._waiting.pop(call.call_id, None)
        self._last = deque((Use(entry, index), call.call_id) for index, call in enumerate(calls))
        self._end = self._last[-1][0] if self._last else None
        for use, key in self._last:
            self._waiting.setdefault(key, deque()).append(use)

    def take_result(self, key: str) -> Use | None:
        """The call that a result of this id answers, if need be once more. None where there is none."""
        waiting = key or self._first_waiting()
        if waiting is None:
            return self._end
        queue = self._waiting.get(waiting)
        if not queue:
            return self._answered.get(waiting)
        use = queue.popleft()
        if not queue:
            del self._waiting[waiting]
        self._answered[waiting] = use
        return use

    def _first_waiting(self) -> str | None:
        """The id of the first call of the last message that has no result. None where all have one."""
        while self._last:
            use, key = self._last[0]
            queue = self._waiting.get(key)
            if queue and queue[0] == use:
                return key
            self._last.popleft()
        return None


class Outline:
    """The outline of a transcript that only grows. `lines` are read by everybody and written here only."""

    def __init__(self, messages: Iterable[Message] = (), observations: Collection[int] = ()) -> None:
        self.lines: list[Line] = []
        self._pairing = _Pairing()
        self._num_omittable = [0]
        self.extend(read_parts(messages, observations))

    def __len__(self) -> int:
        return len(self.lines)

    def extend(self, new: Iterable[Parts]) -> None:
        """Take in the messages that are new."""
        if batch := list(new):
            for parts, effect in zip(batch, effects_of(batch), strict=True):
                self._append(parts, effect)

    def _append(self, parts: Parts, effect: CommandEffect) -> None:
        line = Line(parts.role, parts.is_user, parts.has_text, parts.has_reasoning, effect=effect)
        if parts.role is Role.ASSISTANT:
            line.names = tuple([call.name for call in parts.calls])
            line.results = [[] for _ in line.names]
            self._pairing.add_calls(len(self.lines), parts.calls)
        elif parts.is_observation:
            line.use = self._answered_text()
            if line.use is not None:
                self.lines[line.use.entry].observation = len(self.lines)
        elif parts.role is Role.RESULT:
            line.use = self._pairing.take_result(parts.call_id)
            if line.use is not None:
                self.lines[line.use.entry].results[line.use.number].append(len(self.lines))
        self.lines.append(line)
        self._num_omittable.append(self._num_omittable[-1] + (parts.role is not Role.PROTECTED))

    def _answered_text(self) -> Use | None:
        """The text at the end, where it is the assistant's and calls no tool."""
        entry = len(self.lines) - 1
        is_text = entry >= 0 and self.lines[entry].role is Role.ASSISTANT and not self.lines[entry].names
        return Use(entry, TEXT) if is_text else None

    def reread(self, entry: int, message: Message) -> None:
        """A client has sent the same message in other words: without its reasoning, for instance."""
        if self.lines[entry].role is Role.ASSISTANT:
            self.lines[entry].has_reasoning = has_reasoning(message)

    def name(self, use: Use) -> str:
        """The tool that a call names."""
        return OBSERVATION if use.number == TEXT else self.lines[use.entry].names[use.number]

    def results(self, use: Use) -> list[int]:
        """The entries of a call's results, or that of the observation that answers a text."""
        return self.lines[use.entry].results_of(use.number)

    def uses(self) -> Iterable[Use]:
        """Every tool call, in order."""
        return (Use(entry, index) for entry, line in enumerate(self.lines) for index in range(len(line.names)))

    def last_step(self, end: int | None = None) -> int:
        """The entry of the model's last step, or of the last one in front of `end`. 0 where there is none."""
        backwards = range((len(self.lines) if end is None else end) - 1, -1, -1)
        return next((entry for entry in backwards if self.lines[entry].role is Role.ASSISTANT), 0)

    def num_omittable(self, start: int, end: int) -> int:
        """How many of the entries `[start, end)` are messages of the assistant or results."""
        return self._num_omittable[end] - self._num_omittable[start]

    def check_integrity(self) -> None:
        """Raise `IntegrityError` when a call and its result do not name each other."""
        named = {(entry, line.use) for entry, line in enumerate(self.lines) if line.use is not None}
        for entry, line in enumerate(self.lines):
            for index, results in enumerate(line.results):
                others = [result for result in results if (result, (entry, index)) not in named]
                if others:
                    raise IntegrityError(f"outline: call {entry}.{index} has results {others}, which answer another")
                named.difference_update((result, Use(entry, index)) for result in results)
            if line.observation is not None and self.lines[line.observation].use != (entry, TEXT):
                raise IntegrityError(f"outline: text {entry} has observation {line.observation}, which answers another")
            named.discard((line.observation or 0, Use(entry, TEXT)))
        if named:
            entry, use = min(named)
            raise IntegrityError(f"outline: result {entry} answers {use}, which has {self.results(use)}")
        if self._num_omittable[-1] != sum(line.role is not Role.PROTECTED for line in self.lines):
            raise IntegrityError(f"outline: counted {self._num_omittable[-1]} messages that may be taken out")
