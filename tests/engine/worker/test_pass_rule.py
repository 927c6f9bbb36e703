"""Each reason for which the holes of a request take a step of their own, and the messages that carry a pass."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from vllm.config.compilation import CUDAGraphMode
from vllm.v1.kv_cache_interface import FullAttentionSpec, SlidingWindowSpec

from acmserve.engine.vllm.hooks import HolePass
from acmserve.engine.vllm.seams import PASSES_V2
from acmserve.engine.worker import pass_rule
from acmserve.engine.worker.copies import StepCopies
from acmserve.engine.worker.messages import StepMetadata
from acmserve.engine.worker.pass_rule import CHECKED, TO_CHECK, max_pass_tokens, why_not_in_rows, why_step_by_step
from acmserve.errors import IntegrityError
from tests.support.broken_seam import break_seam

FACTS: dict[str, Any] = {"block_size": 32, "num_kv_heads": 2, "head_size": 64, "dtype": torch.float32}
FULL, WINDOW = FullAttentionSpec(**FACTS), SlidingWindowSpec(sliding_window=64, **FACTS)
MODEL = {"runner_type": "generate", "is_multimodal_model": False, "uses_mrope": False, "is_encoder_decoder": False}
SCHEDULER = {
    "enable_chunked_prefill": True,
    "max_num_scheduled_tokens": None,
    "max_num_batched_tokens": 2048,
    "long_prefill_token_threshold": 0,
}


def config(
    model: dict[str, Any] | None = None,
    scheduler: dict[str, Any] | None = None,
    device: str = "cpu",
    is_v2: bool = False,
    speculative: object = None,
    use_ubatching: bool = False,
    shares_kv: bool = False,
    graphs: CUDAGraphMode = CUDAGraphMode.NONE,
) -> Any:
    """What `pass_rule` reads of vLLM's configuration: everything allows passes, but for what is given."""
    return SimpleNamespace(
        model_config=SimpleNamespace(**MODEL | (model or {})),
        scheduler_config=SimpleNamespace(**SCHEDULER | (scheduler or {})),
        device_config=SimpleNamespace(device_type=device),
        use_v2_model_runner=is_v2,
        speculative_config=speculative,
        parallel_config=SimpleNamespace(use_ubatching=use_ubatching),
        cache_config=SimpleNamespace(kv_sharing_fast_prefill=shares_kv),
        compilation_config=SimpleNamespace(cudagraph_mode=graphs),
    )


@pytest.mark.parametrize(
    "given",
    [
        {},
        {"is_v2": True},
        {"device": "cuda", "is_v2": True, "graphs": CUDAGraphMode.FULL_AND_PIECEWISE},
        {"device": "cuda", "is_v2": True, "graphs": CUDAGraphMode.FULL_DECODE_ONLY},
    ],
)
def test_nothing_keeps_the_holes_of_a_plain_model_apart(given: dict[str, Any]) -> None:
    assert why_step_by_step(config(**given), [FULL]) is None


def test_a_runner_v2_without_its_seams_takes_a_step_for_each_hole(monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch:
        break_seam(PASSES_V2[-1], patch)
        assert why_step_by_step(config(), [FULL]) is None
        reason = why_step_by_step(config(is_v2=True), [FULL])
    assert reason == "engine: model runner V2, InputBatch.input_ids is gone"


@pytest.mark.parametrize(
    ("given", "specs", "reason"),
    [
        ({"device": "xpu", "is_v2": True}, [FULL], "engine: device xpu"),
        ({"device": "cuda"}, [FULL], "engine: model runner V1 on cuda"),
        ({"is_v2": True, "graphs": CUDAGraphMode.FULL}, [FULL], "engine: CUDA graphs of whole steps"),
        ({}, [FULL, WINDOW], "model: KV cache groups FullAttentionSpec and SlidingWindowSpec"),
        ({}, [WINDOW], "model: KV cache groups SlidingWindowSpec"),
        ({"speculative": object()}, [FULL], "engine: speculative decoding"),
        ({"scheduler": {"enable_chunked_prefill": False}}, [FULL], "engine: prefill is not chunked"),
        ({"use_ubatching": True}, [FULL], "engine: micro-batches"),
        ({"shares_kv": True}, [FULL], "engine: fast prefill with shared KV"),
        ({"model": {"runner_type": "pooling"}}, [FULL], "model: pooling"),
        ({"model": {"is_multimodal_model": True}}, [FULL], "model: it takes media"),
        ({"model": {"uses_mrope": True}}, [FULL], "model: it takes media"),
        ({"model": {"is_encoder_decoder": True}}, [FULL], "model: encoder and decoder"),
    ],
)
def test_what_was_not_checked_is_off(given: dict[str, Any], specs: list[Any], reason: str) -> None:
    assert why_step_by_step(config(**given), specs) == reason


def test_a_model_with_inputs_of_its_own_is_named() -> None:
    class Own:
        get_model_state_cls = None

    assert why_not_in_rows(Own(), []) == "model: Own makes inputs of its own"


def test_another_attention_backend_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    def layer(name: str, version: int | None = None) -> Any:
        impl = SimpleNamespace(vllm_flash_attn_version=version)
        return SimpleNamespace(get_attn_backend=lambda: SimpleNamespace(get_name=lambda: name), impl=impl)

    assert why_not_in_rows(None, [layer("CPU_ATTN"), layer("CPU_ATTN")]) is None
    assert (
        why_not_in_rows(None, [layer("CPU_ATTN"), layer("FLASH_ATTN", 3)]) == "engine: attention backend FLASH_ATTN 3"
    )
    assert why_not_in_rows(None, [layer("CPU_ATTN"), layer("FLASHINFER")]) == "engine: attention backend FLASHINFER"
    assert why_not_in_rows(None, [layer("CPU_ATTN"), SimpleNamespace()]) == "engine: attention backend none"
    monkeypatch.setattr(pass_rule, "CHECKED", CHECKED | TO_CHECK)
    assert why_not_in_rows(None, [layer("FLASH_ATTN", 3)]) is None
    assert why_not_in_rows(None, [layer("FLASH_ATTN", 2)]) == "engine: attention backend FLASH_ATTN 2"


@pytest.mark.parametrize(
    ("scheduler", "size"),
    [
        ({}, 2048),
        ({"max_num_scheduled_tokens": 512}, 512),
        ({"long_prefill_token_threshold": 100}, 100),
        ({"long_prefill_token_threshold": 4096}, 2048),
    ],
)
def test_a_pass_has_as_many_tokens_as_a_chunk(scheduler: dict[str, Any], size: int) -> None:
    assert max_pass_tokens(config(scheduler=scheduler), lambda: None) == size
    assert max_pass_tokens(config(scheduler=scheduler), lambda: "engine: micro-batches") == 0


def test_a_pass_that_no_runner_laid_out_stops_the_worker() -> None:
    """A runner without our seam would compute its tokens at other positions. So the copies are not made either."""
    metadata = StepMetadata(StepCopies(passes=(HolePass("r", ((3, 5), (9, 10))),)))
    with pytest.raises(IntegrityError, match="passes: 1 of this step are not in the runner's batch"):
        metadata.check_laid_out()
    metadata.is_laid_out = True
    metadata.check_laid_out()
    StepMetadata(StepCopies()).check_laid_out()
