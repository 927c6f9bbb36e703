"""A long conversation of an agent with a library: tasks, tool calls, results. The words are scripted, the text is real.

    task    user: "Task 3: say in difflib.py what ... does"
            expl  grep, read, grep, read, bash      results of 40 to 2,300 tokens, cut from real files
            act   edit, read, edit, bash            small results
            "Done."

Every completion but the last two of a task calls one tool of the client, and `delimiter` where an episode starts or
ends. So one turn is one completion and one prompt. The last two are one request: `delimiter` alone, then the answer.

Sizes are drawn by a seed. What no budget may take (an exploration that an act still needs) is kept small enough for
6,000 tokens. A conversation whose live part is larger than its budget has no solution under any policy.
"""

from __future__ import annotations

import hashlib
import json
import random
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import chain, islice
from typing import Any

from acmserve.bench.harness.library_text import Library, cut
from acmserve.bench.harness.workloads import as_hermes
from acmserve.context.tools.run import ToolCall
from acmserve.context.transcript.tokenizer import Tokenizer

SYSTEM = "You look after a library. Work on one task after the other, and mark your episodes with delimiter."
NUM_TASKS = 20
_SEED = 17
_SMALL = (40, 240)
# Sizes of the results of an exploration in tokens, by the kind of task. None is a small one.
_KINDS: tuple[tuple[tuple[tuple[int, int] | None, ...], ...], ...] = (
    ((None, (2000, 2300), None),),
    ((None, (500, 1000), None, (500, 900), None),),
    ((None, (900, 1900), None, None, None),),
    ((None, (500, 800), None), (None, (500, 800))),
)
_KINDS_OF_TEN = (1, 2, 3, 1, 0, 2, 1, 3, 2, 0)


def function_tool(name: str, description: str, **parameters: Any) -> dict[str, Any]:
    """A tool as clients name it. `parameters` are types, or whole schemas, and all are required."""
    properties = {key: {"type": kind} if isinstance(kind, str) else kind for key, kind in parameters.items()}
    schema = {"type": "object"} | ({"properties": properties, "required": list(parameters)} if parameters else {})
    return {"type": "function", "function": {"name": name, "description": description, "parameters": schema}}


TOOLS = [
    function_tool("grep", "Find lines.", pattern="string"),
    function_tool("read", "Show a file from a line on.", path="string", line="string"),
    function_tool("bash", "Run a command.", command="string"),
    function_tool("edit", "Replace text in a file.", path="string", old="string", new="string"),
]


@dataclass(frozen=True, slots=True)
class Exchanged:
    """One request of the client: what the user asks before it, what the model says, and what the client's tool answers.

    `said` has one line for each completion. `result` is None where the model answered without a call.
    """

    said: tuple[str, ...]
    result: str | None
    asked: str | None = None


@dataclass(frozen=True, slots=True)
class Trace:
    """The whole conversation. A turn is one completion. `descriptions` are those of the explorations, by name."""

    requests: tuple[Exchanged, ...]
    descriptions: dict[str, str]

    @property
    def num_turns(self) -> int:
        return sum(len(request.said) for request in self.requests)

    @property
    def tasks(self) -> list[list[Exchanged]]:
        """The requests of each task, which begins where the user asks."""
        found: list[list[Exchanged]] = []
        for request in self.requests:
            if request.asked is not None:
                found.append([])
            found[-1].append(request)
        return found

    def with_tasks(self, first: int, num_tasks: int) -> Trace:
        """A conversation of some of the tasks alone."""
        return replace(self, requests=tuple(chain.from_iterable(self.tasks[first : first + num_tasks])))

    @property
    def digest(self) -> str:
        """Equal for equal conversations."""
        text = json.dumps([[request.asked, request.said, request.result] for request in self.requests])
        return hashlib.sha256(text.encode()).hexdigest()[:16]


def make_trace(library: Library, tokenizer: Tokenizer, num_tasks: int = NUM_TASKS) -> Trace:
    """The same trace for the same library, tokenizer and number of tasks. A longer one begins as a shorter one does."""
    draw = random.Random(_SEED)
    functions = {path: found for path, found in library.definitions().items() if len(found) >= 6}
    requests: list[Exchanged] = []
    descriptions: dict[str, str] = {}
    for number in range(num_tasks):
        task = _Task(library, tokenizer, draw, number, functions)
        requests += task.requests()
        descriptions |= task.descriptions
    return Trace(tuple(requests), descriptions)


