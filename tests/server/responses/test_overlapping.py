"""Requests that leave their history to the session, and are under way at once. An object stands for the model."""

from __future__ import annotations

import asyncio
import json
from dataclasses import replace
from typing import Any, cast

import pytest
from starlette.responses import JSONResponse, Response, StreamingResponse

from acmserve.context.session.going_on import END, RESPONSE_ID
from acmserve.context.session.history import adopt, append_answer, end_turn
from acmserve.context.session.state import SessionState
from acmserve.context.transcript.observations import ObservationRule
from acmserve.plan.request import SessionParams
from acmserve.server.chat.options import ChatRequest
from acmserve.server.chat.recording import taken_in
from acmserve.server.chat.turn import answer_session
from acmserve.server.context.server import ContextServer
from acmserve.server.exchange.exchange import CURRENT
from acmserve.server.options.loop_options import LoopOptions
from acmserve.server.vllm.handlers import ChatCompletionRequest
from tests.support.routes.stand_in_model import RAW, Model, call, said
from tests.support.server.acm_app import make_server

FIRST = "resp_0"


class Overlapping:
    """Requests whose model answers when it is told to. Each has an id, a question, and what it goes on from."""

    def __init__(self) -> None:
        self.server: ContextServer = make_server()
        self._answers: dict[str, asyncio.Event] = {}
        self._tasks: dict[str, asyncio.Task[Response | None]] = {}

    @property
    def state(self) -> SessionState:
        return self.server.store.open("", "s").state

    @property
    def contents(self) -> list[str]:
        return [str(entry.message["content"]) for entry in self.state.entries]

    async def begin(self, name: str, goes_on_from: str | None = FIRST, *history: str, named: bool = True) -> None:
        """The request is with the model when this ends."""
        messages = [{"role": "user", "content": text} for text in (*history, f"{name}?")]
        body = {"model": "m", "messages": messages}
        request = ChatCompletionRequest(**cast(Any, body))
        fields = {RESPONSE_ID: f"resp_{name}"} if named else {}
        params = SessionParams("s")
        chat = ChatRequest(request, cast(Any, RAW), body, params, "", goes_on_from=goes_on_from, answer_fields=fields)
        begun, answers = asyncio.Event(), asyncio.Event()

        async def model(request: Any, raw_request: Any) -> Response:
            exchange = CURRENT.get()
            assert exchange is not None
            exchange.acm = {"session_id": "s"}
            begun.set()
            await answers.wait()
            return JSONResponse(said(f"{name}."))

        self._answers[name] = answers
        self._tasks[name] = asyncio.create_task(answer_session(self.server, chat, model))
        await begun.wait()

    async def begin_loop(self, name: str, goes_on_from: str, *, stream: bool = False, fails: bool = False) -> None:
        """A search of the model is in the session when this ends, and the step behind it is with the model."""
        body = {"model": "m", "messages": [{"role": "user", "content": f"{name}?"}], "stream": stream}
        request = ChatCompletionRequest(**cast(Any, body))
        fields = {RESPONSE_ID: f"resp_{name}"}
        params, loop = SessionParams("s"), LoopOptions(("sculptor",), 5)
        chat = ChatRequest(request, cast(Any, RAW), body, params, "", loop, goes_on_from=goes_on_from)
        begun, answers = asyncio.Event(), asyncio.Event()
        refused = JSONResponse({"error": {"message": "The prompt is too long."}}, status_code=400)
        steps = Model(said(None, call("search_context", query="0")), refused if fails else said(f"{name}."))

        async def model(request: Any, raw_request: Any) -> Response | None:
            if steps.requests:
                begun.set()
                await answers.wait()
            return await steps(request, raw_request)

        async def answered() -> Response | None:
            response = await answer_session(self.server, replace(chat, answer_fields=fields), model)
            if isinstance(response, StreamingResponse):
                async for _ in response.body_iterator:
                    pass
            return response

        self._answers[name] = answers
        self._tasks[name] = asyncio.create_task(answered())
        await begun.wait()

    async def end_loop(self, name: str, status: int = 200) -> None:
        self._answers[name].set()
        response = await self._tasks[name]
        assert response is not None
        assert response.status_code == status
        self.state.check_integrity()

    async def end(self, name: str) -> dict[str, Any] | None:
        """The model answers. What the client is told of storage."""
        self._answers[name].set()
        response = await self._tasks[name]
        assert response is not None
        assert response.status_code == 200
        self.state.check_integrity()
        told = json.loads(bytes(response.body))["acm"].get("storage")
        return cast("dict[str, Any] | None", told)

    async def ask(self, name: str, goes_on_from: str | None = FIRST) -> dict[str, Any] | None:
        await self.begin(name, goes_on_from)
        return await self.end(name)


def test_a_conversation_has_both_turns() -> None:
    async def scene() -> None:
        user = Overlapping()
        await user.ask("0", END)
        await user.begin("a", END)
        await user.begin("b", END)
        assert await user.end("b") is None
        assert await user.end("a") is None
        assert user.contents == ["0?", "0.", "b?", "b.", "a?", "a."]

    asyncio.run(scene())


