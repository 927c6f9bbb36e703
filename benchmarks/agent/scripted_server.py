"""Starts a server whose model says what a script has: tools, parser, loop, scheduler and cache are the real ones.

`tiny` is a random one-layer model with SmolLM2's tokenizer, where only tokens are counted. `smollm2` has real weights,
with its window opened: text beyond its 8,192 tokens means nothing to it, which changes neither counts nor times.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from acmserve.bench.agent.scripted_agent import Trace, make_trace
from acmserve.bench.edit.exact_check import ExactCheck, check_exact, over_http
from acmserve.bench.harness.library_text import read_library
from acmserve.bench.harness.run_log import progress
from acmserve.bench.harness.server_process import HttpProcess, ServerProcess, StockProcess
from acmserve.bench.models.tiny_model import LLAMA, RECURRENT, WINDOWED, write_tiny_model
from acmserve.models.smollm2 import TOOLS_TEMPLATE, prepare

MODEL = "scripted"
TINY, SMOLLM2 = "tiny", "smollm2"
HYBRIDS = {"tiny-windows": WINDOWED, "tiny-recurrent": RECURRENT}
WINDOWS = {TINY: 131_072, SMOLLM2: 32_768} | dict.fromkeys(HYBRIDS, 131_072)
_OWN_FLAGS = {"tiny-windows": ("--block-size", "32"), "tiny-recurrent": ("--dtype", "bfloat16")}
"""Blocks smaller than a window, as on a GPU. vLLM's gated delta nets take no float32 on a CPU."""
_STOCK = ("--enable-prompt-tokens-details", "--enforce-eager", "--dtype", "float32")


@contextmanager
def scripted_server(
    model: str,
    processor: str = "scripted_model:ScriptedModel",
    *,
    is_stock: bool = False,
    engine: Mapping[str, Any] | None = None,
    more_flags: Sequence[str] = (),
) -> Iterator[tuple[str, HttpProcess]]:
    """The URL and the process of a server that is ready. `processor` is a class of `benchmarks/models`.

    `engine` holds settings of `EngineConfig`. `more_flags` are those of `acmserve serve`.
    """
    window = str(WINDOWS[model])
    flags = [
        *("--served-model-name", MODEL, "--max-model-len", window),
        *("--hf-overrides", json.dumps({"max_position_embeddings": WINDOWS[model]})),
        *("--chat-template", str(TOOLS_TEMPLATE), "--enable-auto-tool-choice", "--tool-call-parser", "hermes"),
        *("--logits-processors", f"acmserve.bench.models.{processor}"),
        *(_STOCK if is_stock else ()),
        *_OWN_FLAGS.get(model, ()),
        *(("--kv-transfer-config", json.dumps({"kv_connector_extra_config": dict(engine)})) if engine else ()),
        *more_flags,
    ]
    with tempfile.TemporaryDirectory(prefix="acmserve-bench-") as folder:
        kind = HYBRIDS.get(model, LLAMA)
        weights = prepare() if model == SMOLLM2 else write_tiny_model(Path(folder), WINDOWS[model], kind)
        progress("starting the server (about half a minute)")
        with (StockProcess if is_stock else ServerProcess)(weights, flags) as server:
            yield server.wait_ready(), server


def check_scripted(url: str, *, has_layers: bool = True) -> ExactCheck:
    """`exact` of a scripted server held against its plain requests. A model that `has_layers` has more than one."""
    from acmserve.bench.edit.main import read_text

    return check_exact(over_http(url, MODEL), read_text(prepare()), has_layers=has_layers)


def scripted_request(
    script_id: str, script: Sequence[str], max_tokens: int, session: str | None = None, **fields: Any
) -> dict[str, Any]:
    """A chat request that is answered line by line. A session has a cache salt of its own."""
    own = {} if session is None else {"session_id": session, "cache_salt": session}
    return {
        "model": MODEL,
        **own,
        "temperature": 0,
        "max_tokens": max_tokens,
        **fields,
        "vllm_xargs": {"script_id": script_id, "script": list(script)},
    }


def read_trace(num_tasks: int) -> tuple[Trace, Any]:
    """The agent's conversation, and the tokenizer that the server counts with."""
    from transformers import AutoTokenizer

    from acmserve.server.models.tokenizer import ServedTokenizer

    served = ServedTokenizer(AutoTokenizer.from_pretrained(prepare()))
    trace = make_trace(read_library(), served, num_tasks)
    progress(f"{num_tasks} tasks, {trace.num_turns} turns")
    return trace, served
