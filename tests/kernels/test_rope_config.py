"""What a configuration alone says of its positions, for `acmserve doctor`; refusals by name."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from acmserve.engine.worker.rope_check import describe_config
from acmserve.errors import MoveRefused


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        (
            {"rope_parameters": {"rope_type": "default", "rope_theta": 10_000}},
            "rotary embedding, 64 of 64 dimensions turn, no scaling",
        ),
        (
            {"rope_scaling": {"type": "linear", "factor": 2.0}},
            "rotary embedding, 64 of 64 dimensions turn, linear scaling",
        ),
        (
            {"rope_theta": 10_000, "partial_rotary_factor": 0.25},
            "rotary embedding, 16 of 64 dimensions turn, no scaling",
        ),
        (
            {"rope_parameters": {"rope_type": "longrope", "rope_theta": 1e4}},
            "rotary embedding, 64 of 64 dimensions turn, longrope scaling",
        ),
        (
            {"rope_parameters": {"rope_type": "default", "mrope_section": [8, 12, 12]}},
            "rotary embedding, 64 of 64 dimensions turn, no scaling, three positions per token (text only)",
        ),
    ],
)
def test_describe_config(fields: dict[str, Any], expected: str) -> None:
    config = SimpleNamespace(hidden_size=512, num_attention_heads=8, **fields)
    assert describe_config(config) == expected


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({"rope_parameters": {"rope_type": "dynamic", "factor": 2.0}}, "rope: dynamic NTK is not additive"),
        ({"rope_parameters": {"rope_type": "bailing_mrope"}}, "rope: this form of mrope is not supported"),
        ({"rope_parameters": {"rope_type": "spiral"}}, "rope: unknown type spiral"),
        ({"alibi": True}, "positions: alibi"),
        ({"kv_lora_rank": 512}, "rope: multi-head latent attention is not supported"),
        ({}, "positions: the configuration names no rotary embedding"),
        (
            {"layer_types": ["full_attention", "sliding_attention"], "rope_theta": 1e4},
            "model: layers of kind sliding_attention",
        ),
    ],
)
def test_describe_config_refuses_by_name(fields: dict[str, Any], reason: str) -> None:
    config = SimpleNamespace(hidden_size=512, num_attention_heads=8, **fields)
    with pytest.raises(MoveRefused) as refused:
        describe_config(config)
    assert refused.value.reason == reason
