"""Qwen Code, one process a turn: `qwen -p`, then `--continue`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tests.support.clients.conversation import Said, closed_environ, json_lines, run_client
from tests.support.clients.installed import QWEN_CODE
from tests.support.clients.programs.line_loop import MODEL


class QwenCodeConversation:
    """Turns in one working folder."""

    def __init__(self, url: str, folder: Path) -> None:
        self.work = folder / "work"
        self.work.mkdir(parents=True, exist_ok=True)
        self._log = folder / "client.log"
        self._has_begun = False
        self._environ = closed_environ(
            folder / "home",
            OPENAI_BASE_URL=f"{url}/v1",
            OPENAI_API_KEY="unused",
            OPENAI_MODEL=MODEL,
            QWEN_TELEMETRY_ENABLED="false",
        )

    def say(self, words: str) -> Said:
        command = [str(QWEN_CODE.program("qwen")), "--auth-type", "openai", "--yolo", "--output-format", "json"]
        command += ["--continue"] if self._has_begun else []
        status, output = run_client([*command, "-p", words], self.work, self._environ, self._log)
        self._has_begun = True
        told: list[Any] = [
            event for line in json_lines(output) for event in (line if isinstance(line, list) else [line])
        ]
        result = next((event for event in reversed(told) if event.get("type") == "result"), None)
        if result is None:
            return Said("", error=f"exit {status}: {output[-300:]}")
        error = str(result.get("error") or result.get("result"))[:300] if result.get("is_error") else None
        return Said(str(result.get("result") or ""), (result.get("usage") or {}).get("cache_read_input_tokens"), error)

    def compact(self) -> None:
        self.say("/compress")

    def restart(self) -> None:
        """Every turn is a process."""

    def close(self) -> None:
        """Nothing runs between turns."""


class QwenCode:
    """Qwen's agent for the terminal."""

    name = "Qwen Code"
    package = QWEN_CODE
    can = frozenset({"tools", "turns", "sub-agent", "compaction", "usage", "budget", "steps"})
    overflow_steps = 28

    def start(self, url: str, folder: Path) -> QwenCodeConversation:
        return QwenCodeConversation(url, folder)
