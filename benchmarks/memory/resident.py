"""The memory of a server's processes: what it takes after its start, and behind a conversation.

Counted are anonymous and shared pages, `Pss_Anon` and `Pss_Shmem` of Linux, over all processes of the server. Pages of
files are left out: whoever else runs the same libraries shares them, so their share is none of the server's doing.
KV blocks are in it once they are written. The control holds some memory more and has to see it.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path

import httpx
import psutil

from acmserve.bench.harness.server_process import HttpProcess, ServerProcess, StockProcess
from acmserve.bench.memory.conversation import MemoryTurn
from acmserve.bench.memory.pool_watch import EXACT, STOCK
from acmserve.errors import AcmError

SERVED = (STOCK, EXACT, "reuse")
BALLAST_BYTES = 64 * 2**20
_COUNTED = ("Pss_Anon:", "Pss_Shmem:")
_KV_GIB = 2
_SECONDS = 900.0


def own_bytes(pids: Sequence[int]) -> int:
    """Bytes of memory of their own that these processes have. Raises AcmError where Linux does not tell."""
    total = 0
    for pid in pids:
        try:
            lines = Path(f"/proc/{pid}/smaps_rollup").read_text(encoding="ascii").splitlines()
        except OSError as error:
            raise AcmError(f"the memory of process {pid} cannot be read: {error}") from error
        total += sum(1024 * int(line.split()[1]) for line in lines if line.startswith(_COUNTED))
    return total


def see_ballast() -> int:
    """How many bytes more a process has while it holds `BALLAST_BYTES`. One of its own: nothing else goes on in it."""
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as pool:
        return pool.submit(_hold_ballast).result()


def _hold_ballast() -> int:
    before = own_bytes([os.getpid()])
    ballast = bytearray(b"\1") * BALLAST_BYTES
    seen = own_bytes([os.getpid()]) - before
    assert len(ballast) == BALLAST_BYTES
    return seen


def serve_way(name: str, folder: Path, turns: Sequence[MemoryTurn]) -> tuple[int, int]:
    """Bytes of a server when it is ready, and behind all turns. Raises AcmError where it answers none of them."""
    flags = ["--served-model-name", "bench", "--dtype", "float32", "--enforce-eager"]
    kind = StockProcess if name == STOCK else ServerProcess
    with kind(folder, flags, _KV_GIB) as server:
        url = server.wait_ready()
        ready = own_bytes(_processes(server))
        for turn in turns:
            _complete(url, name, turn)
        return ready, own_bytes(_processes(server))


def _processes(server: HttpProcess) -> list[int]:
    first = psutil.Process(server.pid)
    return [first.pid, *(child.pid for child in first.children(recursive=True))]


def _complete(url: str, name: str, turn: MemoryTurn) -> None:
    body = {"model": "bench", "prompt": list(turn.prompt), "max_tokens": 1, "temperature": 0}
    if name != STOCK:
        body |= {"session_id": f"memory-{name}", "acm": {"fidelity": name}}
    try:
        httpx.post(f"{url}/v1/completions", json=body, timeout=_SECONDS, trust_env=False).raise_for_status()
    except httpx.HTTPError as error:
        raise AcmError(f"{name} did not answer a prompt of {len(turn.prompt)} tokens: {error}") from error
