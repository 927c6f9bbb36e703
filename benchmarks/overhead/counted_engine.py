"""Requests of an engine from their arrival to their end, for Valgrind to count.

    arrival, schedule, update   the part `scheduler`, with the connector's half there
    execute_model, sample       the part `worker`, with the connector's half there and what vLLM calls in each layer

vLLM's own `EngineCore` runs with its worker in this process. `small` has as many layers as SmolLM2 and hardly anything
in them. So what a step pays beside the arithmetic is not lost in it. `real` is SmolLM2 itself, for what the forward
pass of a small real model takes.

Prints the tokens of every step as a line of JSON.
"""

from __future__ import annotations

import gc
import json
import os
from collections.abc import Callable
from typing import Any

from acmserve.bench.micro.instructions import counting
from acmserve.bench.overhead.server_args import parse_server_args

PROMPT_TOKENS, ANSWER_TOKENS, WARMUP_TOKENS = 1000, 100, 20
SMALL, REAL = "small", "real"
SCHEDULER, WORKER = "scheduler", "worker"
_SMALL = {
    "hidden_size": 64,
    "intermediate_size": 64,
    "num_attention_heads": 2,
    "num_key_value_heads": 2,
    "head_dim": 32,
}
_FLAGS = {
    SMALL: ("--hf-overrides", json.dumps(_SMALL), "--load-format", "dummy"),
    REAL: (),
}
_NUM_VOCABULARY = 40_000


def main(column: str, model: str, number: str) -> None:
    """Warm up with a round of short answers, then count another one. So many requests arrive at once."""
    num_requests = int(number)
    os.environ |= {"VLLM_CPU_OMP_THREADS_BIND": "nobind", "VLLM_CPU_NUM_OF_RESERVED_CPU": "0"}
    core = _start(column, model)
    scheduled = [_serve(core, num_requests, WARMUP_TOKENS, lambda part: None)]
    gc.collect()
    gc.disable()
    with counting() as end_part:
        scheduled.append(_serve(core, num_requests, ANSWER_TOKENS, end_part))
    print(json.dumps(scheduled))


def _start(column: str, model: str) -> Any:
    from vllm.engine.arg_utils import AsyncEngineArgs
    from vllm.plugins import load_general_plugins
    from vllm.v1.engine.core import EngineCore
    from vllm.v1.executor.uniproc_executor import UniProcExecutor

    flags = ("--max-model-len", "2048", "--max-num-seqs", "64", "--kv-cache-memory-bytes", str(2**30))
    args = parse_server_args(column, *flags, *_FLAGS[model])
    load_general_plugins()
    config = AsyncEngineArgs.from_cli_args(args).create_engine_config()
    return EngineCore(config, UniProcExecutor, log_stats=True)


def _serve(core: Any, num_requests: int, num_tokens: int, end_part: Callable[[str], None]) -> list[dict[str, int]]:
    """Requests from their arrival to their end, `num_tokens` of its answer each. Returns what each step scheduled."""
    executor, scheduled = core.model_executor, []

    def execute_model(scheduler_output: Any, non_block: bool = False) -> Any:
        scheduled.append(dict(scheduler_output.num_scheduled_tokens))
        end_part(SCHEDULER)
        future = type(executor).execute_model(executor, scheduler_output, non_block=non_block)
        end_part(WORKER)
        return future

    def sample_tokens(grammar_output: Any, non_block: bool = False) -> Any:
        end_part(SCHEDULER)
        output = type(executor).sample_tokens(executor, grammar_output, non_block=non_block)
        end_part(WORKER)
        return output

    vars(executor).update(execute_model=execute_model, sample_tokens=sample_tokens)
    for number in range(num_requests):
        core.add_request(*core.preprocess_add_request(_request(number, num_tokens)))
    while core.scheduler.has_unfinished_requests():
        _, was_executed = core.step_fn()
        core.post_step(was_executed)
    end_part(SCHEDULER)
    return scheduled


def _request(number: int, num_tokens: int) -> Any:
    from vllm.sampling_params import SamplingParams
    from vllm.v1.engine import EngineCoreRequest

    # No request finds another one's prompt in the cache.
    seed = 7919 * number + num_tokens
    sampling = SamplingParams(temperature=0.0, max_tokens=num_tokens, ignore_eos=True)
    return EngineCoreRequest(
        request_id=f"{number} of {num_tokens} tokens",
        prompt_token_ids=[1 + (seed + 31 * place) % _NUM_VOCABULARY for place in range(PROMPT_TOKENS)],
        mm_features=None,
        sampling_params=sampling,
        pooling_params=None,
        arrival_time=0.0,
        lora_request=None,
        cache_salt=None,
        data_parallel_rank=None,
    )
