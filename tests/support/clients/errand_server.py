"""The server of the client matrix: `acmserve serve` with the model that does errands, and a stock one beside it.

One layer: moved KV is exact there, so `reuse` answers as `exact` does. The window holds the prompts of real clients,
which begin with up to 40,000 of its tokens.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path

from acmserve.bench.harness.server_process import StockProcess
from acmserve.bench.models.tiny_model import write_tiny_model
from acmserve.models.smollm2 import TOOLS_TEMPLATE
from tests.support.server.running_server import running_server

MODEL = "errands"
WINDOW = 65_536
SAME_FLAGS = (
    *("--served-model-name", MODEL, "--max-model-len", str(WINDOW)),
    *("--enable-auto-tool-choice", "--tool-call-parser", "hermes", "--chat-template", str(TOOLS_TEMPLATE)),
    *("--logits-processors", "tests.support.clients.errand_model:ErrandModel"),
)
WANTED = (("--infer-sessions",), ("--model-alias", f"*={MODEL}"))
"""Flags of the goal. A server without one of them starts all the same, and the matrix shows what fails then."""


@cache
def own_help() -> str:
    """What `acmserve serve --help` says."""
    command = [sys.executable, "-m", "acmserve", "serve", "--help"]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


def own_flags(*, infers: bool = True) -> list[str]:
    """The flags of our server that a user of unmodified clients sets. Without `infers` it finds only what is named."""
    left = WANTED if infers else WANTED[1:]
    wanted = [part for flag in left if flag[0] in own_help() for part in flag]
    return [*SAME_FLAGS, "--fidelity", "reuse", "--min-move-tokens", "16", *wanted]


def write_model(folder: Path) -> Path:
    """Save the tiny model, with the whole window."""
    return write_tiny_model(folder, WINDOW)


@contextmanager
def errand_server(model: Path, log: Path, *, infers: bool = True) -> Iterator[str]:
    """Our server. Yields its base URL, without `/v1`."""
    with running_server(model, log, own_flags(infers=infers), tiny=True) as url:
        yield url


@contextmanager
def stock_server(model: Path) -> Iterator[str]:
    """vLLM's own server with the same model and flags."""
    flags = [*SAME_FLAGS, "--enable-prompt-tokens-details", "--enforce-eager", "--dtype", "float32"]
    with StockProcess(model, flags, kv_gib=1) as server:
        yield server.wait_ready()
