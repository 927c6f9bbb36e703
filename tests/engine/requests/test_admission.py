"""Requests whose KV is not a function of tokens and positions alone never become sources."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from vllm import SamplingParams
from vllm.lora.request import LoRARequest
from vllm.multimodal.inputs import MultiModalFeatureSpec, PlaceholderRange
from vllm.v1.request import Request

from acmserve.engine.requests.adapter_loads import AdapterLoads
from acmserve.engine.requests.admission import may_be_source, read_terms
from acmserve.engine.vllm.model.media_rule import MediaRule

PARAMS = SamplingParams(max_tokens=4, extra_args={"kv_transfer_params": {"acm": {"session_id": "s"}}})
IMAGE = MultiModalFeatureSpec(None, "image", "id", PlaceholderRange(offset=2, length=3))


def make_request(**fields: Any) -> Request:
    return Request("r", [5, 6, 7, 8, 9, 10], PARAMS, None, **fields)


def test_plain_text_is_a_source() -> None:
    assert may_be_source(make_request())


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({"mm_features": [IMAGE, IMAGE]}, "share a token"),
        ({"prompt_embeds": torch.zeros(6, 8)}, "embeddings"),
    ],
)
def test_what_changes_kv_is_neither_served_from_sources_nor_one(fields: dict[str, Any], reason: str) -> None:
    request = make_request(**fields)
    terms = read_terms(request, "reuse", AdapterLoads(), MediaRule())
    assert terms is not None
    assert terms.refusal is not None
    assert reason in terms.refusal
    assert not may_be_source(request)


def test_streaming_input_is_a_source_where_it_is_text_alone() -> None:
    """It is served from none. Media of later pieces were never seen."""
    text, image = (make_request(resumable=True, mm_features=media) for media in ([], [IMAGE]))
    terms = read_terms(text, "reuse", AdapterLoads(), MediaRule())
    assert terms is not None
    assert terms.refusal == "request: streaming input is not supported"
    assert may_be_source(text)
    assert not may_be_source(image)


def test_an_adapter_is_part_of_the_owner() -> None:
    loads = AdapterLoads()
    lora = LoRARequest("adapter", 1, "/nowhere")
    with_adapter = make_request(lora_request=lora)
    found = [read_terms(request, "reuse", loads, MediaRule()) for request in (with_adapter, make_request())]
    owners = [terms.owner for terms in found if terms is not None]
    assert [owner.session for owner in owners] == [("s", None)] * 2
    assert [owner.adapter for owner in owners] == [loads.of(lora)[0], None]
    assert may_be_source(with_adapter)


def test_a_model_whose_images_nobody_can_move_around_refuses_them_alone() -> None:
    rule = MediaRule(refusal="media: attention crosses to an encoder")
    image, text = (
        read_terms(make_request(mm_features=media), "reuse", AdapterLoads(), rule) for media in ([IMAGE], [])
    )
    assert image is not None
    assert text is not None
    assert (image.refusal, image.unrecorded) == (rule.refusal, True)
    assert (text.refusal, text.unrecorded) == (None, False)
