"""`acmserve bench step`: what a request *without* session pays for the plugin, in scheduler time per step.

Drives vLLM's real scheduler with and without the plugin over the same decode steps, no model and no device, so that
nothing hides the difference. The correctness gate: every run schedules exactly the same tokens for the same requests.

Not obvious: each run has a forked process of its own. Python specialises bytecode for the class it meets, and two
scheduler classes that take turns in one process would slow each other down by more than what is measured here. The
connector interface itself costs too (vLLM hands every step's block state to it), so a column between the two runs
vLLM's own scheduler with our connector: the last difference is what acmserve's code around the scheduler costs.
"""

from __future__ import annotations

import argparse
import gc
import json
import multiprocessing
import statistics
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from acmserve.bench.harness.benchmark import Benchmark

BLOCK_SIZE = 16
NUM_BLOCKS = 8192
COLUMNS = ("stock", "connector", "acmserve")
_NUM_WARMUP_STEPS = 50


@dataclass(frozen=True)
class Run:
    """Median microseconds of a step, and a digest of everything that was scheduled."""

    median_us: float
    scheduled: int


def main(argv: Sequence[str] | None = None) -> int:
    """Measure and print; exit code 1 when the schedulers disagree."""
    parser = argparse.ArgumentParser(prog="acmserve bench step", description=__doc__.split("\n")[0])
    parser.add_argument("--requests", type=int, default=64, help="running requests, none with a session (64)")
    parser.add_argument("--steps", type=int, default=400, help="measured decode steps of each run (400)")
    parser.add_argument("--rounds", type=int, default=7, help="runs of each scheduler, interleaved (7)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the numbers to FILE")
    options = parser.parse_args(argv)
    with tempfile.TemporaryDirectory() as folder:
        runs = measure(Path(folder), options.requests, options.steps, options.rounds)
    if len({run.scheduled for column in runs.values() for run in column}) != 1:
        print("RED: the schedulers did not schedule the same tokens; no time is reported")
        return 1
    report = _report(runs, options.requests, options.steps)
    if options.json:
        options.json.write_text(json.dumps(report, indent=2) + "\n", encoding="utf-8")
    return 0


def measure(folder: Path, num_requests: int, num_steps: int, num_rounds: int) -> dict[str, list[Run]]:
    """`num_rounds` runs of every column, interleaved, each in a fork of this process."""
    from acmserve.engine.plugin import entry_point as plugin

    plugin.register()
    _config(folder, with_connector=True)
    context = multiprocessing.get_context("fork")
    runs: dict[str, list[Run]] = {name: [] for name in COLUMNS}
    for _ in range(num_rounds):
        for name in COLUMNS:
            receiver, sender = context.Pipe(duplex=False)
            child = context.Process(target=_run, args=(sender, folder, name, num_requests, num_steps))
            child.start()
            sender.close()
            runs[name].append(receiver.recv())
            child.join()
    return runs


def _run(sender: Any, folder: Path, name: str, num_requests: int, num_steps: int) -> None:
    scheduler = _scheduler(folder, name)
    for request in _requests(num_requests):
        scheduler.add_request(request)
    gc.disable()
    times_us, scheduled = [], []
    for _ in range(num_steps + _NUM_WARMUP_STEPS):
        started = time.perf_counter()
        tokens = _step(scheduler)
        times_us.append(1e6 * (time.perf_counter() - started))
        scheduled.append(tuple(tokens.items()))
    # Hashes of strings differ between processes unless they are forked from one; these are.
    sender.send(Run(statistics.median(times_us[_NUM_WARMUP_STEPS:]), hash(tuple(scheduled))))


def _report(runs: dict[str, list[Run]], num_requests: int, num_steps: int) -> dict[str, Any]:
    from acmserve.bench.harness.machine import describe_machine, one_line

    machine = describe_machine()
    medians = {name: statistics.median(run.median_us for run in column) for name, column in runs.items()}
    print(f"scheduler step, {num_requests} running requests without session, {num_steps} steps a run")
    for name, column in runs.items():
        times = sorted(run.median_us for run in column)
        share = 100 * (medians[name] / medians["stock"] - 1)
        print(f"  {name:10} {medians[name]:8.1f} us  [{times[0]:.1f}, {times[-1]:.1f}]  {share:+5.1f} % beside stock")
    own = 100 * (medians["acmserve"] - medians["connector"]) / medians["stock"]
    print(f"  acmserve's own code: {own:+.1f} % of a stock step (the rest is vLLM's connector interface)")
    print(f"  {one_line(machine)}")
    return {
        "requests": num_requests,
        "steps": num_steps,
        "rounds": len(runs["stock"]),
        "median_us": {name: round(value, 2) for name, value in medians.items()},
        "runs_us": {name: [round(run.median_us, 2) for run in column] for name, column in runs.items()},
        "own_percent": round(own, 2),
        "machine": machine,
    }


def _step(scheduler: Any) -> dict[str, int]:
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


def _requests(num_requests: int) -> list[Any]:
    from vllm.sampling_params import SamplingParams
    from vllm.utils.hashing import sha256
    from vllm.v1.core.kv_cache_utils import get_request_block_hasher, init_none_hash
    from vllm.v1.request import Request

    init_none_hash(sha256)
    hasher = get_request_block_hasher(BLOCK_SIZE, sha256)
    return [
        Request(
            request_id=f"r{number}",
            prompt_token_ids=[number * 31 % 997 + token % 7 for token in range(200)],
            sampling_params=SamplingParams(max_tokens=1000, ignore_eos=True),
            pooling_params=None,
            block_hasher=hasher,
        )
        for number in range(num_requests)
    ]


def _scheduler(folder: Path, name: str) -> Any:
    import torch
    from vllm.v1.core.sched.scheduler import Scheduler
    from vllm.v1.kv_cache_interface import FullAttentionSpec, KVCacheConfig, KVCacheGroupSpec
    from vllm.v1.structured_output import StructuredOutputManager

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


BENCHMARK = Benchmark("step", "what a request without session pays for the plugin, in scheduler time per step", main)


if __name__ == "__main__":
    raise SystemExit(main())
