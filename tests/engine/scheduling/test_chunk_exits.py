"""A background chunk on the real engine is left in front of each layer in turn, and nobody is answered with its KV.

Somebody arrives while a layer is computed: a hook in the model raises the flag, as the thread does that reads requests.
The engine core and its worker live in this process and are stepped by hand.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from vllm import SamplingParams
from vllm.inputs import TokensPrompt

from acmserve.engine.scheduling.exits.chunk_exits import ChunkExits
from acmserve.engine.worker.messages import ChunkLeft
from acmserve.plan.pacing.arrival_flag import find_flag
from tests.support.engine.edits import Tokens, text
from tests.support.engine.engine import Answer, Engine, read_answer, scheduler_of
from tests.support.precomputing import (
    CHUNK,
    EXACT,
    FOLDED,
    NEW,
    num_used_blocks,
    position_of,
    receipt_of,
    run_all,
    run_step,
    send,
)

NUM_LAYERS = 2


@pytest.fixture
def engine(precomputing_engine: Engine) -> Engine:
    return precomputing_engine


def context(salt: str) -> Tokens:
    """Three chunks, the last of them short. Each test has its own: a block may hold what it held in the one before."""
    return text(len(FOLDED), salt)


def exits_of(engine: Engine) -> ChunkExits:
    found: ChunkExits = scheduler_of(engine).connector.precompute.exits
    return found


@contextmanager
def arrival_in_layer(engine: Engine, layer: int, arrive: Callable[[], None] | None = None) -> Iterator[list[int]]:
    """Meanwhile somebody arrives in each pass while `layer` is computed. Yields the layers that were begun."""
    arrive = arrive or exits_of(engine).on_queued
    core: Any = engine.llm.llm_engine.engine_core
    model = core.engine_core.model_executor.driver_worker.worker.get_model()
    begun: list[int] = []

    def begin(index: int) -> None:
        begun.append(index)
        if index == layer:
            arrive()

    handles = [
        module.register_forward_pre_hook(lambda *args, index=index: begin(index))
        for index, module in enumerate(model.model.layers)
    ]
    try:
        yield begun
    finally:
        for handle in handles:
            handle.remove()


def ask_beside(engine: Engine, salt: str, session: str | None) -> Answer:
    """The next turn, while the background request waits. That one is ended then."""
    acm = {"session_id": session, "fidelity": "exact"}
    extra = None if session is None else {"kv_transfer_params": {"acm": acm}}
    params = SamplingParams(temperature=0, max_tokens=8, ignore_eos=True, logprobs=20, extra_args=extra)
    prompt = TokensPrompt(prompt_token_ids=[*context(salt), *NEW], cache_salt=salt)
    engine.llm.llm_engine.add_request("turn", prompt, params)
    finished: dict[str, Any] = {}
    while "turn" not in finished:
        finished |= run_step(engine)
    engine.llm.llm_engine.abort_request([f"precompute {salt}"])
    run_all(engine)
    return read_answer(finished["turn"])


def leave(engine: Engine, salt: str, layer: int, num_done: int) -> list[int]:
    """A background request, of which `num_done` chunks are computed and the next is left. The layers of that one."""
    send(engine, f"precompute {salt}", context(salt), salt, precompute=True)
    for _ in range(num_done):
        run_step(engine)
    with arrival_in_layer(engine, layer) as begun:
        run_step(engine)
    exits_of(engine).on_known()
    return begun


@pytest.mark.parametrize("num_done", [0, 1, 2])
@pytest.mark.parametrize("layer", range(NUM_LAYERS))
def test_nobody_is_answered_with_what_was_left(engine: Engine, layer: int, num_done: int) -> None:
    """The first chunk is left, one in the middle, or the last, which samples a token."""
    salt = f"left in {layer} behind {num_done}"
    counts = scheduler_of(engine).connector.precompute.blocks.counts
    before = counts.left_tokens
    begun = leave(engine, salt, layer, num_done)
    assert begun == list(range(layer + 1)), "no layer behind the one in which somebody came"
    assert counts.left_tokens - before == min(CHUNK, len(FOLDED) - num_done * CHUNK)
    assert position_of(engine, f"precompute {salt}") == 0, "it gave way and holds no blocks"
    scheduler_of(engine).connector.check_integrity()
    answer = ask_beside(engine, salt, "s")
    fresh = engine.ask([*context(salt), *NEW], salt=f"{salt}, never used before", max_tokens=8)
    assert answer.token_ids == fresh.token_ids
    assert answer.distance(fresh) <= EXACT
    assert receipt_of(answer)["precomputed_tokens"] == num_done * CHUNK
    assert num_used_blocks(engine) == 0
    scheduler_of(engine).connector.check_integrity()


@pytest.mark.parametrize("num_done", [0, 1])
def test_without_taking_it_back_the_answer_is_wrong(
    engine: Engine, monkeypatch: pytest.MonkeyPatch, num_done: int
) -> None:
    """The control: the chunk counts as computed, and its blocks are found.

    In the first layer, for vLLM writes a layer's KV in front of its attention: nothing is missing behind the last one.
    """
    monkeypatch.setattr(ChunkExits, "takes_back", False)
    salt = f"control behind {num_done}"
    leave(engine, salt, 0, num_done)
    answer = ask_beside(engine, salt, "s")
    fresh = engine.ask([*context(salt), *NEW], salt=f"{salt}, never used before", max_tokens=8)
    assert answer.distance(fresh) > EXACT


@pytest.mark.parametrize("session", [None, "s"])
@pytest.mark.parametrize("num_done", [0, 2])
@pytest.mark.parametrize("unregisters", [True, False], ids=["", "control"])
def test_who_ends_in_a_chunk_that_was_left(
    engine: Engine, monkeypatch: pytest.MonkeyPatch, unregisters: bool, num_done: int, session: str | None
) -> None:
    """Its client ends it while the chunk is computed. vLLM frees its blocks before the scheduler hears of the rest.

    The last chunk ends within a block, which the session would find again as its tail.
    """
    monkeypatch.setattr(ChunkExits, "unregisters", unregisters)
    salt = f"ended {unregisters} behind {num_done} {session}"
    scheduler, name = scheduler_of(engine), f"precompute {salt}"
    update = scheduler.update_from_output

    def end_first(step: Any, answered: Any) -> Any:
        if isinstance(answered.kv_connector_output.kv_connector_worker_meta, ChunkLeft):
            engine.llm.llm_engine.abort_request([name])
        return update(step, answered)

    with monkeypatch.context() as patch:
        patch.setattr(scheduler, "update_from_output", end_first)
        leave(engine, salt, 0, num_done)
    assert not scheduler.requests
    scheduler.connector.check_integrity()
    answer = engine.ask([*context(salt), *NEW], session, session and "exact", salt=salt, max_tokens=8)
    fresh = engine.ask([*context(salt), *NEW], salt=f"{salt}, never used before", max_tokens=8)
    is_exact = answer.token_ids == fresh.token_ids and answer.distance(fresh) <= EXACT
    assert is_exact is unregisters


def test_an_engine_that_is_killed_leaves_no_flag_behind(engine: Engine) -> None:
    """From the first chunk on the flag has no name. It goes on to end chunks."""
    leave(engine, "named", 0, num_done=0)
    flag = exits_of(engine)._flag
    assert flag is not None
    assert find_flag(flag.name) is None
    engine.llm.llm_engine.abort_request(["precompute named"])
    run_all(engine)
    assert leave(engine, "without a name", 0, num_done=0) == [0]
    engine.llm.llm_engine.abort_request(["precompute without a name"])
    run_all(engine)


def test_no_chunk_begins_while_somebody_is_on_the_way(engine: Engine) -> None:
    """And not for ever, where nobody comes of it."""
    leave(engine, "the flag is there", 0, num_done=0)
    engine.llm.llm_engine.abort_request(["precompute the flag is there"])
    run_all(engine)
    exits_of(engine).on_queued()
    send(engine, "precompute", FOLDED, "on the way", precompute=True)
    run_step(engine)
    assert position_of(engine, "precompute") == 0
    finished = run_all(engine)
    assert finished["precompute"].kv_transfer_params["acm"]["receipt"]["prompt_tokens"] == len(FOLDED)
