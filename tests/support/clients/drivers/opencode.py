"""opencode, one process a turn: `opencode run`, then `--session`. Its provider is one entry of its configuration."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tests.support.clients.conversation import Said, closed_environ, json_lines, run_client
from tests.support.clients.installed import OPENCODE
from tests.support.clients.programs.line_loop import MODEL

COMPACT_AT = 8_800
"""Tokens above which it compacts, more than its first prompt has."""


class OpencodeConversation:
    """Turns in one working folder."""

    def __init__(self, url: str, folder: Path) -> None:
        self.work = folder / "work"
        self.work.mkdir(parents=True, exist_ok=True)
        self._log = folder / "client.log"
        self._session: str | None = None
        provider = {
            "npm": "@ai-sdk/openai-compatible",
            "options": {"baseURL": f"{url}/v1", "apiKey": "unused"},
        }
        named = {"model": f"local/{MODEL}", "small_model": f"local/{MODEL}"}
        self._config = named | {"share": "disabled", "autoupdate": False, "permission": "allow"}
        self._provider: dict[str, Any] = provider
        self._write_config({})
        self._environ = closed_environ(
            folder / "home", OPENCODE_DISABLE_MODELS_FETCH="1", OPENCODE_DISABLE_LSP_DOWNLOAD="1"
        )

    def say(self, words: str) -> Said:
        command = [str(OPENCODE.program("opencode")), "run", "--format", "json", "--model", f"local/{MODEL}"]
        command += ["--session", self._session] if self._session else []
        status, output = run_client([*command, words], self.work, self._environ, self._log)
        told = json_lines(output)
        texts = [event["part"]["text"] for event in told if event.get("type") == "text"]
        counts = [event["part"]["tokens"] for event in told if event.get("type") == "step_finish"]
        self._session = next((event["sessionID"] for event in told if event.get("sessionID")), self._session)
        errors = [json.dumps(event.get("error"))[:300] for event in told if event.get("type") == "error"]
        error = errors[-1] if errors else (f"exit {status}: {output[-300:]}" if status else None)
        return Said(texts[-1] if texts else "", counts[-1]["cache"]["read"] if counts else None, error)

    def compact(self) -> None:
        """A turn with a window that the conversation is too long for."""
        self._write_config({"limit": {"context": COMPACT_AT + 1000, "output": 1000}})
        self.say("Please do errand 50: 1 steps")
        self._write_config({})

    def _write_config(self, settings: Mapping[str, Any]) -> None:
        models = {MODEL: {"name": MODEL, **settings}}
        config = self._config | {"provider": {"local": self._provider | {"models": models}}}
        (self.work / "opencode.json").write_text(json.dumps(config))

    def restart(self) -> None:
        """Every turn is a process."""

    def close(self) -> None:
        """Nothing runs between turns."""


class Opencode:
    """The agent of sst."""

    name = "opencode"
    package = OPENCODE
    can = frozenset({"tools", "turns", "sub-agent", "compaction", "usage", "budget", "steps"})
    overflow_steps = 9

    def start(self, url: str, folder: Path) -> OpencodeConversation:
        return OpencodeConversation(url, folder)
