"""Media in prompts: one item, one id, and never an id for two."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from vllm.multimodal.inputs import MultiModalFeatureSpec, PlaceholderRange

from acmserve.engine.requests.media_ids import MediaIds, overlap
from acmserve.engine.vllm.model.media_rule import MediaRule
from acmserve.errors import IntegrityError

TEXT = [5] * 20


def item(identifier: str, offset: int, length: int, modality: str = "image") -> MultiModalFeatureSpec:
    return MultiModalFeatureSpec(None, modality, identifier, PlaceholderRange(offset=offset, length=length))


def test_items_are_apart_by_hash_kind_and_length_and_text_stays() -> None:
    ids = MediaIds()
    prompt = ids.encode(TEXT, [item("a", 2, 3), item("b", 6, 3), item("a", 10, 4), item("a", 15, 3, "audio")])
    assert prompt.tolist() == [5, 5, -2, -2, -2, 5, -3, -3, -3, 5, -4, -4, -4, -4, 5, -5, -5, -5, 5, 5]
    assert ids.encode(TEXT, [item("a", 9, 3)]).tolist()[9:12] == [-2, -2, -2], "wherever it stands"
    assert TEXT == [5] * 20


def test_a_dropped_item_comes_back_with_another_id() -> None:
    ids = MediaIds(max_items=2)
    for name in "abc":
        ids.encode(TEXT, [item(name, 0, 1)])
    assert ids.encode(TEXT, [item("a", 0, 1)])[0] == -5
    assert ids.encode(TEXT, [item("c", 0, 1)])[0] == -4
    ids.check_integrity()
    ids._max_items = 1
    with pytest.raises(IntegrityError, match="2 items, 1 allowed"):
        ids.check_integrity()


def test_items_that_share_tokens_are_seen() -> None:
    assert not overlap([item("a", 2, 3), item("b", 5, 3)])
    assert overlap([item("a", 5, 3), item("b", 2, 4)])


def _model(**facts: Any) -> Any:
    plain = {"uses_mrope": False, "mrope_num_dims": 3, "is_encoder_decoder": False, "is_mm_prefix_lm": False}
    return SimpleNamespace(**{**plain, "multimodal_config": None, **facts})


def test_what_a_model_allows_with_media() -> None:
    assert MediaRule.of_model(_model()) == MediaRule(media_shift_positions=False, refusal=None)
    assert MediaRule.of_model(_model(uses_mrope=True)) == MediaRule(media_shift_positions=True, refusal=None)
    pruning = SimpleNamespace(is_multimodal_pruning_enabled=lambda: True)
    refused: list[dict[str, Any]] = [
        {"is_encoder_decoder": True},
        {"is_mm_prefix_lm": True},
        {"uses_mrope": True, "mrope_num_dims": 4},
        {"multimodal_config": pruning},
    ]
    for facts in refused:
        assert (MediaRule.of_model(_model(**facts)).refusal or "").startswith("media: "), facts
