"""Two pipeline stages: the engine starts, its answers are exact, and the receipts say why nothing moves."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.support.engine.edits import cut, text
from tests.support.engine.engine import TINY_SETTINGS, start_engine
from tests.support.engine.tiny_model import TWO_LAYERS

HISTORY = text(900, "history")
FOLDED = cut(HISTORY, 200, 520, text(11, "marker"))
REASON = "engine: pipeline parallelism is not supported"

pytestmark = pytest.mark.skipif("ACMSERVE_FLEET" not in os.environ, reason="several engine processes: `make fleet`")


def test_a_pipeline_serves_exactly(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """vLLM 0.32 cannot run an eager pipeline on a CPU, so the model is compiled, by a compiler that does nothing."""
    monkeypatch.setenv("VLLM_CPU_OMP_THREADS_BIND", "0|1")
    monkeypatch.setenv("TORCHDYNAMO_DISABLE", "0")
    compiled = {"enforce_eager": False, "compilation_config": {"mode": 1, "backend": "eager"}}
    parallel = {"pipeline_parallel_size": 2, "distributed_executor_backend": "mp"}
    settings = {**TINY_SETTINGS, **compiled, **parallel, "block_size": 32}
    with start_engine(TWO_LAYERS.write(tmp_path), plugin={}, own_process=True, **settings) as engine:
        first = engine.ask(HISTORY, "s", "reuse")
        folded = engine.ask(FOLDED, "s", "reuse")
        fresh = engine.ask(FOLDED, salt="fresh")
    assert first.receipt is not None
    assert folded.receipt is not None
    assert first.receipt["fallback_reason"] == folded.receipt["fallback_reason"] == REASON
    assert folded.receipt["moved_tokens"] == 0
    assert folded.distance(fresh) <= 1e-3
