"""aider, one process a turn: `--message`, with `--restore-chat-history`. It offers no tools: it shows files.

Several lines are turns of one process, which reads them one by one.
"""

from __future__ import annotations

import re
from pathlib import Path

from tests.support.clients.conversation import Said, closed_environ, run_client
from tests.support.clients.installed import AIDER
from tests.support.clients.programs.line_loop import MODEL


class AiderConversation:
    """Turns in one working folder, with the file `notes.txt` in the chat."""

    def __init__(self, url: str, folder: Path) -> None:
        self.work = folder / "work"
        self.work.mkdir(parents=True, exist_ok=True)
        self._log = folder / "client.log"
        self._environ = closed_environ(
            folder / "home",
            OPENAI_API_BASE=f"{url}/v1",
            OPENAI_API_KEY="unused",
            LITELLM_LOCAL_MODEL_COST_MAP="True",
        )
        (self.work / "notes.txt").write_text(
            "".join(f"Note {line}: the mill stands by the river.\n" for line in range(60))
        )

    def say(self, words: str) -> Said:
        command = [str(AIDER.program("aider")), "--model", f"openai/{MODEL}", "--no-git", "--yes-always", "--no-pretty"]
        command += ["--no-check-update", "--no-show-model-warnings", "--analytics-disable", "--no-show-release-notes"]
        # Without these it writes at the root of the repository that the folder lies in.
        command += ["--chat-history-file", str(self.work.resolve() / "chat.md")]
        command += ["--input-history-file", str(self.work.resolve() / "input.txt")]
        command += ["--restore-chat-history", "notes.txt"]
        is_one = "\n" not in words
        command += ["--message", words] if is_one else ["--no-fancy-input"]
        status, output = run_client(command, self.work, self._environ, self._log, "" if is_one else f"{words}\n")
        said = re.findall(r"(?:Errand \d+ is done\.|Noted\.)$", output, re.MULTILINE)
        hit = re.search(r"([\d.]+)(k?) cache hit", output)
        cached = None if hit is None else int(float(hit[1]) * (1000 if hit[2] else 1))
        return Said(said[-1] if said else "", cached, f"exit {status}" if status else None)

    def compact(self) -> None:
        """It summarizes by itself, when its history is long."""

    def restart(self) -> None:
        """Every turn is a process."""

    def close(self) -> None:
        """Nothing runs between turns."""


class Aider:
    """The pair programmer."""

    name = "aider"
    package = AIDER
    can = frozenset({"turns", "budget", "lines"})
    overflow_steps = 0

    def start(self, url: str, folder: Path) -> AiderConversation:
        return AiderConversation(url, folder)
