"""An engine in this process whose background requests are stepped by hand, and what is asked of it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from vllm import SamplingParams
from vllm.inputs import TokensPrompt

from acmserve.plan.pacing.arrival_flag import ArrivalFlag, server_flag_name
from tests.support.engine.edits import Tokens, cut, text
from tests.support.engine.engine import TINY_SETTINGS, Answer, Engine, scheduler_of, start_engine
from tests.support.engine.tiny_model import TWO_LAYERS

HISTORY = text(900, "history")
FOLDED = cut(HISTORY, 200, 500, text(11, "marker"))
NEW, STRANGER = text(23, "new"), text(300, "stranger")
BLOCK_SIZE, CHUNK = 32, 256
EXACT = 1e-3
"""Rounding: what the same tokens differ by when they are prefilled in other chunks."""


@contextmanager
def precomputing(folder: Path) -> Iterator[Engine]:
    """An engine whose chunks wait for nobody and may be left: its first step of all is over.

    The server's flag is there, lowered. An engine looks for it once, in front of its first chunk.
    """
    pacing = {"precompute_chunk_s": 3600, "precompute_quiet_s": 0, "precompute_delay_share": 1}
    plugin = {"precompute_chunk_tokens": CHUNK, **pacing}
    settings = TINY_SETTINGS | {"block_size": BLOCK_SIZE, "kv_cache_memory_bytes": 2**27}
    with start_engine(TWO_LAYERS.write(folder), plugin=plugin, own_process=False, **settings) as started:
        config: Any = started.llm.llm_engine.vllm_config
        flag = ArrivalFlag(server_flag_name(config.kv_transfer_config.engine_id), makes=True)
        started.ask(NEW, salt="the first step of all")
        yield started
        flag.close()


def send(engine: Engine, name: str, tokens: Tokens, salt: str, *, precompute: bool, max_tokens: int = 1) -> None:
    """Queue a request. Nothing runs yet."""
    extra = {"kv_transfer_params": {"acm": {"session_id": "s", "precompute": True}}} if precompute else None
    params = SamplingParams(temperature=0, max_tokens=max_tokens, ignore_eos=True, extra_args=extra)
    engine.llm.llm_engine.add_request(name, TokensPrompt(prompt_token_ids=tokens, cache_salt=salt), params)


def run_step(engine: Engine) -> dict[str, Any]:
    """One step of the engine: the requests that finished in it, by name."""
    return {output.request_id: output for output in engine.llm.llm_engine.step() if output.finished}


def run_all(engine: Engine) -> dict[str, Any]:
    finished: dict[str, Any] = {}
    while engine.llm.llm_engine.has_unfinished_requests():
        finished |= run_step(engine)
    return finished


def receipt_of(answer: Answer) -> dict[str, Any]:
    assert answer.receipt is not None
    return answer.receipt


def num_used_blocks(engine: Engine) -> int:
    pool = scheduler_of(engine).kv_cache_manager.block_pool
    return int(pool.num_gpu_blocks - 1 - pool.get_num_free_blocks())


def position_of(engine: Engine, name: str) -> int:
    requests = scheduler_of(engine).requests.values()
    return int(next(r.num_computed_tokens for r in requests if r.request_id.startswith(name)))
