"""Codex CLI, one process a turn: `codex exec --json`, then `resume`. Its provider is an entry of its configuration."""

from __future__ import annotations

from pathlib import Path

from tests.support.clients.conversation import Said, closed_environ, json_lines, run_client
from tests.support.clients.installed import CODEX
from tests.support.clients.programs.line_loop import MODEL

MAX_TYPED_CHARS = 100_000
"""Longer words are read, and are no argument of the command."""
COMPACT_AT = 10_000
"""Tokens above which it compacts, more than its first prompt has."""


class CodexConversation:
    """Turns in one working folder. `compact_at` is the client's own limit in tokens, which makes it compact.

    `window` is what its configuration says of the model's window, in tokens. None says nothing.
    """

    def __init__(self, url: str, folder: Path, window: int | None = None) -> None:
        self.work = folder / "work"
        self.work.mkdir(parents=True, exist_ok=True)
        self.compact_at: int | None = None
        self._log = folder / "client.log"
        self._thread: str | None = None
        home = folder / "home"
        self._environ = closed_environ(home, CODEX_HOME=str((home / "codex").resolve()), LOCAL_KEY="unused")
        (home / "codex").mkdir(exist_ok=True)
        (home / "codex" / "config.toml").write_text(
            f'model = "{MODEL}"\nmodel_provider = "local"\n'
            + ("" if window is None else f"model_context_window = {window}\n")
            + '[model_providers.local]\nname = "local"\n'
            f'base_url = "{url}/v1"\nwire_api = "responses"\nenv_key = "LOCAL_KEY"\n'
        )

    def say(self, words: str) -> Said:
        command = [str(CODEX.program("codex")), "exec", *(["resume", self._thread] if self._thread else [])]
        command += ["--json", "--skip-git-repo-check", "--dangerously-bypass-approvals-and-sandbox"]
        if self.compact_at is not None:
            command += ["-c", f"model_auto_compact_token_limit={self.compact_at}"]
        is_long = len(words) > MAX_TYPED_CHARS
        typed, words = (words, "-") if is_long else ("", words)
        status, output = run_client([*command, words], self.work, self._environ, self._log, typed)
        told = json_lines(output)
        self._thread = next((event["thread_id"] for event in told if event.get("thread_id")), self._thread)
        texts = [
            event["item"]["text"]
            for event in told
            if event.get("type") == "item.completed" and event["item"].get("type") == "agent_message"
        ]
        usage = next((event["usage"] for event in reversed(told) if event.get("usage")), {})
        errors = [
            str(event.get("message") or event.get("error"))[:300]
            for event in told
            if "error" in event or event.get("type") == "error"
        ]
        error = (errors[-1] if errors else f"exit {status}") if status else None
        return Said(texts[-1] if texts else "", usage.get("cached_input_tokens"), error)

    def compact(self) -> None:
        """A turn with a limit of its own that the conversation has passed."""
        self.compact_at = COMPACT_AT
        self.say("Please do errand 50: 1 steps")
        self.compact_at = None

    def restart(self) -> None:
        """Every turn is a process."""

    def close(self) -> None:
        """Nothing runs between turns."""


class Codex:
    """OpenAI's agent for the terminal."""

    name = "Codex CLI"
    package = CODEX
    can = frozenset({"tools", "turns", "sub-agent", "compaction", "usage", "budget", "steps"})
    overflow_steps = 20

    def start(self, url: str, folder: Path) -> CodexConversation:
        return CodexConversation(url, folder)

    def start_told(self, url: str, folder: Path, window: int) -> CodexConversation:
        return CodexConversation(url, folder, window)
