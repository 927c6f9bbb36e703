"""Two real servers for all HTTP tests, each started once: `acmserve serve` with the bundled and the scripted model."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest
from openai import OpenAI

from tests.support.server.scripted_server import FLAGS, write_model

START_SECONDS = 600


def free_port() -> int:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        return int(sock.getsockname()[1])


def wait_until_healthy(url: str, process: subprocess.Popen[bytes], log: Path) -> None:
    deadline = time.monotonic() + START_SECONDS
    while time.monotonic() < deadline:
        if process.poll() is not None:
            pytest.fail(f"server ended with code {process.returncode}:\n{log.read_text()[-4000:]}")
        try:
            if httpx.get(f"{url}/health").status_code == 200:
                return
        except httpx.TransportError:
            time.sleep(0.5)
    pytest.fail(f"server not healthy after {START_SECONDS} s:\n{log.read_text()[-4000:]}")


@contextmanager
def running_server(model: Path | str, log: Path, flags: Sequence[str], **environ: str) -> Iterator[str]:
    """`acmserve serve` in its own process; yields its base URL, without `/v1`."""
    port = free_port()
    url = f"http://127.0.0.1:{port}"
    with log.open("wb") as stream:
        process = subprocess.Popen(
            [sys.executable, "-m", "acmserve", "serve", str(model), "--port", str(port), *flags],
            stdout=stream,
            stderr=subprocess.STDOUT,
            env=os.environ | {"VLLM_CPU_KVCACHE_SPACE": "1"} | environ,
            start_new_session=True,
        )
    log.with_suffix(".pid").write_text(str(process.pid))
    try:
        wait_until_healthy(url, process, log)
        yield url
    finally:
        os.killpg(process.pid, signal.SIGTERM)
        process.wait(timeout=START_SECONDS)


@pytest.fixture(scope="session")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Base URL of a server with the bundled model."""
    log = tmp_path_factory.mktemp("server") / "server.log"
    flags = ["--max-model-len", "4096", "--min-move-tokens", "16"]
    with running_server("smollm2", log, flags) as url:
        yield url


@pytest.fixture(scope="session")
def scripted_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What the scripted server writes: `data`, `server.log`, `server.pid`."""
    return tmp_path_factory.mktemp("scripted")


@pytest.fixture(scope="session")
def scripted_server(scripted_folder: Path) -> Iterator[str]:
    """Base URL of a server whose model says what the test wrote down (see `benchmarks/models/scripted_model.py`)."""
    flags = [*FLAGS, "--data-dir", str(scripted_folder / "data")]
    with running_server(write_model(scripted_folder / "model"), scripted_folder / "server.log", flags) as url:
        yield url


@pytest.fixture(scope="session")
def client(server: str) -> Iterator[OpenAI]:
    with OpenAI(base_url=f"{server}/v1", api_key="unused", max_retries=0) as openai_client:
        yield openai_client


@pytest.fixture(scope="session")
def scripted_client(scripted_server: str) -> Iterator[OpenAI]:
    with OpenAI(base_url=f"{scripted_server}/v1", api_key="unused", max_retries=0) as openai_client:
        yield openai_client
