"""Reads recorded agent conversations in the format of the PyPI package `agentperf-local` (Apache-2.0), full text.

    traces/NAME.jsonl    one line a turn: the whole prompt (`messages`), `tools`, the tools' time behind it
    manifest*.json       the traces in order

The package is an extra of ours (Python 3.12 or newer), and its texts stay in it: they are read from the installed
package, or from a path to its wheel, to an unpacked one, or to any folder of such JSON lines.

Two things are done to them. Long texts are cut, because these agents read files that alone are larger than a small
budget (`cut_texts`). And every few turns are marked as an episode by calls of `delimiter`, as an agent that knows the
tool would: without marks the policy `cwl` has nothing that it may take. The descriptions are made of the calls.
"""

from __future__ import annotations

import importlib.resources
import importlib.util
import json
import zipfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from importlib.resources.abc import Traversable
from pathlib import Path
from typing import Any

from acmserve.bench.agent.recording import Marks, Recording, Step, as_call
from acmserve.bench.harness.library_text import cut
from acmserve.context.episodes.delimiter import DELIMITER, DELIMITER_TOOL
from acmserve.context.transcript.message import Message
from acmserve.context.transcript.tokenizer import Tokenizer
from acmserve.errors import AcmError

INSTALLED = "agentperf"
_PACKAGE = "agentperf_local"
_REPLAY = ("data", "replays", "agentperf-default-v1")
_TURNS_OF_EPISODE = 4
_DESCRIPTION_CHARS = 160


@dataclass(frozen=True, slots=True)
class Limits:
    """How many tokens of a text are kept, by who wrote it."""

    system: int
    user: int
    said: int
    result: int


def read_recordings(where: str) -> list[Recording]:
    """All traces of the package (`INSTALLED`), its wheel, or a folder, in order. Raises AcmError with a remedy."""
    folder = _find(where)
    found = [
        read_recording(path.name.removesuffix(".jsonl"), path.read_text(encoding="utf-8").splitlines())
        for path in _files(folder)
    ]
    if not found:
        raise AcmError(f"{where}: no trace (NAME.jsonl) is in it")
    return found


def _find(where: str) -> Traversable:
    """The folder with the traces, or with a manifest and a folder `traces`."""
    if where == INSTALLED:
        if importlib.util.find_spec(_PACKAGE) is None:
            raise AcmError(
                "agentperf-local is not installed: pip install 'acmserve[traces]' (Python 3.12 or newer), "
                "or give the path of its wheel, --traces agentperf_local-...whl"
            )
        return importlib.resources.files(_PACKAGE).joinpath(*_REPLAY)
    path = Path(where)
    if not path.exists():
        raise AcmError(f"--traces {where}: there is no such file; give `bundled`, `{INSTALLED}`, a wheel or a folder")
    root: Traversable = path if path.is_dir() else zipfile.Path(_as_wheel(path))
    for inside in (root.joinpath(_PACKAGE, *_REPLAY), root.joinpath(*_REPLAY)):
        if inside.is_dir():
            return inside
    return root


def _as_wheel(path: Path) -> zipfile.ZipFile:
    if not zipfile.is_zipfile(path):
        raise AcmError(f"--traces {path}: this is neither a folder nor a wheel")
    return zipfile.ZipFile(path)


def _files(folder: Traversable) -> list[Traversable]:
    """The traces in the order of the first manifest; by name where there is none."""
    manifests = sorted((path for path in folder.iterdir() if path.name.startswith("manifest")), key=lambda p: p.name)
    if manifests:
        tasks = json.loads(manifests[0].read_text(encoding="utf-8"))["tasks"]
        return [folder.joinpath(*task["trace"].split("/")) for task in tasks]
    inside = folder.joinpath("traces") if folder.joinpath("traces").is_dir() else folder
    return sorted((path for path in inside.iterdir() if path.name.endswith(".jsonl")), key=lambda path: path.name)