@pytest.mark.parametrize("first", ["a", "b"])
def test_of_two_requests_behind_one_answer_the_later_counts(first: str) -> None:
    """A request and its retry, while a proxy keeps the first one alive. Either may end first."""

    async def scene() -> None:
        user = Overlapping()
        await user.ask("0", END)
        await user.begin("a")
        await user.begin("b")
        told = {name: await user.end(name) for name in (first, "b" if first == "a" else "a")}
        assert user.contents == ["0?", "0.", "b?", "b."]
        assert told["b"] is None
        assert (told["a"] is None) is (first == "a"), "it was kept at first, as before any other request"
        if told["a"] is not None:
            assert (told["a"]["saved"], told["a"]["reason"]) == (False, "refused")
            assert "meanwhile" in told["a"]["warning"]
        assert await user.ask("c", "resp_b") is None
        assert user.contents[-4:] == ["b?", "b.", "c?", "c."]

    asyncio.run(scene())


def test_a_request_that_hangs_cuts_off_nothing_that_came_later() -> None:
    """Its retry was answered, and the conversation went on."""

    async def scene() -> None:
        user = Overlapping()
        await user.ask("0", END)
        await user.begin("a")
        await user.ask("b")
        await user.begin("c", "resp_b")
        assert await user.end("a") is not None
        assert await user.end("c") is None
        assert user.contents == ["0?", "0.", "b?", "b.", "c?", "c."]

    asyncio.run(scene())


def test_an_answer_whose_history_is_gone_is_given_and_says_so() -> None:
    async def scene() -> None:
        user = Overlapping()
        for name, before in (("0", END), ("1", FIRST)):
            await user.ask(name, before)
        await user.begin("a")
        await user.begin("b", "resp_1")
        assert await user.end("a") is None
        told = await user.end("b")
        assert told is not None
        assert "resp_1" in told["warning"]
        assert user.contents == ["0?", "0.", "a?", "a."]

    asyncio.run(scene())


@pytest.mark.parametrize("becomes", ["deleted", "replaced"])
@pytest.mark.parametrize("goes_on_from", [FIRST, END, None], ids=["id", "conversation", "whole history"])
def test_an_answer_whose_session_went_meanwhile_says_so(becomes: str, goes_on_from: str | None) -> None:
    async def scene() -> None:
        user = Overlapping()
        await user.ask("0", END)
        await user.begin("a", goes_on_from)
        user.server.delete(user.server.store.get("", "s"))
        if becomes == "replaced":
            user.server.store.create("", "s")
        told = await user.end("a")
        assert told is not None
        assert "deleted or replaced" in told["warning"]
        assert user.contents == []

    asyncio.run(scene())


@pytest.mark.parametrize("named", [True, False], ids=["named", "control"])
def test_a_whole_history_that_was_overtaken_says_so_where_its_answer_has_an_id(named: bool) -> None:
    """The client sends it again, but cannot name that answer. A chat names none."""

    async def scene() -> None:
        user = Overlapping()
        await user.begin("a", None, named=named)
        await user.ask("b", None)
        assert (await user.end("a") is not None) is named
        assert user.contents == ["b?", "b."]

    asyncio.run(scene())


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
@pytest.mark.parametrize("goes_on_from", [FIRST, END], ids=["id", "conversation"])
def test_a_tool_loop_keeps_its_turn_when_an_earlier_request_is_answered_meanwhile(
    goes_on_from: str, stream: bool
) -> None:
    """Its question was cut off in the middle of the loop, or its call in a conversation. Nobody was told."""

    async def scene() -> None:
        user, alone = Overlapping(), Overlapping()
        for one in (user, alone):
            await one.ask("0", END)
        await alone.begin_loop("b", goes_on_from, stream=stream)
        await alone.end_loop("b")
        await user.begin("a", goes_on_from)
        await user.begin_loop("b", goes_on_from, stream=stream)
        assert (await user.end("a") is None) is (goes_on_from is END)
        assert user.contents == alone.contents[:-1], "the loop goes on where it was"
        await user.end_loop("b")
        assert [user.contents[2], user.contents[5]] == ["b?", "b."]
        assert user.contents == [*alone.contents, *(["a?", "a."] if goes_on_from is END else [])]
        assert await user.ask("c", "resp_b") is None
        assert user.server.sessions.looping == {}

    asyncio.run(scene())


@pytest.mark.parametrize("goes_on_from", [FIRST, END], ids=["id", "conversation"])
def test_an_answer_stays_that_was_given_while_a_tool_loop_failed(goes_on_from: str) -> None:
    async def scene() -> None:
        user = Overlapping()
        await user.ask("0", END)
        await user.begin("a", goes_on_from)
        await user.begin_loop("b", goes_on_from, fails=True)
        await user.end("a")
        await user.end_loop("b", 400)
        assert user.contents == ["0?", "0.", "a?", "a."]

    asyncio.run(scene())


def test_observations_behind_an_answer_are_those_of_the_servers_rule() -> None:
    server = make_server()
    server.observations = ObservationRule("user")
    state = adopt(SessionState(), [{"role": "user", "content": "q?"}]).state
    state = end_turn(append_answer(state, {"role": "assistant", "content": "a.", RESPONSE_ID: FIRST}))
    body = {"model": "m", "messages": [{"role": "user", "content": "b.py"}]}
    request = ChatCompletionRequest(**cast(Any, body))
    chat = ChatRequest(request, cast(Any, RAW), body, SessionParams("s"), "", goes_on_from=FIRST)
    assert taken_in(server, state, chat).state.observations == {2}
