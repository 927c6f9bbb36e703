"""When nothing is looked at: where nothing can come, where the engine refuses, and when the server ends."""

from __future__ import annotations

import asyncio
import threading
from types import SimpleNamespace
from typing import Any

import pytest
from starlette.datastructures import State

from acmserve.context.edits.cut import cut_messages
from acmserve.context.eviction.clear_tool_uses import ClearToolUses
from acmserve.context.session.precompute_options import PrecomputeOptions
from acmserve.context.storage.session import Session
from acmserve.server.context.server import ContextServer
from acmserve.server.precompute.background_request import ServedBackground, frame_of
from acmserve.server.precompute.precomputer import PAUSE_SECONDS
from acmserve.server.vllm.taps import in_this_loop
from tests.server.precompute.test_precomputer import BUDGET, Client, Engine, made_edit, make_server
from tests.support.instant_loop import run_instantly

MOVES = [{"dst_start": 10, "src_start": 50, "num_tokens": 80}]
CLEARING = ClearToolUses(100, keep=0)


def session_of(server: ContextServer) -> Session:
    return server.store.get("", "s")


@pytest.mark.parametrize("mode", ["predict", "exact"])
def test_a_plain_conversation_is_not_looked_at(mode: str) -> None:
    """Its tokens are not counted and no task waits, however many turns it has. What can be foreseen has one."""

    async def works_after(begin: str) -> bool:
        engine = Engine()
        server = make_server(engine, mode)
        client = Client(server)
        for _ in range(3):
            await client.ask("lorem " * 50, wait=False)
        assert not server.precompute.is_working(session_of(server))
        session = session_of(server)
        if begin == "budget":
            await client.ask("Go on", wait=False, budget=BUDGET)
        elif begin == "cut":
            server.store.save(session, cut_messages(session.state, 0, 1, server.tokenizer).state)
            await client.ask("Go on", wait=False)
        elif begin == "thought":
            await client.ask("Go on", "<think>Why?</think>Yes.", wait=False)
        elif begin == "edits":
            server.precompute.end_turn(session, frame_of({}), None, [CLEARING])
        else:
            await client.ask("Go on", wait=False)
        return server.precompute.is_working(session)

    begins = ("nothing", "budget", "cut", "thought", "edits")
    assert [run_instantly(works_after(begin)) for begin in begins] == [False, True, True, True, True]


def test_exact_computes_edits_behind_exact_turns_and_heals_nothing() -> None:
    """Who asks for moves has cheap edits already. What `predict` does behind such a turn is the control."""

    def sent(mode: str) -> tuple[int, int]:
        engine = Engine()
        server = make_server(engine, mode)

        async def scene() -> tuple[int, int]:
            client = Client(server)
            await client.ask("lorem " * 200)
            session = session_of(server)
            await server.editor.edit(session, [made_edit("fold", 0)], None)
            server.precompute.note_edit(session)
            await asyncio.sleep(3 * PAUSE_SECONDS)
            num_exact = len(engine.bodies)
            client.moves = MOVES
            await client.ask("lorem " * 200, wait=False)
            server.precompute.begin_turn(session)
            server.precompute.end_turn(session, frame_of({}), "reuse", None)
            await asyncio.sleep(3 * PAUSE_SECONDS)
            assert server.served.of("", "s").num_stale > 0 or len(engine.bodies) > num_exact
            return num_exact, len(engine.bodies) - num_exact

        return run_instantly(scene())

    assert sent("exact") == (1, 0)
    assert sent("predict") == (1, 1)


def test_answers_are_judged_where_they_are_healed_alone() -> None:
    options = {mode: PrecomputeOptions(mode) for mode in ("off", "heal", "predict", "exact")}
    assert {mode for mode, one in options.items() if one.heals} == {"heal", "predict"}
    assert {mode for mode, one in options.items() if one.predicts} == {"predict", "exact"}
    server = make_server(Engine(), "exact")
    session = server.store.open("", "s")
    assert server.sessions.scores(session, "reuse") is None
    session = make_server(Engine(), "predict").store.open("", "s")
    assert make_server(Engine(), "predict").sessions.scores(session, "reuse") is not None


@pytest.mark.parametrize(
    "reason", ["precompute: not supported for this model: 2 KV cache groups", "engine: prefix caching is off"]
)
def test_an_engine_that_can_precompute_nothing_is_asked_once(reason: str) -> None:
    engine = Engine()
    engine.fallback_reason = reason
    server = make_server(engine)

    async def scene() -> None:
        client = Client(server)
        client.moves = MOVES
        for _ in range(4):
            await client.ask("lorem " * 200)
        assert len(engine.bodies) == 1
        session = session_of(server)
        made = await server.prepare(session, [made_edit("fold", 0)])
        await asyncio.sleep(3 * PAUSE_SECONDS)
        assert (made.status, made.reason) == ("dropped", reason), "who asks hears why"

    run_instantly(scene())


def test_another_reason_of_the_engine_is_no_refusal() -> None:
    engine = Engine()
    engine.fallback_reason = "precompute_pool_share"
    server = make_server(engine)

    async def scene() -> None:
        client = Client(server)
        client.moves = MOVES
        for number in range(4):
            await client.ask("lorem " * 200)
            assert len(engine.bodies) == number + 1

    run_instantly(scene())


def test_a_server_that_ends_cancels_what_runs_and_begins_nothing() -> None:
    engine = Engine()
    server = make_server(engine)

    async def scene() -> None:
        engine.gate = asyncio.Event()
        client = Client(server)
        client.moves = MOVES
        await client.ask("lorem " * 200)
        assert (len(engine.bodies), engine.num_cancelled) == (1, 0)
        server.precompute.close()
        await asyncio.sleep(0)
        assert engine.num_cancelled == 1
        assert not server.precompute.is_working(session_of(server))
        await client.ask("lorem " * 200)
        made = await server.prepare(session_of(server), [made_edit("fold", 0)])
        await asyncio.sleep(3 * PAUSE_SECONDS)
        assert (len(engine.bodies), made.status) == (1, "dropped")
        assert server.precompute.num_failed == 0

    run_instantly(scene())


def test_one_background_request_is_sent_at_a_time() -> None:
    """Those that wait in the engine count as queued requests, for which vLLM may have a bound."""
    sent: list[Any] = []

    async def scene() -> None:
        gate = asyncio.Event()

        async def create(request: Any) -> Any:
            sent.append(request)
            await gate.wait()

        serving = SimpleNamespace(create_chat_completion=create)
        background = ServedBackground(State({"openai_serving_chat": serving}))
        body = frame_of({"model": "m"}).body([{"role": "user", "content": "."}])
        calls = [asyncio.create_task(background(body)) for _ in range(3)]
        await asyncio.sleep(0.1)
        assert len(sent) == 1
        calls[0].cancel()
        await asyncio.sleep(0.1)
        assert len(sent) == 2, "the next one goes when it has ended, or was cancelled"
        gate.set()
        await asyncio.gather(*calls[1:])
        assert len(sent) == 3

    run_instantly(scene())


def test_another_thread_has_something_done_in_the_loop_while_that_runs() -> None:
    done: list[int] = []

    async def scene() -> Any:
        soon = in_this_loop(lambda: done.append(threading.get_ident()))
        await asyncio.to_thread(soon)
        await asyncio.sleep(0)
        return soon

    late = asyncio.run(scene())
    assert done == [threading.get_ident()]
    late()
    assert len(done) == 1, "a loop that has ended does nothing"
