"""What a request *without* session pays for the plugin, in scheduler time per step: `acmserve bench micro step`.

Drives vLLM's real scheduler with and without the plugin over the same decode steps, no model and no device, so that
nothing hides the difference. The connector interface itself costs too (vLLM hands every step's block state to it). So
a column between the two runs vLLM's own scheduler with our connector: the last difference is what acmserve's code
around the scheduler costs. Each column runs in a process of its own (`main.py`), several times in turn.

A clock is too coarse for 1 % of a step. `step_instructions.py` counts instructions of the same steps.

The gate: every column schedules the tokens that a stock scheduler schedules.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

BLOCK_SIZE = 16
NUM_BLOCKS = 8192
COLUMNS = ("stock", "connector", "acmserve")
NUM_REQUESTS, NUM_STEPS, NUM_WARMUP_STEPS = 64, 400, 50


@pytest.mark.parametrize("column", COLUMNS)
def bench_step(benchmark: Any, tmp_path: Path, column: str) -> None:
    """One step after the other, on one scheduler."""
    expected = _scheduled(tmp_path, "stock", num_steps=20)
    assert _scheduled(tmp_path, column, num_steps=20) == expected
    scheduler = start_scheduler(tmp_path, column)
    benchmark.extra_info |= {"name": column, "requests": NUM_REQUESTS, "steps": NUM_STEPS}
    benchmark.pedantic(take_step, args=(scheduler,), rounds=NUM_STEPS, warmup_rounds=NUM_WARMUP_STEPS)


def _scheduled(folder: Path, column: str, num_steps: int) -> list[dict[str, int]]:
    """The first steps of a scheduler of its own."""
    scheduler = start_scheduler(folder, column)
    return [take_step(scheduler) for _ in range(num_steps)]


def start_scheduler(folder: Path, column: str) -> Any:
    """A scheduler with `NUM_REQUESTS` waiting requests. `folder` takes the configuration of a model without weights."""
    scheduler = open_scheduler(folder, column)
    for number in range(NUM_REQUESTS):
        prompt = [number * 31 % 997 + token % 7 for token in range(200)]
        scheduler.add_request(make_request(f"r{number}", prompt, max_tokens=1000))
    return scheduler


def take_step(scheduler: Any) -> dict[str, int]:
    """Schedule, and hand in what a model would have sampled. Returns the scheduled tokens of each request."""
    from vllm.v1.outputs import ModelRunnerOutput

    output = scheduler.schedule()
    request_ids = list(output.num_scheduled_tokens)
    prefilled = [r.num_computed_tokens >= r.num_tokens for r in map(scheduler.requests.__getitem__, request_ids)]
    result = ModelRunnerOutput(
        req_ids=request_ids,
        req_id_to_index={request_id: index for index, request_id in enumerate(request_ids)},
        sampled_token_ids=[[7] if done else [] for done in prefilled],
    )
    scheduler.update_from_output(output, result)
    return dict(output.num_scheduled_tokens)


def make_request(request_id: str, prompt: Sequence[int], max_tokens: int) -> Any:
    """A request without session, that ends with its last token only."""
    from vllm.sampling_params import SamplingParams
    from vllm.utils.hashing import sha256
    from vllm.v1.core.kv_cache_utils import get_request_block_hasher
    from vllm.v1.request import Request

    return Request(
        request_id=request_id,
        prompt_token_ids=list(prompt),
        sampling_params=SamplingParams(max_tokens=max_tokens, ignore_eos=True),
        pooling_params=None,
        block_hasher=get_request_block_hasher(BLOCK_SIZE, sha256),
    )


def open_scheduler(folder: Path, name: str) -> Any:
    """A scheduler of this column without requests. `folder` takes the configuration of a model without weights."""
    import torch
    from vllm.utils.hashing import sha256
    from vllm.v1.core.kv_cache_utils import init_none_hash
    from vllm.v1.core.sched.scheduler import Scheduler
    from vllm.v1.kv_cache_interface import FullAttentionSpec, KVCacheConfig, KVCacheGroupSpec
    from vllm.v1.structured_output import StructuredOutputManager

    from acmserve.engine.plugin import entry_point

    entry_point.register()
    init_none_hash(sha256)
    config = _config(folder, with_connector=name != "stock")
    spec = FullAttentionSpec(block_size=BLOCK_SIZE, num_kv_heads=1, head_size=16, dtype=torch.float32)
    kv_cache = KVCacheConfig(NUM_BLOCKS, [], [KVCacheGroupSpec(["model.layers.0.self_attn.attn"], spec)])
    chosen = config.scheduler_config.get_scheduler_cls() if name == "acmserve" else Scheduler
    return chosen(
        vllm_config=config,
        kv_cache_config=kv_cache,
        structured_output_manager=StructuredOutputManager(config),
        block_size=BLOCK_SIZE,
        log_stats=True,
    )


def _config(folder: Path, *, with_connector: bool) -> Any:
    from vllm.config import CacheConfig, DeviceConfig, KVTransferConfig, ModelConfig, SchedulerConfig, VllmConfig

    from acmserve.engine.config import engine_config

    shape = dict.fromkeys(("hidden_size", "intermediate_size", "head_dim"), 16)
    counts = dict.fromkeys(("num_hidden_layers", "num_attention_heads", "num_key_value_heads"), 1)
    sizes = {**shape, **counts, "vocab_size": 1000, "max_position_embeddings": 2048}
    text = json.dumps({"architectures": ["LlamaForCausalLM"], "model_type": "llama", **sizes})
    (folder / "config.json").write_text(text, encoding="utf-8")
    transfer = KVTransferConfig(**engine_config()["kv_transfer_config"]) if with_connector else None
    config = VllmConfig(
        model_config=ModelConfig(model=str(folder), skip_tokenizer_init=True, dtype="float32", max_model_len=2048),
        cache_config=CacheConfig(block_size=BLOCK_SIZE, enable_prefix_caching=True),
        scheduler_config=SchedulerConfig(
            max_num_seqs=512, max_num_batched_tokens=4096, max_model_len=2048, is_encoder_decoder=False
        ),
        device_config=DeviceConfig("cpu"),
        kv_transfer_config=transfer,
    )
    config.cache_config.num_gpu_blocks = NUM_BLOCKS
    return config
