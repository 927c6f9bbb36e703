"""Two workers of one engine: tensor parallelism moves KV, from a tier, too. A pipeline is served exactly and says why.

vLLM 0.32 has no attention for decode context parallelism on a CPU, so its refusal is tested on its configuration
(`worker/test_kv_mover.py`).
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from tests.support.engine.edits import cut, text
from tests.support.engine.engine import TINY_SETTINGS, Answer, start_engine
from tests.support.engine.flood import FOLDED as FOLDED_BELOW
from tests.support.engine.flood import SMALL_POOL, SUFFIX, fold_after_flood
from tests.support.engine.tiny_model import TINY_MODELS, TWO_LAYERS, TinyModel

HISTORY = text(900, "history")
FOLDED = cut(HISTORY, 200, 520, text(11, "marker"))
REASON = "engine: pipeline parallelism is not supported"

pytestmark = pytest.mark.skipif("ACMSERVE_FLEET" not in os.environ, reason="several engine processes: `make fleet`")


@pytest.fixture(autouse=True)
def one_core_each(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VLLM_CPU_OMP_THREADS_BIND", "0|1")


def ask_both(model: TinyModel, folder: Path, **parallel: Any) -> tuple[Answer, Answer, Answer]:
    """A history, the same folded under `reuse`, and the fold asked by a stranger."""
    settings = {**TINY_SETTINGS, "distributed_executor_backend": "mp", "block_size": 32, **parallel}
    with start_engine(model.write(folder), plugin={}, own_process=True, **settings) as engine:
        first, folded = engine.ask(HISTORY, "s", "reuse"), engine.ask(FOLDED, "s", "reuse")
        return first, folded, engine.ask(FOLDED, salt="fresh")


def test_a_pipeline_serves_exactly(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """vLLM 0.32 cannot run an eager pipeline on a CPU, so the model is compiled, by a compiler that does nothing."""
    monkeypatch.setenv("TORCHDYNAMO_DISABLE", "0")
    compiled = {"enforce_eager": False, "compilation_config": {"mode": 1, "backend": "eager"}}
    first, folded, fresh = ask_both(TWO_LAYERS, tmp_path, pipeline_parallel_size=2, **compiled)
    assert first.receipt is not None
    assert folded.receipt is not None
    assert first.receipt["fallback_reason"] == folded.receipt["fallback_reason"] == REASON
    assert folded.receipt["moved_tokens"] == 0
    assert folded.distance(fresh) <= 1e-3


def test_both_halves_of_the_heads_move(tmp_path: Path) -> None:
    """A model of one layer is the oracle: KV that a worker did not move, or moved elsewhere, shows in the logits."""
    _, folded, fresh = ask_both(TINY_MODELS[0], tmp_path, tensor_parallel_size=2)
    assert folded.receipt is not None
    assert folded.receipt["moved_tokens"] > 300
    assert folded.receipt["fallback_reason"] is None
    assert folded.distance(fresh) <= 1e-3


def test_both_halves_of_the_heads_come_back_from_the_tier(tmp_path: Path) -> None:
    """Each worker keeps its own heads below the pool. Without a tier nothing is left to move (the control)."""
    settings = {**TINY_SETTINGS, **SMALL_POOL, "distributed_executor_backend": "mp", "tensor_parallel_size": 2}
    for num_gib in (0.25, None):
        tier = {} if num_gib is None else {"kv_offloading_size": num_gib}
        with start_engine(TINY_MODELS[0].write(tmp_path), plugin={}, own_process=True, **settings, **tier) as engine:
            folded = fold_after_flood(engine, "s")
            fresh = engine.ask(FOLDED_BELOW, salt="fresh")
        assert folded.receipt is not None
        assert folded.distance(fresh) <= 1e-3
        if num_gib is None:
            assert folded.receipt["moved_tokens"] == folded.receipt["loaded_tokens"] == 0
            assert folded.receipt["fallback_reason"] == "source_evicted"
        else:
            assert folded.receipt["moved_tokens"] >= 0.9 * SUFFIX
            assert folded.receipt["loaded_tokens"] >= 0.9 * folded.receipt["moved_tokens"]
