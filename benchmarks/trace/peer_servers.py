"""The servers that `bench trace` sets beside each other: how each is started, asked, and what it tells of its cache.

    exact, reuse, repair, auto   `acmserve serve`, one process for all: the fidelity is told in each request
    stock                        plain vLLM with prefix caching, without plugins
    defaults                     the same at vLLM's own defaults: its precision, and compiled
    noprefix                     plain vLLM without a cache: every prompt is computed anew
    llamacpp                     llama.cpp's server at its best, on the GGUF of the same model, as many threads
    llamacpp@defaults            the same at its own defaults. Both have its store in host memory
    http://...                   any OpenAI-compatible server that runs already. It is asked for chat completions only

Decisions: all vLLM servers but `defaults` get the same flags, float32 on a CPU, or all are at vLLM's own defaults.
llama.cpp keeps each session in a slot of its own at its best, and chooses one at its defaults.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from acmserve.bench.harness.llama_cpp import BEST, OWN_DEFAULTS, LlamaWay, server_command
from acmserve.bench.harness.server_process import HttpProcess, ServerProcess, StockProcess
from acmserve.errors import AcmError
from acmserve.plan.request import FIDELITIES

EXACT, REUSE, AUTO, STOCK, NO_PREFIX = "exact", "reuse", "auto", "stock", "noprefix"
STOCK_DEFAULTS = "defaults"
LLAMA_CPP, LLAMA_DEFAULTS = BEST.name, OWN_DEFAULTS.name
LLAMA_WAYS: Mapping[str, LlamaWay] = {way.name: way for way in (BEST, OWN_DEFAULTS)}
OURS = FIDELITIES
NAMES = (*OURS, STOCK, STOCK_DEFAULTS, NO_PREFIX, *LLAMA_WAYS)
SERVED_NAME = "bench"
_TITLES = {
    **{fidelity: f"acmserve, {fidelity}" for fidelity in OURS},
    STOCK: "vLLM, prefix caching",
    STOCK_DEFAULTS: "vLLM at its own defaults",
    NO_PREFIX: "vLLM, no cache",
    **{name: way.title for name, way in LLAMA_WAYS.items()},
}


@dataclass(frozen=True, slots=True)
class Peer:
    """One server as it is asked. `name` is one of `NAMES`, or a URL."""

    name: str

    @property
    def title(self) -> str:
        """For people."""
        return _TITLES.get(self.name, self.name)

    @property
    def process(self) -> str:
        """Peers of the same process are the same server."""
        return "acmserve" if self.name in OURS else self.name

    @property
    def is_url(self) -> bool:
        """Whether somebody else has started it."""
        return self.name.startswith(("http://", "https://"))

    @property
    def is_vllm(self) -> bool:
        """Whether it counts the tokens that the client counts, and tells those that it sampled."""
        return self.name in (*OURS, STOCK, STOCK_DEFAULTS, NO_PREFIX)

    def fields(self, session_id: str, slot: int) -> dict[str, Any]:
        """What a request has for this server beside what every OpenAI-compatible one knows."""
        if self.name in LLAMA_WAYS:
            return {"ignore_eos": True, **LLAMA_WAYS[self.name].fields(slot)}
        if not self.is_vllm:
            return {}
        # Exact and reuse share a process, and must not share KV.
        fields: dict[str, Any] = {"ignore_eos": True, "return_token_ids": True, "cache_salt": self.name}
        if self.name in OURS and session_id:
            fields |= {"session_id": session_id, "acm": {"fidelity": self.name}}
        return fields


@dataclass(frozen=True, slots=True)
class Setting:
    """What the servers are started with. `window` in tokens, for each of `num_slots` sessions at a time.

    `is_tuned`: those of vLLM compute in float32, and do not compile. `pool_bytes` is the KV cache of each of them, 0
    for `kv_gib`.
    """

    model: Path
    template: Path | None
    window: int
    num_slots: int = 1
    kv_gib: int = 3
    llama_server: Path | None = None
    gguf: Path | None = None
    is_tuned: bool = True
    pool_bytes: int = 0

    @property
    def num_threads(self) -> int:
        """Cores that every server may use."""
        return len(os.sched_getaffinity(0))


@dataclass(frozen=True, slots=True)
class Cached:
    """What a server tells of the prompt of one answer, in tokens. None where it does not.

    `fallback` is why a receipt says that less was moved than could be.
    """

    kept: int | None
    moved: int | None
    computed: int | None
    fallback: str = ""


def read_cached(peer: Peer, prompt_tokens: int, chunks: Sequence[Mapping[str, Any]]) -> Cached:
    """Look for a receipt, then for llama.cpp's timings, then for OpenAI's `cached_tokens`."""
    receipt = _last("receipt", ((chunk.get("acm") or {}) for chunk in chunks))
    if receipt is not None:
        kept, moved, computed = (receipt[f"{name}_tokens"] for name in ("kept", "moved", "computed"))
        return Cached(kept, moved, computed, receipt.get("fallback_reason") or "")
    timings = _last("timings", chunks)
    if timings is not None and "cache_n" in timings and "prompt_n" in timings:
        return Cached(timings["cache_n"], None, timings["prompt_n"])
    usage = _last("usage", chunks) or {}
    cached = (usage.get("prompt_tokens_details") or {}).get("cached_tokens")
    if type(cached) is int and peer.name not in OURS:
        return Cached(cached, 0 if peer.is_vllm else None, prompt_tokens - cached)
    return Cached(0, 0, prompt_tokens) if peer.name == NO_PREFIX else Cached(None, None, None)


def _last(name: str, objects: Iterable[Mapping[str, Any]]) -> dict[str, Any] | None:
    """The last object of this name in any of the objects."""
    return next((found[name] for found in reversed(list(objects)) if found.get(name)), None)


def start(peer: Peer, setting: Setting) -> HttpProcess:
    """Start a server of this kind. Raises AcmError where it cannot be."""
    if peer.name in LLAMA_WAYS:
        return HttpProcess(lambda port: _llama_command(setting, LLAMA_WAYS[peer.name], port), {})
    flags = _vllm_flags(peer, setting)
    kv_gib = None if setting.pool_bytes else setting.kv_gib
    if peer.name in OURS:
        return ServerProcess(setting.model, flags, kv_gib)
    if peer.name == NO_PREFIX:
        flags.append("--no-enable-prefix-caching")
    return StockProcess(setting.model, flags, kv_gib)


def _vllm_flags(peer: Peer, setting: Setting) -> list[str]:
    """On a CPU `acmserve serve` computes in float32 and eager unless it is told vLLM's own defaults."""
    from vllm.platforms import current_platform

    flags = [
        "--served-model-name",
        SERVED_NAME,
        "--max-model-len",
        str(setting.window),
        "--enable-prompt-tokens-details",
    ]
    flags += ["--hf-overrides", f'{{"max_position_embeddings": {setting.window}}}']
    if setting.pool_bytes:
        flags += ["--kv-cache-memory-bytes", str(setting.pool_bytes)]
    if setting.template is not None:
        flags += ["--chat-template", str(setting.template)]
    if current_platform.is_cpu():
        if setting.is_tuned and peer.name != STOCK_DEFAULTS:
            flags += ["--dtype", "float32", "--enforce-eager"]
        elif peer.name in OURS:
            flags += ["--dtype", "auto", "--no-enforce-eager"]
    return flags


def _llama_command(setting: Setting, way: LlamaWay, port: int) -> list[str]:
    if setting.llama_server is None or setting.gguf is None:
        raise AcmError("llama.cpp needs a server and a GGUF file")
    command = server_command(
        setting.llama_server,
        setting.gguf,
        port,
        way,
        window=setting.window,
        num_slots=setting.num_slots,
        num_threads=setting.num_threads,
    )
    return (
        [*command, "--jinja"]
        if setting.template is None
        else [*command, "--jinja", "--chat-template-file", str(setting.template)]
    )
