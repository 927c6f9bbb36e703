"""Two workers of one engine: tensor parallelism moves KV, from a tier, too. A pipeline is served exactly and says why.

In the suite the engine core lives in the test's process, and its workers are forks of that. `make fleet` has all of
them spawned, as users have them. vLLM 0.32 has no attention for decode context parallelism on a CPU, so its refusal is
tested on its configuration (`worker/test_kv_mover.py`).
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.support.engine.edits import Tokens, cut, insert, swap, text
from tests.support.engine.engine import TINY_SETTINGS, Answer, Engine, start_engine
from tests.support.engine.flood import FOLDED as FOLDED_BELOW
from tests.support.engine.flood import SMALL_POOL, SUFFIX, fold_after_flood
from tests.support.engine.tiny_model import TINY_MODELS, TWO_LAYERS, TinyModel
from tests.support.server.running_server import FLEET

MAX_DIFFERENCE = 1e-3
HISTORY, MARKER, NEW = text(900, "history"), text(11, "marker"), text(14, "new")
EDITS: Mapping[str, Callable[[Tokens], Tokens]] = {
    "fold": lambda history: cut(history, 200, 520, MARKER),
    "two holes": lambda history: cut(cut(history, 600, 700, MARKER), 200, 350, MARKER),
    "insertion": lambda history: insert(history, 333, text(70, "inserted")),
    "swap": lambda history: swap(history, 150, 400, 700),
}
REASON = "engine: pipeline parallelism is not supported"


@pytest.fixture(autouse=True)
def one_core_each(monkeypatch: pytest.MonkeyPatch) -> None:
    cores = sorted(os.sched_getaffinity(0))
    monkeypatch.setenv("VLLM_CPU_OMP_THREADS_BIND", f"{cores[0]}|{cores[-1]}")
    # A test that spoils a worker sends it a function.
    monkeypatch.setenv("VLLM_ALLOW_INSECURE_SERIALIZATION", "1")


@contextmanager
def two_workers(model: TinyModel, folder: Path, **parallel: Any) -> Iterator[Engine]:
    settings = {**TINY_SETTINGS, "distributed_executor_backend": "mp", "block_size": 32, **parallel}
    with start_engine(model.write(folder), plugin={}, own_process=FLEET, spawned=FLEET, **settings) as engine:
        yield engine


def ask_edited(engine: Engine, edit: str, session: str) -> tuple[Answer, Answer]:
    """A history, then an edit of it under `reuse`, and the same tokens under `exact`, asked by a stranger."""
    engine.ask(HISTORY, session, "reuse", salt=session)
    context = [*EDITS[edit](HISTORY), *NEW]
    moved = engine.ask(context, session, "reuse", salt=session)
    return moved, engine.ask(context, f"{session}, exact", "exact", salt=f"{session}, exact")


def test_a_pipeline_serves_exactly(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """vLLM 0.32 cannot run an eager pipeline on a CPU, so the model is compiled, by a compiler that does nothing.

    The control: other tokens have other answers.
    """
    monkeypatch.setenv("TORCHDYNAMO_DISABLE", "0")
    compiled = {"enforce_eager": False, "compilation_config": {"mode": 1, "backend": "eager"}}
    with two_workers(TWO_LAYERS, tmp_path, pipeline_parallel_size=2, **compiled) as engine:
        answers = {edit: ask_edited(engine, edit, edit) for edit in EDITS}
    for edited, _ in answers.values():
        assert edited.receipt is not None
        assert edited.receipt["fallback_reason"] == REASON
        assert edited.receipt["moved_tokens"] == 0
    assert [edit for edit, (edited, exact) in answers.items() if edited.distance(exact) > MAX_DIFFERENCE] == []
    assert answers["fold"][0].distance(answers["swap"][1]) > 10 * MAX_DIFFERENCE


def test_both_halves_of_the_heads_move(tmp_path: Path) -> None:
    """A model of one layer is the oracle: KV that a worker did not move, or moved elsewhere, shows in the logits.

    The control: a second worker that moves keys without turning them.
    """

    def move_as_they_were(worker: Any) -> None:
        from acmserve.engine.worker.copies import KVCopy

        if worker.rank == 1:
            KVCopy.delta = property(lambda self: 0)  # type: ignore[method-assign]

    with two_workers(TINY_MODELS[0], tmp_path, tensor_parallel_size=2) as engine:
        answers = {edit: ask_edited(engine, edit, edit) for edit in EDITS}
        engine.llm.collective_rpc(move_as_they_were)
        spoilt, exact = ask_edited(engine, "fold", "spoilt")
    for moved, _ in answers.values():
        assert moved.receipt is not None
        assert moved.receipt["moved_tokens"] > 300
        assert moved.receipt["fallback_reason"] is None
    assert [edit for edit, (moved, exact) in answers.items() if moved.distance(exact) > MAX_DIFFERENCE] == []
    assert spoilt.distance(exact) > 10 * MAX_DIFFERENCE


@pytest.mark.skipif(not FLEET, reason="an engine with a tier and one without: `make fleet`")
def test_both_halves_of_the_heads_come_back_from_the_tier(tmp_path: Path) -> None:
    """Each worker keeps its own heads below the pool. Without a tier nothing is left to move (the control)."""
    for num_gib in (0.25, None):
        tier = {} if num_gib is None else {"kv_offloading_size": num_gib}
        with two_workers(TINY_MODELS[0], tmp_path, tensor_parallel_size=2, **SMALL_POOL, **tier) as engine:
            folded = fold_after_flood(engine, "s")
            fresh = engine.ask(FOLDED_BELOW, salt="fresh")
        assert folded.receipt is not None
        assert folded.distance(fresh) <= MAX_DIFFERENCE
        if num_gib is None:
            assert folded.receipt["moved_tokens"] == folded.receipt["loaded_tokens"] == 0
            assert folded.receipt["fallback_reason"] == "source_evicted"
        else:
            assert folded.receipt["moved_tokens"] >= 0.9 * SUFFIX
            assert folded.receipt["loaded_tokens"] >= 0.9 * folded.receipt["moved_tokens"]
