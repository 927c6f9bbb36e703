"""Who is on the way to the engine: the flag is raised from the first moment, and for nobody who is not coming."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterator
from types import SimpleNamespace
from typing import Any

import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse, StreamingResponse
from starlette.routing import Route

from acmserve.errors import IntegrityError
from acmserve.plan.pacing.arrival_flag import ArrivalFlag, server_flag_name
from acmserve.server.precompute.incoming import (
    INCOMING,
    MAX_SECONDS,
    IncomingMiddleware,
    IncomingRequests,
    let_background_in,
)
from tests.support.instant_loop import run_instantly

Answer = Callable[[Request], Awaitable[Any]]


@pytest.fixture
def engine_id() -> str:
    return uuid.uuid4().hex


@pytest.fixture
def incoming(engine_id: str) -> Iterator[IncomingRequests]:
    made = IncomingRequests(engine_id)
    yield made
    made.close()


@pytest.fixture
def flag(engine_id: str, incoming: IncomingRequests) -> Iterator[ArrivalFlag]:
    """As the engine opens it."""
    found = ArrivalFlag(server_flag_name(engine_id))
    yield found
    found.close()


SCOPE = {"type": "http", "method": "POST", "path": "/a", "headers": [], "query_string": b"", "root_path": ""}


def ask(
    incoming: IncomingRequests | None,
    answer: Answer,
    sent: Callable[[str], None],
    path: str = "/a",
    method: str = "POST",
) -> None:
    """One request through an app that notes requests at /a. `sent` hears of each message that goes out."""
    app = Starlette(routes=[Route("/{path}", answer, methods=["GET", "POST"])])
    app.add_middleware(IncomingMiddleware, paths={"/a"})
    if incoming is not None:
        app.state.acm_incoming = incoming
    scope = SCOPE | {"path": path, "method": method}
    asked: list[Any] = [{"type": "http.request", "body": b"", "more_body": False}]

    async def receive() -> Any:
        return asked.pop() if asked else await asyncio.Event().wait()  # the client stays

    async def send(message: Any) -> None:
        sent(message["type"])

    asyncio.run(app(scope, receive, send))


def test_the_flag_is_raised_until_the_answer_begins(incoming: IncomingRequests, flag: ArrivalFlag) -> None:
    seen: list[bool] = []

    async def answer(request: Request) -> StreamingResponse:
        seen.append(flag.is_raised)

        async def pieces() -> AsyncGenerator[str]:
            yield "one"
            seen.append(flag.is_raised)
            yield "two"

        return StreamingResponse(pieces())

    ask(incoming, answer, lambda kind: None)
    assert seen == [True, False]
    assert not flag.is_raised
    incoming.check_integrity()


def test_whoever_is_refused_leaves_no_flag(incoming: IncomingRequests, flag: ArrivalFlag) -> None:
    async def refuse(request: Request) -> PlainTextResponse:
        assert flag.is_raised
        return PlainTextResponse("", status_code=401)

    ask(incoming, refuse, lambda kind: None)
    assert not flag.is_raised

    async def fail(request: Request) -> PlainTextResponse:
        assert flag.is_raised
        raise ValueError("of the handler")

    with pytest.raises(ValueError, match="of the handler"):
        ask(incoming, fail, lambda kind: None)
    assert not flag.is_raised


def test_a_head_whose_body_never_comes_is_waited_for_no_more(incoming: IncomingRequests, flag: ArrivalFlag) -> None:
    """Who comes after it is waited for as ever."""

    async def read(request: Request) -> PlainTextResponse:
        return PlainTextResponse(await request.body())

    app = Starlette(routes=[Route("/a", read, methods=["POST"])])
    app.add_middleware(IncomingMiddleware, paths={"/a"})
    app.state.acm_incoming = incoming
    sent: list[str] = []

    async def send(message: Any) -> None:
        sent.append(message["type"])

    async def scene() -> None:
        body: asyncio.Future[Any] = asyncio.get_running_loop().create_future()

        async def receive() -> Any:
            return await body

        hanging = asyncio.create_task(app(SCOPE | {}, receive, send))
        await asyncio.sleep(MAX_SECONDS - 0.1)
        assert flag.is_raised
        await asyncio.sleep(0.2)
        assert not flag.is_raised
        incoming.check_integrity()
        other = incoming.add()
        assert flag.is_raised
        other.end()
        assert not flag.is_raised
        body.set_result({"type": "http.request", "body": b"at last", "more_body": False})
        await hanging

    run_instantly(scene())
    assert sent == ["http.response.start", "http.response.body"]


@pytest.mark.parametrize(("path", "method"), [("/b", "POST"), ("/a", "GET")])
def test_other_requests_raise_nothing(incoming: IncomingRequests, flag: ArrivalFlag, path: str, method: str) -> None:
    seen: list[bool] = []

    async def answer(request: Request) -> PlainTextResponse:
        seen.append(flag.is_raised)
        return PlainTextResponse("")

    ask(incoming, answer, lambda kind: None, path, method)
    assert seen == [False]


def test_of_two_the_last_lowers_it(incoming: IncomingRequests, flag: ArrivalFlag) -> None:
    first, second = incoming.add(), incoming.add()
    first.end()
    first.end()
    assert flag.is_raised
    second.end()
    assert not flag.is_raised


def test_a_background_request_makes_way_for_itself_no_more(incoming: IncomingRequests, flag: ArrivalFlag) -> None:
    async def generate(prompt: Any, params: Any) -> AsyncGenerator[bool]:
        yield flag.is_raised

    async def first(params: Any) -> bool:
        INCOMING.set(incoming.add())
        return bool(await anext(let_background_in(generate)("prompt", params)))

    def params_of(acm: dict[str, Any]) -> Any:
        return SimpleNamespace(extra_args={"kv_transfer_params": {"acm": acm}})

    assert asyncio.run(first(params_of({"session_id": "s", "precompute": True}))) is False
    assert asyncio.run(first(params_of({"session_id": "s"}))) is True
    assert asyncio.run(first(SimpleNamespace(extra_args=None))) is True


def test_a_second_server_of_the_same_engine_id_goes_without(incoming: IncomingRequests, engine_id: str) -> None:
    other = IncomingRequests(engine_id)
    other.add().end()
    other.close()
    ArrivalFlag(server_flag_name(engine_id)).close()


def test_a_server_without_a_flag_answers(engine_id: str) -> None:
    async def answer(request: Request) -> PlainTextResponse:
        return PlainTextResponse("said")

    sent: list[str] = []
    ask(None, answer, sent.append)
    assert sent == ["http.response.start", "http.response.body"]


def test_check_integrity_finds_a_flag_for_nobody(incoming: IncomingRequests, flag: ArrivalFlag) -> None:
    flag.raise_it()
    with pytest.raises(IntegrityError, match="0 on their way"):
        incoming.check_integrity()
