"""`acmserve serve` from its start to its end.

An engine has one process here, and one thread (`tests/conftest.py`). vLLM's worker on a CPU has a process of its own.
It imports vLLM once more, and the two wait for each other in a busy loop. That takes a third of the CPU of a server of
the bundled model. The process of the engine is a fork of the server's (`forked_engine.py`), where there is one of each.
`test_restart.py` has a server as users have it: such a worker, its threads, and a fresh interpreter for each process.
"""

from __future__ import annotations

import itertools
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import httpx
import psutil
import pytest

from tests.support import http

ONE_PROCESS = "vllm.v1.executor.uniproc_executor.UniProcExecutor"
"""The executor whose worker lives in the process of the engine core. By name: vLLM replaces `uni` on the CPU."""
START_SECONDS = 600
"""For a start, and for a step of the engine, of which vLLM gives up after 300 seconds: a busy machine is no failure."""
FLEET = bool(os.environ.get("ACMSERVE_FLEET"))
"""Whether `make fleet` runs: the long forms, with processes as users have them."""
SEVERAL = ("--api-server-count", "--data-parallel-size")
"""Flags of servers with several processes of a kind."""
_PORTS = itertools.count(os.getpid())
TINY_KV_BYTES = 2**30
"""Room for what a minute of tests leaves behind: work ahead takes no block that was in use a moment ago."""


def free_port() -> int:
    """Below what the kernel gives to others by itself, and apart for each process of xdist: it is used much later."""
    worker = int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw"))
    for number in itertools.islice(_PORTS, 500):
        port = 10_000 + 500 * (worker % 40) + number % 500
        with socket.socket() as sock, suppress(OSError):
            sock.bind(("127.0.0.1", port))
            return port
    raise AssertionError("no port is free")


def wait_until_healthy(url: str, process: subprocess.Popen[bytes], log: Path) -> None:
    deadline = time.monotonic() + START_SECONDS
    # One client, for a start asks hundreds of times.
    with httpx.Client(timeout=http.SECONDS, verify=False) as client:
        while time.monotonic() < deadline:
            if process.poll() is not None:
                pytest.fail(f"server ended with code {process.returncode}:\n{log.read_text()[-4000:]}")
            try:
                if client.get(f"{url}/health").status_code == 200:
                    return
            except httpx.TransportError:
                time.sleep(0.1)
    pytest.fail(f"server not healthy after {START_SECONDS} s:\n{log.read_text()[-4000:]}")


@dataclass(frozen=True)
class Running:
    """A server that answers. `url` has no `/v1`."""

    url: str
    process: subprocess.Popen[bytes]

    def child(self, name: str) -> psutil.Process:
        """Its process of this name: `VLLM::EngineCore`, `VLLM::Worker`."""
        children = psutil.Process(self.process.pid).children(recursive=True)
        return next(child for child in children if child.cmdline()[:1] == [name])


@contextmanager
def running_server(model: Path | str, log: Path, flags: Sequence[str], *, tiny: bool = False) -> Iterator[str]:
    """Run `acmserve serve` in its own process and yield its base URL, without `/v1`.

    Its process id stands beside its log.
    """
    with server_process(model, log, flags, tiny=tiny) as running:
        yield running.url


@contextmanager
def server_process(
    model: Path | str, log: Path, flags: Sequence[str], *, tiny: bool = False, own_worker: bool = False
) -> Iterator[Running]:
    """The same with its process, which may be dead when this ends. A server that is up ends as it should.

    With `own_worker` the worker has a process of its own, and the engine a fresh interpreter, as they have by default.
    """
    environ = {name: value for name, value in os.environ.items() if name != "VLLM_CPU_KVCACHE_SPACE"}
    environ |= {"VLLM_EXECUTE_MODEL_TIMEOUT_SECONDS": str(START_SECONDS)}
    environ |= {} if tiny else {"VLLM_CPU_KVCACHE_SPACE": "1"}
    flags = [*flags, *(["--kv-cache-memory-bytes", str(TINY_KV_BYTES)] if tiny else [])]
    flags += [] if own_worker else ["--distributed-executor-backend", ONE_PROCESS]
    is_several = any(flag in flags for flag in SEVERAL)
    is_forked = not own_worker and not (is_several and FLEET)
    if is_several and is_forked:
        counts = log.with_suffix(".metrics")
        counts.mkdir()
        environ["PROMETHEUS_MULTIPROC_DIR"] = str(counts)
    program = "tests.support.server.forked_engine" if is_forked else "acmserve"
    port = free_port()
    url = f"http://127.0.0.1:{port}"
    with log.open("wb") as stream:
        process = subprocess.Popen(
            [sys.executable, "-m", program, "serve", str(model), "--port", str(port), *flags],
            stdout=stream,
            stderr=subprocess.STDOUT,
            env=environ,
            start_new_session=True,
        )
    log.with_suffix(".pid").write_text(str(process.pid))
    try:
        wait_until_healthy(url, process, log)
        yield Running(url, process)
    finally:
        is_up = process.poll() is None
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGTERM)
        process.wait(timeout=START_SECONDS)
        if is_up:
            check_end(process.returncode, log)


def check_end(exit_code: int, log: Path) -> None:
    """A server that was asked to stop says so, and nothing of what its libraries leak."""
    said = log.read_text(errors="replace")
    assert exit_code == 0, said[-4000:]
    end = said.rpartition("shutdown triggered")[2]
    assert [line for line in end.splitlines() if "leaked" in line or "Traceback" in line] == []
