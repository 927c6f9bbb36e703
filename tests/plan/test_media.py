"""Text between media: what of a move is text, and where M-RoPE lets it turn by the delta of its indices."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from acmserve.plan.fidelity import RequestedFidelity, plan_wish
from acmserve.plan.pieces import Move
from acmserve.plan.planner import plan_edit
from acmserve.plan.rules.media import text_moves
from acmserve.plan.source import ServedSequence, Tokens

A, B, C = (list(range(start, start + 40)) for start in (100, 200, 300))
IMAGE, OTHER, LONG = [-2] * 12, [-3] * 12, [-4] * 30
MARKER, NEW = [7, 8, 9], [5, 6]


def tokens(*parts: list[int]) -> Tokens:
    return np.array([token for part in parts for token in part], dtype=np.int32)


def served(*parts: list[int]) -> ServedSequence:
    sequence = tokens(*parts)
    return ServedSequence(sequence, 4, tuple(b"%d" % index for index in range(len(sequence) // 4)))


def plan(prompt: Tokens, source: ServedSequence, *, mrope: bool) -> Any:
    made = plan_edit(prompt, (source,), allow_moves=True, min_move_tokens=8, media_shift_positions=mrope)
    made.check(prompt, (source,))
    return made


@pytest.mark.parametrize("mrope", [False, True])
def test_text_behind_the_same_image_moves(mrope: bool) -> None:
    """The fold is behind the image, so one image stands in front of what moves, before and after."""
    made = plan(tokens(IMAGE, A[:20], MARKER, C, NEW), served(IMAGE, A[:20], B, C), mrope=mrope)
    assert made.num_kept == len(IMAGE) + 20
    assert made.moves == (Move(35, 72, 40, 0),)
    assert (made.num_media, made.num_shifted) == (0, 0)


@pytest.mark.parametrize("mrope", [False, True])
def test_an_image_inside_of_what_moves_is_computed(mrope: bool) -> None:
    made = plan(tokens(A[:20], MARKER, B, IMAGE, C, NEW), served(A, B, IMAGE, C), mrope=mrope)
    assert made.moves == (Move(23, 40, 40, 0), Move(75, 92, 40, 0))
    assert (made.num_media, made.num_shifted) == (12, 0)


def test_without_the_image_in_front_only_plain_positions_let_text_move() -> None:
    prompt, source = tokens(A, MARKER, B, C, NEW), served(A, IMAGE, B, C)
    assert plan(prompt, source, mrope=False).moves == (Move(43, 52, 80, 0),)
    made = plan(prompt, source, mrope=True)
    assert (made.moves, made.num_shifted) == ((), 80)


@pytest.mark.parametrize("image", [OTHER, LONG])
def test_another_image_in_front_is_not_the_same(image: list[int]) -> None:
    prompt, source = tokens(A, image, MARKER, B, NEW), served(A, IMAGE, B)
    assert plan(prompt, source, mrope=True).moves == ()
    assert plan(prompt, source, mrope=False).num_kept == len(A), "another image ends the prefix"


def test_a_prefix_ends_where_the_images_differ() -> None:
    source = served(A, IMAGE, B)
    for fidelity in ("exact", "reuse"):
        same, other = (
            plan_wish(tokens(A, image, B, NEW), (source,), RequestedFidelity(fidelity), min_move_tokens=8).plan
            for image in (IMAGE, OTHER)
        )
        assert same.num_kept == len(A) + len(IMAGE) + len(B)
        assert other.num_kept == len(A)


@settings(max_examples=60)
@given(st.data())
def test_every_piece_is_text_and_loses_nothing_else(data: st.DataObject) -> None:
    """Of a random move over random media: the pieces and what was left out are the whole of it."""
    source = served(*data.draw(st.lists(st.sampled_from([A, B, IMAGE, OTHER, LONG]), min_size=1, max_size=6)))
    start = data.draw(st.integers(0, source.num_tokens - 1))
    length = data.draw(st.integers(1, source.num_tokens - start))
    head = tokens(*data.draw(st.lists(st.sampled_from([A, IMAGE, OTHER]), max_size=3)))
    prompt = np.concatenate([head, source.tokens[start : start + length], tokens(NEW)])
    move = Move(len(head), start, length, 0)
    found = text_moves([move], prompt, (source,), 1, media_shift_positions=data.draw(st.booleans()))
    covered = [position for piece in found.moves for position in range(piece.dst_start, piece.dst_end)]
    assert len(covered) == len(set(covered)) == length - found.num_media - found.num_shifted
    assert all(prompt[position] >= 0 for position in covered)
    assert all(piece.src_start - piece.dst_start == start - len(head) for piece in found.moves)


MODELS = {
    "ernie45_vl": "Ernie4_5_VLMoeForConditionalGeneration",
    "keye": "KeyeForConditionalGeneration",
    "qwen2_vl": "Qwen2VLForConditionalGeneration",
    "qwen3_vl": "Qwen3VLForConditionalGeneration",
    "glm4_1v": "Glm4vForConditionalGeneration",
}
MERGE = 2
TOKENS = {"image_token_id": 9, "video_token_id": 10, "vision_start_token_id": 11, "vision_end_token_id": 12}


def _positions(model: Any, prompt: list[tuple[str, int, int]]) -> list[int | None]:
    """Of each token, by the model's own function: its position where all axes agree that it is text, else None.

    A prompt is a list of ("text", tokens, _) and ("image", height, width), in patches after the merge.
    """
    import torch
    from vllm.multimodal.inputs import MultiModalFeatureSpec, PlaceholderRange

    token_ids: list[int] = []
    is_text: list[bool] = []
    features = []
    for kind, first, second in prompt:
        if kind == "text":
            token_ids += [5] * first
            is_text += [True] * first
            continue
        grid = SimpleNamespace(data=torch.tensor([1, first * MERGE, second * MERGE]))
        place = PlaceholderRange(offset=len(token_ids), length=first * second)
        features.append(MultiModalFeatureSpec({"image_grid_thw": grid}, "image", f"{first}x{second}", place))
        token_ids += [9] * (first * second)
        is_text += [False] * (first * second)
    positions, _ = model.get_mrope_input_positions(token_ids, features)
    found: list[int | None] = []
    for text, column in zip(is_text, positions.T.tolist(), strict=True):
        assert not text or len(set(column)) == 1, "the axes of a text token differ"
        found.append(column[0] if text else None)
    return found


@pytest.mark.parametrize("module", MODELS)
def test_the_models_agree_that_text_behind_the_same_images_shifts_by_one_delta(module: str) -> None:
    """Their own functions of positions: the rule's deltas are right, and those that it refuses are wrong somewhere."""
    try:
        import importlib
        import importlib.util

        cls = getattr(importlib.import_module(f"vllm.model_executor.models.{module}"), MODELS[module])
    except ImportError as error:
        if importlib.util.find_spec("torchvision") or (error.name or "").startswith("vllm"):
            raise
        pytest.skip(f"vLLM cannot import it here: {error}")
    vision = SimpleNamespace(spatial_merge_size=MERGE, temporal_merge_size=1, tokens_per_second=1.0)
    model = cls.__new__(cls)
    config = SimpleNamespace(vision_config=vision, spatial_conv_size=MERGE, temporal_conv_size=1, **TOKENS)
    object.__setattr__(model, "config", config)
    image, small = ("image", 4, 6), ("image", 2, 3)
    source = [("text", 10, 0), image, ("text", 50, 0), small, ("text", 40, 0)]
    folded = [("text", 10, 0), image, ("text", 20, 0), small, ("text", 40, 0)]
    without = [("text", 10, 0), ("text", 50, 0), small, ("text", 40, 0)]
    before, after, lost = (_positions(model, prompt) for prompt in (source, folded, without))

    def shifts(moved: list[int | None], last: int) -> set[int]:
        """By how much the last tokens' positions shift, less what their indices do."""
        pairs = zip(before[-last:], moved[-last:], strict=True)
        return {new - old - (len(moved) - len(before)) for old, new in pairs if old is not None and new is not None}

    assert shifts(after, 40) == {0}
    assert len(shifts(lost, 40)) == 1
    assert shifts(lost, 40) != {0}, "the image counted as many positions as tokens, the comparison says nothing"
