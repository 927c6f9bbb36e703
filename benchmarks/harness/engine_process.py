"""A process of its own with a pipe, and a `LocalEngine` in one: two engines share nothing but the machine.

The caller asks and waits, so only one of the processes computes at a time. Both inherit the same environment and with
it the same number of threads. An idle engine's threads sleep. Errors of the child arrive as AcmError in the caller.
"""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable, Mapping, Sequence
from multiprocessing.connection import Connection
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from acmserve.bench.harness.engine import Ask, EngineReply, LocalEngine, PlayedSessions
from acmserve.bench.harness.run_log import RUN
from acmserve.errors import AcmError

_STOP_SECONDS = 30.0


class PipedProcess:
    """A function with an end of a pipe and what else it is told. Starts at once. Leaving the `with` block stops it."""

    def __init__(self, serve: Callable[..., None], *told: object) -> None:
        spawn = multiprocessing.get_context("spawn")
        self._pipe, other_end = spawn.Pipe()
        self._process = spawn.Process(target=serve, args=(other_end, *told), daemon=True)
        self._process.start()
        other_end.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    def receive(self) -> Any:
        """What it sent. Raises AcmError where it sent one, or ended."""
        try:
            received = self._pipe.recv()
        except EOFError:
            self._process.join(_STOP_SECONDS)
            raise AcmError(f"the engine process ended (exit code {self._process.exitcode})") from None
        if isinstance(received, AcmError):
            raise received
        return received

    def close(self) -> None:
        """Let the process end by itself, or end it when it does not."""
        self._pipe.close()
        self._process.join(_STOP_SECONDS)
        if self._process.is_alive():
            self._process.terminate()
            self._process.join()


class EngineProcess(PipedProcess):
    """`wait_ready` returns when the engine answers."""

    def __init__(
        self, model: Path, with_acmserve: bool, kv_gib: int = 2, settings: Mapping[str, Any] | None = None
    ) -> None:
        super().__init__(_serve, model, with_acmserve, kv_gib, settings or {})

    def wait_ready(self) -> None:
        """Raises AcmError when the engine could not start."""
        self.receive()

    def ask(self, ask: Ask) -> EngineReply:
        """One request, answered before this returns."""
        self._pipe.send(ask)
        reply: EngineReply = self.receive()
        RUN.answered(reply.first_token_s, reply.receipt, fidelity=ask.fidelity)
        return reply

    def play(self, sessions: Sequence[Sequence[Ask]]) -> PlayedSessions:
        """Sessions side by side, all answered before this returns."""
        self._pipe.send(tuple(map(tuple, sessions)))
        played: PlayedSessions = self.receive()
        for asks, replies in zip(sessions, played.replies, strict=True):
            for ask, reply in zip(asks, replies, strict=True):
                RUN.answered(reply.first_token_s, reply.receipt, fidelity=ask.fidelity, session_id=ask.session_id)
        return played


def _serve(pipe: Connection, model: Path, with_acmserve: bool, kv_gib: int, settings: Mapping[str, Any]) -> None:
    try:
        engine = LocalEngine(model, with_acmserve, kv_gib, **settings)
    except AcmError as error:
        pipe.send(error)
        return
    reply: object = "ready"
    while True:
        try:
            pipe.send(reply)
            asked = pipe.recv()
        except (ConnectionError, EOFError):  # the caller has closed its end, maybe while a request was answered
            engine.close()
            return
        reply = engine.ask(asked) if isinstance(asked, Ask) else engine.play(asked)
