"""Work ahead on the real engine: a context is foreseen, computed in idle steps, and kept by the request that comes.

A model of two layers, so that KV of another context would show in the logits. The engine core lives in this process and
is stepped by hand, so that a test knows what runs in which step.
"""

from __future__ import annotations

import time
from typing import Any

import pytest

from acmserve.engine.vllm.hooks import READY_AT
from acmserve.errors import InvalidRequest
from tests.support.engine.engine import Engine, scheduler_of
from tests.support.precomputing import (
    BLOCK_SIZE,
    CHUNK,
    EXACT,
    FOLDED,
    HISTORY,
    NEW,
    STRANGER,
    num_used_blocks,
    position_of,
    receipt_of,
    run_all,
    run_step,
    send,
)


@pytest.fixture
def engine(precomputing_engine: Engine) -> Engine:
    return precomputing_engine


def test_an_interrupted_forecast_serves_the_next_turn_exactly(engine: Engine) -> None:
    """200 tokens are kept, 411 computed ahead in two chunks. A stranger comes between them and is answered."""
    salt = "interrupted"
    engine.ask(HISTORY, "s", "exact", salt=salt)
    send(engine, "precompute", FOLDED, salt, precompute=True)
    run_step(engine)
    assert position_of(engine, "precompute") == 448, "the chunk ends at the last block boundary within 200 + 256"
    send(engine, "stranger", STRANGER, "stranger", precompute=False, max_tokens=5)
    finished: dict[str, Any] = {}
    while "stranger" not in finished:
        finished |= run_step(engine)
        assert position_of(engine, "precompute") == 0, "it gave way and holds no blocks"
    finished |= run_all(engine)
    ready = finished["precompute"].kv_transfer_params["acm"]["receipt"]
    assert (ready["prompt_tokens"], ready["fallback_reason"]) == (len(FOLDED), None)
    answer = engine.ask([*FOLDED, *NEW], "s", "exact", salt=salt, max_tokens=8)
    assert {key: receipt_of(answer)[f"{key}_tokens"] for key in ("kept", "computed", "precomputed")} == {
        "kept": len(FOLDED),
        "computed": len(NEW),
        "precomputed": len(FOLDED) - 200,
    }
    fresh = engine.ask([*FOLDED, *NEW], salt="never used before", max_tokens=8)
    assert answer.token_ids == fresh.token_ids
    assert answer.distance(fresh) <= EXACT
    assert num_used_blocks(engine) == 0
    scheduler_of(engine).connector.check_integrity()


def test_without_a_forecast_the_next_turn_computes(engine: Engine) -> None:
    """The control: the same turns, and everything behind the fold is computed when it is asked for."""
    engine.ask(HISTORY, "s", "exact", salt="control")
    receipt = receipt_of(engine.ask([*FOLDED, *NEW], "s", "exact", salt="control"))
    assert (receipt["computed_tokens"], receipt["precomputed_tokens"]) == (len(FOLDED) + len(NEW) - 200, 0)


def test_a_forecast_that_ends_early_has_no_tokens(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scheduler_of(engine).connector.precompute.blocks, "max_blocks", 4)
    send(engine, "precompute", FOLDED, "early", precompute=True)
    output = run_all(engine)["precompute"]
    assert (list(output.outputs[0].token_ids), output.outputs[0].finish_reason) == ([], "length")
    receipt = output.kv_transfer_params["acm"]["receipt"]
    assert (receipt["prompt_tokens"], receipt["fallback_reason"]) == (4 * BLOCK_SIZE, "precompute_pool_share")
    assert receipt_of(engine.ask(FOLDED, "s", "exact", salt="early"))["precomputed_tokens"] == 4 * BLOCK_SIZE


@pytest.mark.parametrize("interrupted", [False, True])
def test_an_aborted_forecast_leaves_its_blocks_free_and_useful(engine: Engine, interrupted: bool) -> None:
    salt = f"aborted {interrupted}"
    send(engine, "precompute", FOLDED, salt, precompute=True)
    run_step(engine)
    if interrupted:
        send(engine, "stranger", STRANGER, salt, precompute=False, max_tokens=3)
        run_step(engine)
    engine.llm.llm_engine.abort_request(["precompute"])
    assert "precompute" not in run_all(engine)
    assert num_used_blocks(engine) == 0
    scheduler_of(engine).connector.check_integrity()
    assert receipt_of(engine.ask(FOLDED, "s", "exact", salt=salt))["precomputed_tokens"] == CHUNK


def test_who_waits_for_a_chunk_is_told_by_when_it_was_ready(engine: Engine) -> None:
    """The core reads a request while it is in a step, so the overlap is known by the stamp alone."""
    scheduler = scheduler_of(engine)
    pacer = scheduler.connector.precompute.pacer
    delayed, earned = pacer.account.delayed, pacer.account.earned
    send(engine, "precompute", FOLDED, "paced", precompute=True)
    before = time.monotonic()
    send(engine, "stranger", STRANGER, "paced", precompute=False, max_tokens=3)
    (stranger,) = (r for r in scheduler.requests.values() if r.request_id.startswith("stranger"))
    assert before <= getattr(stranger, READY_AT) <= time.monotonic()
    assert pacer.waiting == (stranger.request_id,)
    run_all(engine)
    assert (pacer.waiting, pacer.account.delayed) == ((), delayed)
    assert pacer.account.earned > earned
    send(engine, "precompute", HISTORY, "paced again", precompute=True)
    run_step(engine)
    began, ended = pacer._chunk
    middle = (began + ended) / 2
    pacer.on_ready("late", "somebody", middle)
    assert pacer.account.delayed - delayed == pytest.approx(ended - middle)
    pacer.on_gone("late")
    run_all(engine)


def test_a_forecast_that_wants_an_answer_is_refused(engine: Engine) -> None:
    with pytest.raises(InvalidRequest, match="for a background request") as refused:
        send(engine, "precompute", FOLDED, "refused", precompute=True, max_tokens=2)
    assert refused.value.field == "max_tokens"
