"""Each reason for which a background chunk goes to its end, and what passes between the processes where it does not."""

from __future__ import annotations

import subprocess
import sys
import uuid
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from vllm.v1.kv_cache_interface import FullAttentionSpec, SlidingWindowSpec

from acmserve.engine.worker.exit_rule import why_no_exit
from acmserve.engine.worker.messages import ChunkLeft
from acmserve.errors import IntegrityError
from acmserve.plan.pacing.arrival_flag import ArrivalFlag, find_flag

FACTS: dict[str, Any] = {"block_size": 32, "num_kv_heads": 2, "head_size": 64, "dtype": torch.float32}
FULL, WINDOW = FullAttentionSpec(**FACTS), SlidingWindowSpec(sliding_window=64, **FACTS)
MODEL = {"runner_type": "generate", "is_multimodal_model": False, "uses_mrope": False, "is_encoder_decoder": False}
PARALLEL = {"world_size": 1, "data_parallel_size": 1, "use_ubatching": False, "distributed_executor_backend": "mp"}


def config(
    model: dict[str, Any] | None = None,
    parallel: dict[str, Any] | None = None,
    device: str = "cpu",
    is_v2: bool = False,
    is_async: bool = False,
    mode: str = "NONE",
    speculative: object = None,
    offloading: float | None = None,
    shares_kv: bool = False,
) -> Any:
    """What `exit_rule` reads of vLLM's configuration: everything allows exits, but for what is given."""
    return SimpleNamespace(
        model_config=SimpleNamespace(**MODEL | (model or {})),
        parallel_config=SimpleNamespace(**PARALLEL | (parallel or {})),
        scheduler_config=SimpleNamespace(async_scheduling=is_async),
        device_config=SimpleNamespace(device_type=device),
        compilation_config=SimpleNamespace(mode=SimpleNamespace(name=mode)),
        use_v2_model_runner=is_v2,
        speculative_config=speculative,
        cache_config=SimpleNamespace(kv_offloading_size=offloading, kv_sharing_fast_prefill=shares_kv),
    )


def test_an_eager_model_on_one_worker_may_be_left() -> None:
    assert why_no_exit(config(), [FULL]) is None


@pytest.mark.parametrize(
    ("given", "specs", "reason"),
    [
        ({"device": "cuda"}, [FULL], "engine: device cuda"),
        ({"is_v2": True}, [FULL], "engine: model runner V2"),
        ({"is_async": True}, [FULL], "engine: steps are scheduled ahead"),
        ({"mode": "DYNAMO_TRACE_ONCE"}, [FULL], "engine: the model is compiled (DYNAMO_TRACE_ONCE)"),
        ({"parallel": {"world_size": 2}}, [FULL], "engine: 2 workers"),
        (
            {"parallel": {"distributed_executor_backend": "ray"}},
            [FULL],
            "engine: its worker is started by ray",
        ),
        ({"parallel": {"data_parallel_size": 3}}, [FULL], "engine: 3 replicas"),
        ({"parallel": {"use_ubatching": True}}, [FULL], "engine: micro-batches"),
        ({"speculative": object()}, [FULL], "engine: speculative decoding"),
        ({"offloading": 1.0}, [FULL], "engine: KV is kept in host memory"),
        ({"shares_kv": True}, [FULL], "engine: fast prefill with shared KV"),
        ({}, [FULL, WINDOW], "model: KV cache groups FullAttentionSpec and SlidingWindowSpec"),
        ({"model": {"runner_type": "pooling"}}, [FULL], "model: pooling"),
        ({"model": {"is_multimodal_model": True}}, [FULL], "model: it takes media"),
        ({"model": {"uses_mrope": True}}, [FULL], "model: it takes media"),
        ({"model": {"is_encoder_decoder": True}}, [FULL], "model: encoder and decoder"),
    ],
)
def test_each_reason_has_its_name(given: dict[str, Any], specs: list[Any], reason: str) -> None:
    assert why_no_exit(config(**given), specs) == reason


def test_another_process_sees_the_flag_and_does_not_take_it_with_it() -> None:
    flag = ArrivalFlag()
    program = (
        "from acmserve.plan.pacing.arrival_flag import ArrivalFlag; import sys;"
        "flag = ArrivalFlag(sys.argv[1]); print(flag.is_raised); flag.raise_it(); flag.close()"
    )
    run = subprocess.run([sys.executable, "-c", program, flag.name], capture_output=True, text=True, check=True)
    assert (run.stdout.split(), run.stderr) == (["False"], "")
    assert flag.is_raised
    flag.lower()
    run = subprocess.run([sys.executable, "-c", program, flag.name], capture_output=True, text=True, check=True)
    assert run.stdout.split() == ["False"]
    flag.close()
    assert not flag.is_raised, "a thread that comes late finds nothing"
    with pytest.raises(FileNotFoundError):
        ArrivalFlag(flag.name)


def test_a_process_that_is_killed_leaves_no_flag() -> None:
    program = (
        "from acmserve.plan.pacing.arrival_flag import ArrivalFlag; import sys;"
        "flag = ArrivalFlag(sys.argv[1], makes=True); flag.raise_it(); print('made', flush=True); sys.stdin.read()"
    )
    name = f"acm-{uuid.uuid4().hex[:20]}"
    command = [sys.executable, "-c", program, name]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        assert process.stdout.readline() == b"made\n"
        found = find_flag(name)
        assert found is not None
        assert found.is_raised
        found.close()
        process.kill()
        process.stderr.read()  # ends with the last process that holds it, the resource tracker
    assert find_flag(name) is None


def test_one_of_several_workers_may_not_leave() -> None:
    with pytest.raises(IntegrityError, match="one of several workers"):
        ChunkLeft("layer 3").aggregate(ChunkLeft("layer 4"))
