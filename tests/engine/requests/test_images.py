"""Images and M-RoPE in the real engine: text between images moves exactly, and behind another image it is computed.

vLLM imports its vision models with torchvision only, which the locked environment has not. Then these tests are
skipped, and `tests/simulator/requests/test_media.py` and `tests/plan/test_media.py` stand alone.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import pytest
from vllm import SamplingParams
from vllm.inputs import TokensPrompt

from acmserve.engine.requests.request_plan import MEDIA_COMPUTED, MEDIA_SHIFTED
from acmserve.plan import planner
from tests.support.engine.edits import text
from tests.support.engine.engine import TINY_SETTINGS, Answer, Engine, read_answer, start_engine

pytest.importorskip(
    "torchvision",
    reason="vLLM reads images with torchvision, which this environment leaves out or cannot load",
    exc_type=(ImportError, RuntimeError),
)

MAX_DIFFERENCE = 1e-3
A, B, C, D = (text(length, name, 380) for name, length in (("a", 100), ("b", 200), ("c", 150), ("d", 120)))
MARKER, NEW = text(9, "marker", 380), text(20, "new", 380)


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Engine]:
    from tests.support.engine.image_model import write_image_model

    folder = write_image_model(tmp_path_factory.mktemp("images"))
    settings: dict[str, Any] = {name: value for name, value in TINY_SETTINGS.items() if name != "skip_tokenizer_init"}
    settings |= {"block_size": 32, "limit_mm_per_prompt": {"image": 4, "video": 0}, "max_num_batched_tokens": 2048}
    with start_engine(folder, plugin={"min_move_tokens": 16}, own_process=False, **settings) as started:
        yield started


def _ask(engine: Engine, parts: Sequence[Any], session: str, fidelity: str) -> Answer:
    """`parts` are lists of tokens, and images. The session has a salt of its own."""
    from tests.support.engine.image_model import IMAGE

    images = [part for part in parts if not isinstance(part, list)]
    tokens = [token for part in parts for token in (part if isinstance(part, list) else IMAGE)]
    prompt = TokensPrompt(prompt_token_ids=tokens, cache_salt=session)
    if images:
        prompt["multi_modal_data"] = {"image": images}
    acm = {"session_id": session, "fidelity": fidelity}
    params = SamplingParams(
        temperature=0, max_tokens=1, ignore_eos=True, logprobs=20, extra_args={"kv_transfer_params": {"acm": acm}}
    )
    return read_answer(engine.llm.generate([prompt], [params], use_tqdm=False)[0])


def _edit(engine: Engine, name: str, before: Sequence[Any], after: Sequence[Any]) -> tuple[dict[str, Any], float]:
    """The receipt of `after` behind `before`, and its distance from a computation of all its tokens."""
    _ask(engine, before, name, "reuse")
    moved, exact = _ask(engine, after, name, "reuse"), _ask(engine, after, f"{name}, exact", "exact")
    assert moved.receipt is not None
    assert exact.receipt is not None
    assert exact.receipt["computed_tokens"] == exact.receipt["prompt_tokens"]
    return moved.receipt, moved.distance(exact)


def test_text_between_images_moves(engine: Engine) -> None:
    from tests.support.engine.image_model import picture

    first, second = picture(1, 4, 6), picture(2, 3, 8)
    receipt, distance = _edit(engine, "between", [A, first, B, second, C], [A, first, MARKER, second, C, NEW])
    assert (receipt["moved_tokens"], receipt["fallback_reason"]) == (len(C) + 1, MEDIA_COMPUTED)
    assert distance <= MAX_DIFFERENCE
    receipt, distance = _edit(engine, "behind", [A, first, B, C, D], [A, first, B[:50], MARKER, D, NEW])
    assert (receipt["moved_tokens"], receipt["fallback_reason"]) == (len(D), None)
    assert distance <= MAX_DIFFERENCE


def test_text_behind_another_image_is_computed(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    """And the control: moved by the delta of its indices, it is found out."""
    from tests.support.engine.image_model import picture

    first, second = picture(1, 4, 6), picture(2, 3, 8)
    for name, after in (("folded", [A, MARKER, B, C, NEW]), ("other", [A, second, MARKER, B, C, NEW])):
        receipt, distance = _edit(engine, name, [A, first, B, C], after)
        assert (receipt["moved_tokens"], receipt["fallback_reason"]) == (0, MEDIA_SHIFTED)
        assert distance <= MAX_DIFFERENCE
    text_moves = planner.text_moves
    monkeypatch.setattr(
        planner, "text_moves", lambda *args, media_shift_positions: text_moves(*args, media_shift_positions=False)
    )
    receipt, distance = _edit(engine, "control", [A, first, B, C], [A, MARKER, B, C, NEW])
    assert receipt["moved_tokens"] == len(B) + len(C)
    assert distance > 10 * MAX_DIFFERENCE
