"""The deep oracle on models of full attention: adapters, drafts, latent attention, and an fp8 KV cache.

One layer of three speaks (`deep_model.py`), so moved KV is exact in all of them. What stands in another layer's rows
shows, and so do keys that do not turn. The same oracle on hybrids stands in `test_recurrent_moves.py` and
`tests/engine/worker/test_windows.py`.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from vllm.lora.request import LoRARequest

from acmserve.bench.models.fp8_ops import with_fp8_ops
from acmserve.engine.worker.copies import KVCopy
from tests.engine.test_drafts import NGRAM, num_drafts
from tests.engine.test_oracle import HISTORY, MARKER, MAX_DIFFERENCE, NEW
from tests.engine.worker.test_fp8 import save_whole_numbers
from tests.support.engine.adapter import RANK, write_adapter
from tests.support.engine.deep_model import deepen
from tests.support.engine.drafter_models import save_with_mtp_module
from tests.support.engine.edits import cut
from tests.support.engine.engine import TINY_SETTINGS, Answer, Engine, start_engine
from tests.support.engine.latent import REFERENCE_BACKEND, small_deepseek, with_prefix_caching
from tests.support.engine.tiny_model import TINY_MODELS, save_random

Start = Callable[[Path, pytest.MonkeyPatch], tuple[Path, dict[str, Any]]]
NUM_ANSWERED = 40
SERVED = HISTORY[:800]
DRAFTING: dict[str, Any] = {"block_size": 32, "disable_log_stats": False}


def with_ngram(folder: Path, _: pytest.MonkeyPatch) -> tuple[Path, dict[str, Any]]:
    return TINY_MODELS[0].write(folder), DRAFTING | {"speculative_config": NGRAM}


def with_mtp(folder: Path, _: pytest.MonkeyPatch) -> tuple[Path, dict[str, Any]]:
    path, speculative = save_with_mtp_module(folder)
    return path, DRAFTING | {"speculative_config": speculative}


def with_lora(folder: Path, _: pytest.MonkeyPatch) -> tuple[Path, dict[str, Any]]:
    return TINY_MODELS[0].write(folder), {"enable_lora": True, "max_lora_rank": RANK}


def with_latents(folder: Path, patch: pytest.MonkeyPatch) -> tuple[Path, dict[str, Any]]:
    with_prefix_caching(patch)
    return save_random(small_deepseek(), folder / "model"), REFERENCE_BACKEND


def with_fp8(folder: Path, patch: pytest.MonkeyPatch) -> tuple[Path, dict[str, Any]]:
    with_fp8_ops(patch)
    return save_whole_numbers(folder), {"block_size": 32, "kv_cache_dtype": "fp8"}


STARTS: dict[str, Start] = {
    "mtp": with_mtp,
    "lora": with_lora,
    "latent": with_latents,
    "fp8": with_fp8,
    "ngram": with_ngram,
}
"""The last one imports numba, and beside an object of numba vLLM 0.32 starts no further engine in the process."""
KINDS = list(STARTS) if "ACMSERVE_WINDOWS" in os.environ else ["mtp"]
"""`make windows` runs all of it, the suite the first: there other files have each of them with one layer."""


def fold(engine: Engine, session: str, adapter: LoRARequest | None) -> tuple[Answer, list[int]]:
    """An answer of some length, and a fold in front of it: the folded context, and what the model says to it."""
    said = engine.ask(SERVED, session, "reuse", salt=session, max_tokens=NUM_ANSWERED, adapter=adapter).token_ids
    context = [*cut([*SERVED, *said], 200, 509, MARKER), *NEW]
    return engine.ask(context, session, "reuse", salt=session, adapter=adapter), context


@pytest.mark.filterwarnings("ignore:[\\s\\S]*reflected list")
@pytest.mark.parametrize("kind", KINDS)
def test_moved_kv_is_right_in_every_layer(kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The control leaves the keys as they were."""
    path, settings = STARTS[kind](tmp_path, monkeypatch)
    deepen(path)
    adapter = LoRARequest("adapter", 1, str(write_adapter(path, tmp_path / "lora", 1))) if kind == "lora" else None
    settings = {**TINY_SETTINGS, "max_model_len": 1024} | settings
    with start_engine(path, plugin={"min_move_tokens": 16}, own_process=False, **settings) as engine:
        moved, context = fold(engine, "moved", adapter)
        exact = engine.ask(context, "exact", "exact", salt="exact", adapter=adapter)
        assert moved.receipt is not None
        assert moved.receipt["fallback_reason"] is None
        assert moved.receipt["moved_tokens"] > 300, moved.receipt
        assert moved.distance(exact) <= MAX_DIFFERENCE, moved.receipt
        if kind == "ngram":
            num_drafted, num_accepted = num_drafts(engine)
            assert num_drafted - num_accepted > 10, "drafts were rejected, and their KV stood where the answer stands"
        if kind == "mtp":
            assert num_drafts(engine)[1] > NUM_ANSWERED / 2, "the module of a model of three layers drafts well"
        monkeypatch.setattr(KVCopy, "delta", property(lambda self: 0))
        assert fold(engine, "unturned", adapter)[0].distance(exact) > 10 * MAX_DIFFERENCE
