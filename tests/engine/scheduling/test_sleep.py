"""Sleep mode: vLLM gives the KV up when it falls asleep, so nothing that was served before is a source behind it.

On a CPU vLLM keeps the memory. So the tests overwrite all KV while the engine sleeps, which is what a GPU does with it.
One layer: with whatever KV an answer is made, it equals a fresh computation, or is wrong.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from vllm import SamplingParams
from vllm.inputs import TokensPrompt

from tests.engine.test_oracle import HISTORY, MARKER, MAX_DIFFERENCE, NEW
from tests.support.engine.edits import cut
from tests.support.engine.engine import TINY_SETTINGS, Engine, scheduler_of, start_engine
from tests.support.engine.tiny_model import TINY_MODELS

FOLDED = [*cut(HISTORY, 200, 520, MARKER), *NEW]
POISON = 3.0


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Engine]:
    path = TINY_MODELS[0].write(tmp_path_factory.mktemp("models"))
    with start_engine(path, plugin={}, own_process=False, block_size=32, **TINY_SETTINGS) as started:
        yield started


def sleep_and_lose_kv(engine: Engine, level: int, mode: Any = "abort") -> None:
    core: Any = engine.llm.llm_engine.engine_core
    core.engine_core.sleep(level=level, mode=mode)
    (caches,) = core.engine_core.collective_rpc(lambda worker: worker.model_runner.kv_caches)
    for kv in caches:
        kv.fill_(POISON)
    core.engine_core.wake_up()
    scheduler_of(engine).connector.check_integrity()


def receipt_of(output: Any) -> dict[str, Any]:
    receipt: dict[str, Any] = output.kv_transfer_params["acm"]["receipt"]
    return receipt


@pytest.mark.parametrize("level", [1, 2])
def test_nothing_of_before_is_a_source_behind_a_sleep(engine: Engine, level: int) -> None:
    salt = f"slept-{level}"
    engine.ask(HISTORY, "s", "reuse", salt=salt)
    sleep_and_lose_kv(engine, level)
    assert len(scheduler_of(engine).connector.store) == 0
    folded = engine.ask(FOLDED, "s", "reuse", salt=salt)
    assert folded.receipt is not None
    assert folded.receipt["computed_tokens"] == len(FOLDED)
    assert folded.receipt["fallback_reason"] is None
    assert folded.distance(engine.ask(FOLDED, "other", "exact", salt=f"fresh-{level}")) <= MAX_DIFFERENCE
    # The session goes on: what it computed behind the sleep is a source again.
    shorter = [*FOLDED[:100], *FOLDED[200:], *NEW]
    again = engine.ask(shorter, "s", "reuse", salt=salt)
    assert again.receipt is not None
    assert again.receipt["moved_tokens"] > 300
    assert again.distance(engine.ask(shorter, "other", "exact", salt=f"fresh-{level}")) <= MAX_DIFFERENCE


def test_kv_that_was_lost_would_be_found_out(engine: Engine) -> None:
    """Negative control: level 0 promises to keep the KV. Where it is lost all the same, the fold is wrong."""
    engine.ask(HISTORY, "s", "reuse", salt="control")
    sleep_and_lose_kv(engine, level=0)
    folded = engine.ask(FOLDED, "s", "reuse", salt="control")
    assert folded.receipt is not None
    assert folded.receipt["moved_tokens"] > 300
    assert folded.distance(engine.ask(FOLDED, "other", "exact", salt="control fresh")) > 10 * MAX_DIFFERENCE


def test_a_request_that_slept_is_computed_anew(engine: Engine) -> None:
    """It has moved KV when the engine falls asleep, and is kept. When it wakes, its source and its own KV are gone."""
    engine.ask(HISTORY, "s", "reuse", salt="kept")
    extra = {"kv_transfer_params": {"acm": {"session_id": "s", "fidelity": "reuse"}}}
    params = SamplingParams(temperature=0, max_tokens=6, ignore_eos=True, extra_args=extra)
    prompt = TokensPrompt(prompt_token_ids=FOLDED, cache_salt="kept")
    llm = engine.llm.llm_engine
    llm.add_request("asleep", prompt, params)
    outputs: list[Any] = [*llm.step(), *llm.step()]
    assert not any(output.finished for output in outputs)
    assert receipt_of(outputs[-1])["moved_tokens"] > 300
    sleep_and_lose_kv(engine, level=1, mode="keep")
    while llm.has_unfinished_requests():
        outputs += llm.step()
    assert outputs[-1].finished
    assert receipt_of(outputs[-1])["moved_tokens"] == 0
    fresh = engine.ask(FOLDED, salt="kept fresh", max_tokens=6)
    assert tuple(outputs[-1].outputs[0].token_ids) == fresh.token_ids
