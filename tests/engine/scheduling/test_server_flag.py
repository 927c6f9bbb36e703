"""The flag of the server in front of an engine: it ends chunks and holds them up, but not for ever.

The engine is real and lives in this process. The test raises the flag as the server does, with no request behind it.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from acmserve.engine.scheduling.exits import chunk_exits
from acmserve.plan.pacing.arrival_flag import ArrivalFlag, find_flag, server_flag_name
from tests.engine.scheduling.test_chunk_exits import arrival_in_layer, exits_of
from tests.support.engine.engine import Engine, scheduler_of
from tests.support.precomputing import CHUNK, FOLDED, position_of, run_all, run_step, send


@pytest.fixture
def engine(precomputing_engine: Engine) -> Engine:
    return precomputing_engine


@pytest.fixture
def flag(engine: Engine) -> Iterator[ArrivalFlag]:
    """The flag that the engine found in front of its first chunk."""
    config: Any = engine.llm.llm_engine.vllm_config
    send(engine, "finds the flag", FOLDED[:40], "finds the flag", precompute=True)
    run_all(engine)
    found = find_flag(server_flag_name(config.kv_transfer_config.engine_id))
    assert found is not None
    yield found
    found.close()


def test_a_chunk_is_left_and_none_begins_until_the_flag_is_lowered(
    engine: Engine, flag: ArrivalFlag, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However long the steps take: the clock stands still."""
    monkeypatch.setattr(exits_of(engine), "clock", lambda: 0.0)
    left = scheduler_of(engine).connector.precompute.blocks.counts.left_tokens
    send(engine, "ahead", FOLDED, "raised", precompute=True)
    with arrival_in_layer(engine, 0, flag.raise_it) as begun:
        run_step(engine)
        assert begun == [0], "the layer behind the one in which the flag was raised is not computed"
        for _ in range(100):
            run_step(engine)
        assert begun == [0], "and no chunk begins"
    assert position_of(engine, "ahead") == 0
    assert scheduler_of(engine).connector.precompute.blocks.counts.left_tokens - left == CHUNK
    flag.lower()
    run_step(engine)
    assert position_of(engine, "ahead") == CHUNK
    assert run_all(engine)["ahead"].kv_transfer_params["acm"]["receipt"]["prompt_tokens"] == len(FOLDED)


def test_whose_requests_are_all_refused_has_not_every_chunk_left(engine: Engine, flag: ArrivalFlag) -> None:
    """Until somebody comes, whose flag counts again."""
    engine.ask(FOLDED[:40], salt="somebody")
    send(engine, "ahead", FOLDED, "refused", precompute=True)
    for _ in range(chunk_exits.MAX_IN_VAIN):
        with arrival_in_layer(engine, 0, flag.raise_it):
            run_step(engine)
        flag.lower()
        assert position_of(engine, "ahead") == 0
    with arrival_in_layer(engine, 0, flag.raise_it):
        run_step(engine)
    assert position_of(engine, "ahead") == CHUNK, "raised as it is"
    engine.llm.llm_engine.abort_request(["ahead"])
    engine.ask(FOLDED[:40], salt="somebody else")
    flag.lower()
    send(engine, "again", FOLDED, "again", precompute=True)
    with arrival_in_layer(engine, 0, flag.raise_it):
        run_step(engine)
    assert position_of(engine, "again") == 0
    flag.lower()
    assert "again" in run_all(engine)


def test_who_never_comes_holds_nothing_up_for_ever(
    engine: Engine, flag: ArrivalFlag, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Chunks go to their end then, raised as it is. A flag that was lowered in between holds them up again."""
    now = [0.0]
    monkeypatch.setattr(exits_of(engine), "clock", lambda: now[0])
    flag.raise_it()
    send(engine, "ahead", FOLDED, "for ever", precompute=True)
    run_step(engine)
    assert position_of(engine, "ahead") == 0
    now[0] += chunk_exits._MAX_SERVER_SECONDS
    run_step(engine)
    assert position_of(engine, "ahead") == 0
    now[0] += 1
    run_step(engine)
    assert position_of(engine, "ahead") == CHUNK
    flag.lower()
    run_step(engine)
    assert position_of(engine, "ahead") == 2 * CHUNK
    flag.raise_it()
    run_step(engine)
    assert position_of(engine, "ahead") == 2 * CHUNK
    flag.lower()
    assert "ahead" in run_all(engine)
