"""The one-layer oracle with an fp8 KV cache: what a move adds beyond the noise that fp8 has by itself is nothing.

A moved key is rounded to 8 bits once more. So with most rotations `reuse` differs from `exact` by about as much as
`exact` differs from float32, and `tests/kernels/test_stored_type.py` compares the two. Here rounding changes nothing:
one position turns each pair by a quarter of a circle, which exchanges two numbers and a sign.

    key, whole numbers   (3, -1)  at p        kept in 8 bits as it is
    moved by -309        (-1, -3) at p - 309  again whole numbers: what the engine would have computed there

So `reuse` must equal `exact` to 1e-3, as with float32, and a wrong slot, angle, scale or type shows.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import LlamaConfig

from acmserve.bench.models.fp8_ops import with_fp8_ops
from acmserve.engine.worker.copies import KVCopy
from acmserve.plan.rules.rotations import MAX_ROTATIONS_BY_TYPE
from tests.engine.test_oracle import HISTORY, MARKER, MAX_DIFFERENCE, NEW
from tests.engine.worker.test_architectures import COMMON
from tests.support.engine.edits import Tokens, cut, insert, swap, text
from tests.support.engine.engine import TINY_SETTINGS, Engine, counted_steps, start_engine
from tests.support.engine.oracle import check_reuse
from tests.support.engine.tiny_model import save_random

QUARTER = {"rope_type": "linear", "rope_theta": 1.0, "factor": 2 / math.pi}
SETTINGS: dict[str, Any] = {**TINY_SETTINGS, "max_model_len": 1024, "block_size": 32, "kv_cache_dtype": "fp8"}
HISTORY = HISTORY[:800]
ONCE = cut(HISTORY, 200, 509, MARKER)
EDITS: dict[str, list[Tokens]] = {
    "fold": [ONCE],
    "insertion": [insert(HISTORY, 333, text(71, "inserted"))],
    "moved paragraph": [swap(HISTORY, 150, 401, 700)],
    "two holes": [cut(cut(HISTORY, 600, 703, MARKER), 200, 351, MARKER)],
    "edit of an edit": [cut(HISTORY, 500, 702, MARKER), cut(cut(HISTORY, 500, 702, MARKER), 101, 300, MARKER)],
    "restore": [ONCE, HISTORY],
}


def save_whole_numbers(folder: Path) -> Path:
    """A model whose keys are 1 and 3 with signs. A thousandth more, so that cutting towards zero finds them, too."""
    config = LlamaConfig(**COMMON, head_dim=32, rope_parameters=QUARTER)
    path = save_random(config, folder / "model")
    weights = path / "model.safetensors"
    tensors = load_file(weights)
    generator = torch.Generator().manual_seed(3)
    embedding = tensors["model.embed_tokens.weight"]
    embedding.copy_(torch.randint(0, 2, embedding.shape, generator=generator) * 2 - 1)
    tensors["model.layers.0.input_layernorm.weight"].fill_(1.001)
    key = tensors["model.layers.0.self_attn.k_proj.weight"]
    key.zero_()
    for row in key:
        chosen = torch.randperm(key.shape[1], generator=generator)[:3]
        row[chosen] = (torch.randint(0, 2, (3,), generator=generator) * 2 - 1).to(row.dtype)
    save_file(tensors, weights, metadata={"format": "pt"})
    return path


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Engine]:
    path = save_whole_numbers(tmp_path_factory.mktemp("models"))
    with pytest.MonkeyPatch.context() as patch:
        with_fp8_ops(patch)
        with start_engine(path, plugin={"min_move_tokens": 16}, own_process=False, **SETTINGS) as started:
            core: Any = started.llm.llm_engine.engine_core
            modules = core.engine_core.vllm_config.compilation_config.static_forward_context
            for layer in modules.values():
                layer._k_scale_float, layer._v_scale_float = 0.25, 0.0625
            yield started


@pytest.mark.parametrize("kind", EDITS)
def test_reuse_equals_exact(engine: Engine, kind: str) -> None:
    contexts = [[*context, *NEW] for context in EDITS[kind]]
    check_reuse(engine, f"s-{kind}", HISTORY, contexts, MAX_DIFFERENCE)


def test_holes_are_computed_in_one_step(engine: Engine) -> None:
    """Its rows read keys of 8 bits, which were turned in the same step."""
    context = [*EDITS["two holes"][0], *NEW]
    engine.ask(HISTORY, "holes", "reuse", salt="holes")
    with counted_steps(engine) as sizes:
        moved = engine.ask(context, "holes", "reuse", salt="holes")
    assert moved.receipt is not None
    assert len(moved.receipt["moves"]) == 2
    assert sizes == [moved.receipt["computed_tokens"]]
    assert moved.distance(engine.ask(context, "other", "exact", salt="holes")) <= MAX_DIFFERENCE


def test_keys_that_do_not_turn_are_found_out(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    """Negative control: the same move with the keys left as they were."""
    monkeypatch.setattr(KVCopy, "delta", property(lambda self: 0))
    engine.ask(HISTORY, "unturned", "reuse", salt="unturned")
    moved = engine.ask([*ONCE, *NEW], "unturned", "reuse", salt="unturned")
    assert moved.receipt is not None
    assert moved.receipt["moved_tokens"] > 100
    assert moved.distance(engine.ask([*ONCE, *NEW], "other", "exact", salt="unturned")) > 10 * MAX_DIFFERENCE


def test_a_key_is_turned_twice_and_then_computed(engine: Engine) -> None:
    """Three cuts in front of the same text T, one behind the other. T moves with the first two only.

    [..............][T ......]
    [.........][T ......]           turned once
    [......][T ......]              turned twice
    [...][T ......]                 computed
    """
    context = HISTORY
    engine.ask([*context, *NEW], "worn", "reuse", salt="worn")
    num_moved = []
    for start, end in ((100, 181), (50, 71), (10, 31)):
        context = cut(context, start, end)
        answer = engine.ask([*context, *NEW], "worn", "reuse", salt="worn")
        assert answer.receipt is not None
        assert answer.distance(engine.ask([*context, *NEW], "other", "exact", salt="worn")) <= MAX_DIFFERENCE
        num_moved.append(answer.receipt["moved_tokens"])
    assert min(num_moved[:2]) > 600, num_moved
    assert num_moved[2] < 100, num_moved


def test_the_scheduler_knows_the_bound_of_the_type(engine: Engine) -> None:
    core: Any = engine.llm.llm_engine.engine_core
    abilities = core.engine_core.scheduler.connector.abilities
    assert abilities.move_refusal is None
    assert abilities.max_rotations == MAX_ROTATIONS_BY_TYPE["float8_e4m3fn"]
