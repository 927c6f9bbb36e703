"""How the matrix speaks to any client: words in, the client's last words and its own count of cached tokens out."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

from tests.support.clients.installed import ROOT, Package

TURN_SECONDS = 1200
STEP_LINES = 12
_PASSED_ON = ("PATH", "LANG", "TERM", "TMPDIR")


@dataclass(frozen=True)
class Said:
    """The end of a turn. `cached_tokens` is what the client itself shows, None where it shows nothing."""

    text: str
    cached_tokens: int | None = None
    error: str | None = None


class Conversation(Protocol):
    """One conversation with one client."""

    def say(self, words: str) -> Said:
        """A turn of the user, to its end."""

    def restart(self) -> None:
        """Go on in a new process. A client whose turns are processes has nothing to do."""

    def compact(self) -> None:
        """Have the client compact its history, by its own means."""

    def close(self) -> None:
        """End what runs."""


class AgentClient(Protocol):
    """A client of the matrix."""

    name: str
    package: Package
    can: frozenset[str]
    """What there is to check: `tools`, `turns`, `usage`, `sub-agent`, `compaction`, `budget`, `git status`.

    `steps`: its budget is held over the steps of one errand, and not over turns of the user. `lines`: over lines of
    the user, which one process reads.
    """
    overflow_steps: int
    """How many steps of 25 KB fill the window as the client cuts them. 0: it does not compact by itself."""

    def start(self, url: str, folder: Path) -> Conversation:
        """A new conversation in a folder of its own, by a server without `/v1` in its address."""


@runtime_checkable
class WindowedClient(Protocol):
    """A client whose own configuration can say how long the window of the model is."""

    def start_told(self, url: str, folder: Path, window: int) -> Conversation:
        """A new conversation, with a window of so many tokens in the configuration."""


def write_errand(work: Path, number: int, num_steps: int, num_lines: int = STEP_LINES, first_lines: int = 0) -> None:
    """The files of an errand in the client's folder. The first one may be long."""
    folder = work / f"errand-{number}"
    folder.mkdir(parents=True, exist_ok=True)
    for step in range(1, num_steps + 1):
        num = first_lines if step == 1 and first_lines else num_lines
        lines = (
            f"{number}.{step}.{line}: the river carries {line * 7 % 13} boats past the mill" for line in range(num)
        )
        (folder / f"step-{step}.txt").write_text("\n".join(lines) + "\n")


def closed_environ(home: Path, **more: str) -> dict[str, str]:
    """What a client's process finds: a home of its own, no proxy, nothing of the user's."""
    home.mkdir(parents=True, exist_ok=True)
    passed = {name: os.environ[name] for name in _PASSED_ON if name in os.environ}
    return passed | {"HOME": str(home), "NO_COLOR": "1", "CI": "1", "NO_PROXY": "127.0.0.1"} | more


def run_client(
    command: Sequence[str], work: Path, environ: Mapping[str, str], log: Path, typed: str = ""
) -> tuple[int, str]:
    """A client's command to its end: its exit status and what it printed. Its other output goes to the log.

    It prints into a file. Programs of Node that end lose what a pipe has no room for. `typed` is what it reads.
    """
    printed = log.with_suffix(".out")
    with log.open("ab") as stream, printed.open("wb") as output:
        done = subprocess.run(
            list(command),
            cwd=work,
            env=dict(environ),
            input=typed.encode(),
            stdout=output,
            stderr=stream,
            timeout=TURN_SECONDS,
            check=False,
        )
    return done.returncode, printed.read_text(errors="replace")


def json_lines(text: str) -> list[Any]:
    """The JSON objects of an output, one a line. Other lines are passed over."""
    found = []
    for line in text.splitlines():
        if line.startswith(("{", "[")):
            try:
                found.append(json.loads(line))
            except ValueError:
                continue
    return found


class ProgramConversation:
    """A program of `programs/` in the framework's own virtual environment, which lives over several turns."""

    def __init__(self, package: Package, module: str, url: str, folder: Path, more: Sequence[str] = ()) -> None:
        self._work = folder / "work"
        self._work.mkdir(parents=True, exist_ok=True)
        python = str(package.program("python"))
        name = f"tests.support.clients.programs.{module}"
        self._command = [python, "-m", name, url, str(folder.resolve() / "history"), *more]
        self._environ = closed_environ(
            folder / "home", PYTHONPATH=str(ROOT), OPENAI_API_KEY="unused", LITELLM_LOCAL_MODEL_COST_MAP="True"
        )
        self._log = (folder / "client.log").open("ab")
        self._process = self._start()

    def say(self, words: str) -> Said:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps({"words": words}) + "\n")
        self._process.stdin.flush()
        line = self._process.stdout.readline()
        if not line:
            return Said("", error="the program ended")
        told = json.loads(line)
        return Said(told["text"], told["cached_tokens"], told.get("error"))

    def restart(self) -> None:
        self._end()
        self._process = self._start()

    def compact(self) -> None:
        """Frameworks compact nothing."""

    def close(self) -> None:
        self._end()
        self._log.close()

    def _start(self) -> subprocess.Popen[str]:
        return subprocess.Popen(
            self._command,
            cwd=self._work,
            env=self._environ,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._log,
            text=True,
        )

    def _end(self) -> None:
        with self._process as process:
            assert process.stdin is not None
            process.stdin.close()
            process.wait(timeout=TURN_SECONDS)
