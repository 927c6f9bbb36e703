"""What other processes and the kernel do to a server."""

from __future__ import annotations

import resource
import sqlite3
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import psutil

from tests.support import http
from tests.support.server.running_server import Running
from tests.support.server.scripted_server import MODEL


@contextmanager
def locked_file(file: Path) -> Iterator[None]:
    """Another process writes to the sessions' file, and does not come to an end."""
    other = sqlite3.connect(file, isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    try:
        yield
    finally:
        other.close()


@contextmanager
def full_disk(pid: int) -> Iterator[None]:
    """No file of this process may grow beyond 4,096 bytes: what the kernel says of a full disk, for one process."""
    before = resource.prlimit(pid, resource.RLIMIT_FSIZE)
    resource.prlimit(pid, resource.RLIMIT_FSIZE, (4096, before[1]))
    try:
        yield
    finally:
        resource.prlimit(pid, resource.RLIMIT_FSIZE, before)


def killed_in_mid_stream(running: Running, victim: psutil.Process, body: dict[str, Any], num_events: int) -> list[str]:
    """Kill a process of the server while it streams. Returns what its client reads, to the end or the break."""
    lines: list[str] = []
    body = {"model": MODEL, "max_tokens": 4000, "stream": True, **body}
    try:
        with httpx.stream("POST", f"{running.url}/v1/chat/completions", json=body, timeout=http.SECONDS) as answer:
            assert answer.status_code == 200, answer.read()
            for line in answer.iter_lines():
                lines += [line] if line else []
                if len(lines) == num_events:
                    victim.kill()
    except httpx.RemoteProtocolError:
        lines.append("broken off")
    return lines


def until_gone(processes: Sequence[psutil.Process]) -> None:
    """Wait until all of them have ended."""
    end = time.monotonic() + http.SECONDS
    while left := [process for process in processes if process.is_running() and process.status() != "zombie"]:
        assert time.monotonic() < end, f"still there: {left}"
        time.sleep(0.1)
