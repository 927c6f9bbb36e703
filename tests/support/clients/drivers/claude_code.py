"""Claude Code, one process a turn: `claude -p`, then `--resume`. `/compact` is a turn of its own."""

from __future__ import annotations

from pathlib import Path

from tests.support.clients.conversation import Said, closed_environ, json_lines, run_client
from tests.support.clients.installed import CLAUDE_CODE
from tests.support.clients.programs.line_loop import MODEL

COMPACT = "/compact"


class ClaudeCodeConversation:
    """Turns in one working folder. The session's id is the client's own."""

    def __init__(self, url: str, folder: Path) -> None:
        self.work = folder / "work"
        self.work.mkdir(parents=True, exist_ok=True)
        self._log = folder / "client.log"
        self._session: str | None = None
        self._environ = closed_environ(
            folder / "home",
            ANTHROPIC_BASE_URL=url,
            ANTHROPIC_API_KEY="unused",
            CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC="1",
            IS_SANDBOX="1",
        )

    def say(self, words: str) -> Said:
        command = [str(CLAUDE_CODE.program("claude")), "-p", "--model", MODEL, "--output-format", "json"]
        command += ["--dangerously-skip-permissions", *(["--resume", self._session] if self._session else [])]
        status, output = run_client([*command, words], self.work, self._environ, self._log)
        told = json_lines(output)[-1:]
        if not told:
            return Said("", error=f"exit {status}: {output[-300:]}")
        last = told[0][-1] if isinstance(told[0], list) else told[0]
        self._session = last.get("session_id") or self._session
        error = str(last.get("result"))[:300] if last.get("is_error") or status else None
        return Said(str(last.get("result") or ""), (last.get("usage") or {}).get("cache_read_input_tokens"), error)

    def compact(self) -> None:
        self.say(COMPACT)

    def restart(self) -> None:
        """Every turn is a process."""

    def close(self) -> None:
        """Nothing runs between turns."""


class ClaudeCode:
    """Anthropic's agent for the terminal."""

    name = "Claude Code"
    package = CLAUDE_CODE
    can = frozenset({"tools", "turns", "sub-agent", "compaction", "git status", "usage", "budget", "steps"})
    overflow_steps = 8

    def start(self, url: str, folder: Path) -> ClaudeCodeConversation:
        return ClaudeCodeConversation(url, folder)