def read_recording(name: str, lines: Sequence[str]) -> Recording:
    """One trace. Raises AcmError naming the line that is no turn."""
    rows = [_read_row(name, number, line) for number, line in enumerate(lines, start=1) if line.strip()]
    if not rows:
        raise AcmError(f"{name}: the trace is empty")
    steps: list[Step] = []
    marker, start, pause = _Marker(), 0, 0.0
    for row, after in zip(rows, [*rows[1:], None], strict=True):
        messages = row["messages"]
        end = len(messages) if after is None else _num_same(messages, after["messages"])
        if end < start:
            raise AcmError(f"{name}: turn {len(steps)} does not go on where the one before ended")
        new = tuple(marker.mark(messages[start:end]))
        steps.append(Step(new, tuple(messages[end:]), pause))
        start, pause = end, float(row.get("simulated_tool_delay_ms_after") or 0.0) / 1000
    return Recording(name, (*rows[0].get("tools", ()), DELIMITER_TOOL), tuple(steps))


def _read_row(name: str, number: int, line: str) -> dict[str, Any]:
    try:
        row = json.loads(line)
        if all(isinstance(message["role"], str) for message in row["messages"]):
            return dict(row)
    except (ValueError, LookupError, TypeError) as error:
        raise AcmError(f"{name}, line {number}: this is no turn of a trace ({error})") from error
    raise AcmError(f"{name}, line {number}: a message has no role")


def _num_same(messages: Sequence[Message], others: Sequence[Message]) -> int:
    """How many messages two prompts have in common at their beginning."""
    pairs = zip(messages, others, strict=False)
    return next((n for n, (one, other) in enumerate(pairs) if one != other), min(len(messages), len(others)))


class _Marker:
    """Marks every few of the assistant's messages as an exploration that has ended when the next one starts."""

    def __init__(self) -> None:
        self._marks = Marks()
        self._num_said = 0
        self._done: list[str] = []

    def mark(self, messages: Sequence[Message]) -> Iterator[Message]:
        for message in messages:
            if message["role"] != "assistant":
                yield message
                continue
            said = {**message, "tool_calls": [*self._calls(), *(message.get("tool_calls") or ())]}
            self._num_said += 1
            self._done += [_told(call) for call in message.get("tool_calls") or ()]
            yield said if said["tool_calls"] else message
            yield from self._marks.results(said)

    def _calls(self) -> list[dict[str, Any]]:
        number, rest = divmod(self._num_said, _TURNS_OF_EPISODE)
        if rest:
            return []
        start = {"action": "start", "name": f"part-{number + 1}", "type": "expl"}
        ended = [{"action": "end", "description": " ".join(self._done)[:_DESCRIPTION_CHARS] or "nothing was called"}]
        self._done = []
        return [
            as_call(f"mark-{self._num_said}-{index}", DELIMITER, arguments)
            for index, arguments in enumerate([*(ended if number else []), start])
        ]


def _told(call: Mapping[str, Any]) -> str:
    function = call.get("function") or {}
    return f"{function.get('name', '')} {str(function.get('arguments', ''))[:60]};"


def cut_texts(recording: Recording, limits: Limits, tokenizer: Tokenizer) -> Recording:
    """The recording with every text cut to its limit; the arguments of calls stay JSON."""

    def shorter(message: Message) -> Message:
        role = message["role"]
        limit = {"system": limits.system, "user": limits.user, "assistant": limits.said}.get(role, limits.result)
        changed: dict[str, Any] = {}
        if isinstance(message.get("content"), str):
            changed["content"] = cut(message["content"], limit, tokenizer)
        if message.get("tool_calls"):
            changed["tool_calls"] = [
                _shorter_call(call, lambda text: cut(text, limits.said, tokenizer)) for call in message["tool_calls"]
            ]
        return {**message, **changed}

    steps = tuple(
        replace(step, new=tuple(map(shorter, step.new)), fleeting=tuple(map(shorter, step.fleeting)))
        for step in recording.steps
    )
    return replace(recording, steps=steps)


def _shorter_call(call: Mapping[str, Any], shorten: Callable[[str], str]) -> dict[str, Any]:
    function = dict(call["function"])
    arguments = function.get("arguments")
    if isinstance(arguments, str):
        try:
            read = json.loads(arguments)
        except ValueError:
            read = None
        if isinstance(read, dict):
            told = {name: shorten(value) if isinstance(value, str) else value for name, value in read.items()}
            function["arguments"] = json.dumps(told)
        else:
            function["arguments"] = json.dumps({"text": shorten(arguments)})
    return {**call, "function": function}