def hermes(tool: str, /, **arguments: Any) -> str:
    """One call as the parser `hermes` reads it."""
    return as_hermes([ToolCall(tool, arguments)])


class _Task:
    """One task on one file: an exploration or two, an act that depends on them, the answer."""

    def __init__(
        self,
        library: Library,
        tokenizer: Tokenizer,
        draw: random.Random,
        number: int,
        functions: Mapping[str, list[tuple[str, int]]],
    ) -> None:
        self._library, self._tokenizer, self._draw, self._number = library, tokenizer, draw, number
        self._path = draw.choice(list(functions))
        self._functions = draw.sample(functions[self._path], 5)
        self.descriptions: dict[str, str] = {}

    def requests(self) -> Iterator[Exchanged]:
        function, line = self._functions[0]
        sizes = _KINDS[_KINDS_OF_TEN[self._number % len(_KINDS_OF_TEN)]]
        asked: str | None = f"Task {self._number + 1}: say in {self._path} what {function} does."
        ended = ""
        for number, episode in enumerate(sizes):
            name = f"find-{self._number + 1}{'ab'[number]}"
            start = hermes("delimiter", action="start", name=name, type="expl")
            for index, size in enumerate(episode):
                words, call, text = self._explore(number, index)
                marks = [mark for mark in (ended, start) if mark and index == 0]
                said = "\n".join([words, *marks, call])
                yield Exchanged((said,), self._cut(text, size), asked)
                asked = None
            at, where = self._functions[number]
            self.descriptions[name] = f"{at} is in line {where} of {self._path}"
            ended = hermes("delimiter", action="end", description=self.descriptions[name])
        yield from self._act(ended)
        done = hermes("delimiter", action="end")
        yield Exchanged(
            (f"That was all.\n{done}", f"{self._path} says now what {function} does, in line {line}."), None
        )

    def _explore(self, episode: int, index: int) -> tuple[str, str, str]:
        """What the model says, its call, and the text of which the result is cut."""
        function, line = self._functions[episode]
        other, place = self._functions[3]
        if index == 0:
            return f"I look for {function}.", hermes("grep", pattern=function), self._found(function)
        if index == 1:
            call = hermes("read", path=self._path, line=str(line))
            return "Now the function itself.", call, self._library.lines(self._path, line)
        if index == 2:
            return f"Who else has {other}?", hermes("grep", pattern=other), self._found(other)
        if index == 3:
            call = hermes("read", path=self._path, line=str(place))
            return f"{other} stands in line {place}.", call, self._library.lines(self._path, place)
        topic = self._draw.choice(list(self._library.topics))
        call = hermes("bash", command=f"python -m pydoc {topic}")
        return "The manual has more on this.", call, self._library.topics[topic]

    def _act(self, ended: str) -> Iterator[Exchanged]:
        """Edit, look, edit once more, run."""
        name = f"write-{self._number + 1}"
        start = hermes("delimiter", action="start", name=name, type="act", dependencies=list(self.descriptions))
        for index, (function, line) in enumerate(self._functions[:2]):
            source = self._library.lines(self._path, line)
            old = source.splitlines()[0].strip()
            call = hermes("edit", path=self._path, old=old, new=f"# {function}: see line {line}.\n{old}")
            marks = [ended, start] if index == 0 else []
            said = "\n".join([f"I write it above line {line}.", *marks, call])
            yield Exchanged((said,), "Done. Around it:\n" + self._cut(source, None))
            words, call, text = (
                ("I read it again.", hermes("read", path=self._path, line=str(line)), source)
                if index == 0
                else ("Is it all there?", hermes("bash", command="wc -l *.py"), self._library.count(self._path))
            )
            yield Exchanged((f"{words}\n{call}",), self._cut(text, None))

    def _found(self, pattern: str) -> str:
        """Lines with a name, then with less and less of it, so that there are enough of them."""
        parts = dict.fromkeys(part for part in (pattern, pattern.split("_")[-1], "def ") if part)
        lines = chain.from_iterable(self._library.grep(part, self._path) for part in parts)
        return "".join(islice(lines, _SMALL[1]))

    def _cut(self, text: str, size: tuple[int, int] | None) -> str:
        return cut(text, self._draw.randint(*(size or _SMALL)), self._tokenizer)
