"""Whether the server ended because its engine died. vLLM ends such a server as it ends one that was asked to stop.

    asked to stop    engine client is shut down, then the app ends      exit code 0
    engine died      the app ends                                       exit code 1, and a line that says what to do

A supervisor that restarts what failed looks at the exit code. Where a signal stops all processes at once, the engine
may be gone first. That the client was shut down tells that the stop was asked for. vLLM's log calls that end an error,
which is left out then. Does not know why an engine died.
"""

from __future__ import annotations

from typing import Any

from fastapi import FastAPI

from acmserve.server.vllm.taps import before_shutdown, leave_out_engine_end


class EngineDeath:
    """What one process saw of its engine."""

    def __init__(self) -> None:
        self.has_died = False
        self._is_asked = False

    def watch(self, client: Any) -> None:
        """Hear when this engine client is asked to stop."""
        before_shutdown(client, self._ask)

    async def look(self, app: FastAPI) -> None:
        """The app ends: did it have to?"""
        client = getattr(app.state, "engine_client", None)
        self.has_died = client is not None and client.errored and not self._is_asked

    def _ask(self) -> None:
        self._is_asked = True
        leave_out_engine_end()


ENGINE_DEATH = EngineDeath()
"""That of this process. vLLM makes the app, and `acmserve serve` asks when vLLM has returned."""
