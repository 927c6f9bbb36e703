"""A server in a process of its own, for benchmarks that talk HTTP. Leaving the `with` block stops it.

Its output goes to a log whose end is told when the server does not start. All that run are known here, so that a
benchmark which is ended can stop them (`ending.py`).
"""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Self

import httpx
import psutil

from acmserve.bench.provenance.machine_use import ended_kept
from acmserve.errors import AcmError

# The same for every server. On a CPU vLLM keeps one core for its scheduler and another where there is a KV connector,
# unless that leaves none: on two cores that is one thread for a stock server and two for ours, so all compute on all
# cores. Threads that spin while they wait would take these from the HTTP server and from the client.
_SAME = {"VLLM_CPU_NUM_OF_RESERVED_CPU": "0", "OMP_WAIT_POLICY": "passive", "HF_HUB_OFFLINE": "1"}
# On a CPU vLLM lets this override --kv-cache-memory-bytes.
_KV_SPACE = "VLLM_CPU_KVCACHE_SPACE"
_START_SECONDS = 600.0
_STOP_SECONDS = 60.0
_RUNNING: set[HttpProcess] = set()


def stop_servers() -> None:
    """Ask every server of this process to stop."""
    for server in tuple(_RUNNING):
        server.stop()


def end_servers() -> None:
    """Wait until no server of this process runs."""
    stop_servers()
    for server in tuple(_RUNNING):
        server.end()


class HttpProcess:
    """A command that serves HTTP on the port it is given, and answers /health with 200 when it is ready.

    Starts at once. `wait_ready` returns the base URL when the server answers. Of `environ` None takes a variable out.
    """

    def __init__(self, command: Callable[[int], Sequence[str]], environ: Mapping[str, str | None]) -> None:
        with socket.socket() as sock:
            sock.bind(("127.0.0.1", 0))
            port = sock.getsockname()[1]
        self._url = f"http://127.0.0.1:{port}"
        self._log = Path(tempfile.mkdtemp(prefix="acmserve-bench-")) / "server.log"
        with self._log.open("wb") as stream:
            self._process = subprocess.Popen(
                list(command(port)),
                stdout=stream,
                stderr=subprocess.STDOUT,
                env={name: value for name, value in {**os.environ, **_SAME, **environ}.items() if value is not None},
                start_new_session=True,
            )
        self._is_asked_to_stop = False
        _RUNNING.add(self)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.end()

    def stop(self) -> None:
        """Ask it to stop, once, and do not wait. A second signal could interrupt its end."""
        if not self._is_asked_to_stop and self._process.poll() is None:
            self._is_asked_to_stop = True
            with suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGTERM)

    def end(self) -> None:
        """Stop it, and kill what goes on."""
        with ended_kept():
            self.stop()
            try:
                self._process.wait(timeout=_STOP_SECONDS)
            except subprocess.TimeoutExpired:
                os.killpg(self._process.pid, signal.SIGKILL)
                self._process.wait()
        _RUNNING.discard(self)

    def wait_ready(self) -> str:
        """Raises AcmError with the end of the server's log when it does not start."""
        deadline = time.monotonic() + _START_SECONDS
        while time.monotonic() < deadline and self._process.poll() is None:
            try:
                if httpx.get(f"{self._url}/health").status_code == 200:
                    return self._url
            except httpx.TransportError:
                time.sleep(0.5)
        raise AcmError(f"the server did not start; the end of its log:\n{self._log.read_text()[-3000:]}")

    @property
    def pid(self) -> int:
        """Of its first process."""
        return self._process.pid

    def cpu_seconds(self) -> float:
        """What the server and its engine have computed so far, on all cores."""
        server = psutil.Process(self._process.pid)
        times = [process.cpu_times() for process in (server, *server.children(recursive=True))]
        return sum(time.user + time.system for time in times)


class ServerProcess(HttpProcess):
    """`acmserve serve MODEL` with these flags.

    Nothing is precomputed unless a flag or a request says so. What a server does by itself would be in every result.
    `kv_gib` None: the flags say how much KV there is.
    """

    def __init__(self, model: Path, flags: Sequence[str], kv_gib: int | None = 3) -> None:
        super().__init__(
            lambda port: [
                *(sys.executable, "-m", "acmserve", "serve", str(model), "--port", str(port)),
                *("--precompute", "off", *flags),
            ],
            _kv_space(kv_gib),
        )


class StockProcess(HttpProcess):
    """vLLM's own server with these flags, without any plugin. `kv_gib` as above."""

    def __init__(self, model: Path, flags: Sequence[str], kv_gib: int | None = 3) -> None:
        command = [sys.executable, "-m", "vllm.entrypoints.openai.api_server", "--model", str(model)]
        super().__init__(
            lambda port: [*command, "--port", str(port), *flags],
            {"VLLM_PLUGINS": "", **_kv_space(kv_gib)},
        )


def _kv_space(kv_gib: int | None) -> dict[str, str | None]:
    return {_KV_SPACE: None if kv_gib is None else str(kv_gib)}
