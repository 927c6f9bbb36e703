"""Who is next: each account in turn, whoever came first, and nobody waits for who has gone."""

from __future__ import annotations

import asyncio
from collections import deque
from types import SimpleNamespace
from typing import Any

import pytest
from starlette.datastructures import State

from acmserve.errors import IntegrityError
from acmserve.plan.request import SessionParams
from acmserve.server.exchange.exchange import CURRENT, Exchange
from acmserve.server.precompute.account_turns import AccountTurns
from acmserve.server.precompute.background_request import ServedBackground, frame_of
from tests.support.instant_loop import run_instantly


def test_one_key_with_many_sessions_lets_another_one_in() -> None:
    """The background requests of the server itself, in the order in which vLLM's handler gets them."""
    sent: list[str] = []

    async def create(request: Any) -> None:
        exchange = CURRENT.get()
        assert exchange is not None
        sent.append(exchange.params.session_id)
        await asyncio.sleep(1)

    background = ServedBackground(State({"openai_serving_chat": SimpleNamespace(create_chat_completion=create)}))
    body = frame_of({"model": "m"}).body([{"role": "user", "content": "."}])

    async def compute(name: str, account: str) -> None:
        CURRENT.set(Exchange(SessionParams(name, "exact", precompute=True, account=account)))
        await background(body)

    async def scene() -> None:
        asked = [asyncio.create_task(compute(f"a{number}", "a")) for number in range(5)]
        asked += [asyncio.create_task(compute(f"b{number}", "b")) for number in range(2)]
        await asyncio.gather(*asked)

    run_instantly(scene())
    assert sent == ["a0", "a1", "b0", "a2", "b1", "a3", "a4"]


def test_who_is_cancelled_is_passed_over() -> None:
    """While it waits, while it is called, and while it holds."""
    turns = AccountTurns()
    held: list[str] = []

    async def hold(name: str) -> None:
        async with turns.turn(name[0]):
            turns.check_integrity()
            held.append(name)
            await asyncio.sleep(1)

    async def scene() -> None:
        tasks = {name: asyncio.create_task(hold(name)) for name in ("a0", "a1", "a2", "b0", "b1", "a3")}
        await asyncio.sleep(0.5)
        tasks["a1"].cancel()
        await asyncio.sleep(0)
        turns.check_integrity()
        tasks["a0"].cancel()
        await asyncio.sleep(0)
        tasks["a2"].cancel()
        await asyncio.sleep(0)
        turns.check_integrity()
        await asyncio.gather(*tasks.values(), return_exceptions=True)
        assert not turns._is_held
        async with turns.turn("c"):
            assert held == ["a0", "b0", "a3", "b1"]

    run_instantly(scene())
    turns.check_integrity()


def test_check_integrity_finds_who_waits_for_nobody() -> None:
    async def scene() -> AccountTurns:
        turns = AccountTurns()
        async with turns.turn("a"):
            waiting = asyncio.create_task(turns._wait("b"))
            await asyncio.sleep(0)
            turns.check_integrity()
            turns._is_held = False
            with pytest.raises(IntegrityError, match="1 of 1 accounts wait"):
                turns.check_integrity()
            turns._is_held = True
            waiting.cancel()
        return turns

    turns = asyncio.run(scene())
    turns._waiting["nobody"] = deque()
    with pytest.raises(IntegrityError, match="0 of 1 accounts"):
        turns.check_integrity()
