"""Requests whose KV is not a function of tokens and positions alone never become sources."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from vllm import SamplingParams
from vllm.lora.request import LoRARequest
from vllm.multimodal.inputs import MultiModalFeatureSpec, PlaceholderRange
from vllm.v1.request import Request

from acmserve.engine.requests.admission import may_be_source, read_terms

PARAMS = SamplingParams(max_tokens=4, extra_args={"kv_transfer_params": {"acm": {"session_id": "s"}}})
IMAGE = MultiModalFeatureSpec(None, "image", "id", PlaceholderRange(offset=2, length=3))


def make_request(**fields: Any) -> Request:
    return Request("r", [5, 6, 7, 8, 9, 10], PARAMS, None, **fields)


def test_plain_text_is_a_source() -> None:
    assert may_be_source(make_request())


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({"lora_request": LoRARequest("adapter", 1, "/nowhere")}, "LoRA"),
        ({"mm_features": [IMAGE]}, "multimodal"),
        ({"prompt_embeds": torch.zeros(6, 8)}, "embeddings"),
    ],
)
def test_what_changes_kv_is_neither_served_from_sources_nor_one(fields: dict[str, Any], reason: str) -> None:
    request = make_request(**fields)
    terms = read_terms(request, "reuse")
    assert terms is not None
    assert terms.refusal is not None
    assert reason in terms.refusal
    assert not may_be_source(request)
