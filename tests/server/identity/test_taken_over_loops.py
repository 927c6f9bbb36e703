"""A tool loop runs in a session that gives up its id, or leaves. An object stands for the model."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from typing import Any, cast

import pytest
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse

from acmserve.context.session.render import render
from acmserve.context.tools.batch import Edit, EditKind
from acmserve.errors import NotFound
from acmserve.server.chat.options import SessionCall
from acmserve.server.chat.turn import answer_chat_call
from acmserve.server.context.server import ContextServer
from acmserve.server.identity import families
from acmserve.server.sessions.family import sides_of
from acmserve.server.vllm.handlers import ChatCompletionRequest
from tests.support.routes.stand_in_model import RAW, Model, call, said
from tests.support.server.acm_app import lines, make_server
from tests.support.server.clients import AGENT_SYSTEM, SUMMARY_SYSTEM, TITLE_SYSTEM, ChatClient

REFUSED = JSONResponse({"error": {"message": "The prompt is too long."}}, status_code=400)
SEARCH = call("search_context", query="line 7", max_results=1)
CUT = call("fragment_context", "c2", start_marker="line 1", end_marker="line 9", num_fragments=2)
STEPS = (said(None, SEARCH), said(None, CUT), said("Done."))
EXTRA: dict[str, Any] = {"session_id": "s"}
EACH_STEP = pytest.mark.parametrize("at", range(len(STEPS)))
EITHER_WAY = pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
Meanwhile = Callable[[ContextServer], object]


class Interrupted(Model):
    """Something happens to the session while the model works on step `at`."""

    def __init__(self, server: ContextServer, meanwhile: Meanwhile, at: int, *steps: Any) -> None:
        super().__init__(*steps)
        self._server, self._meanwhile, self._at = server, meanwhile, at

    async def __call__(self, request: Any, raw_request: Request) -> Response | None:
        if len(self.requests) == self._at:
            self._meanwhile(self._server)
        return await super().__call__(request, raw_request)


def identify(server: ContextServer, client: ChatClient) -> Any:
    found = server.identifier.identify(client.body, {}, "", is_held=True)
    assert found is not None
    return found


def asking(system: str, *messages: dict[str, Any]) -> ChatClient:
    return ChatClient(system, (), {}, EXTRA, list(messages)).user(lines(12))


def agent() -> ChatClient:
    return ChatClient(extra=EXTRA).user("What is in the attic?")


def takes_over(server: ContextServer) -> None:
    """A conversation with tools comes under the id, behind a request without any."""
    assert identify(server, agent()).params.session_id == "s"


async def loop(server: ContextServer, client: ChatClient, model: Model, stream: bool = False) -> tuple[int, Any, Any]:
    """The status of an answer, its text, and what it says in `acm`."""
    body = client.body | {"acm": {"tools": "sculptor"}, "stream": stream}
    found, core = identify(server, client), cast(Any, None)
    asked = SessionCall(ChatCompletionRequest(**body), cast(Any, RAW), body, found, core)
    with found.attempt() as attempt:
        response = await answer_chat_call(server, asked, model)
        assert response is not None
        attempt.is_answered = response.status_code == 200
    if not isinstance(response, StreamingResponse):
        answer = json.loads(bytes(response.body))
        text = answer["choices"][0]["message"]["content"] if "choices" in answer else answer["error"]["message"]
        return response.status_code, text, answer.get("acm")
    events = [str(event).partition("data: ")[2] async for event in response.body_iterator]
    chunks = [json.loads(event) for event in events if event.startswith("{")]
    assert not [chunk for chunk in chunks if "error" in chunk]
    deltas = [chunk["choices"][0]["delta"] for chunk in chunks if chunk["choices"]]
    return response.status_code, "".join(delta.get("content") or "" for delta in deltas), chunks[-1]["acm"]


def check_answered(server: ContextServer, told: tuple[int, Any, Any], model: Model, *, is_recorded: bool) -> None:
    """The answer was given, each step read what came before, and `acm` says whether it is recorded."""
    status, text, acm = told
    assert (status, text, acm["stopped_by"]) == (200, "Done.", "answer")
    assert [len(step["operations"]) for step in acm["steps"]] == [1, 1, 0]
    assert [len(request.messages) for request in model.requests] == [2, 4, 6]
    assert ("deleted or replaced" in acm.get("storage", {}).get("warning", "")) is not is_recorded
    assert (server.sessions.looping, server.sessions.undoable) == ({}, {})
    server.store.check_integrity()


@EITHER_WAY
@EACH_STEP
def test_a_loop_whose_session_gives_up_its_id_is_answered(at: int, stream: bool) -> None:
    """It was a 404, or an error behind the text that had been sent."""
    server = make_server()
    model = Interrupted(server, takes_over, at, *STEPS)
    told = asyncio.run(loop(server, asking(TITLE_SYSTEM), model, stream))
    check_answered(server, told, model, is_recorded=False)
    [moved] = sides_of(server.store, "", "s")
    assert "Done." not in str([server.store.get("", name).state for name in ("s", moved.session_id)])
    assert "You write titles." in str(render(server.store.get("", moved.session_id).state))
    assert server.store.get("", "s").state.entries == ()
    assert server.sessions.loops == {}


@EITHER_WAY
def test_a_loop_in_a_side_thread_that_leaves_is_answered(stream: bool) -> None:
    server = make_server()
    identify(server, agent())

    def leaves(server: ContextServer) -> None:
        for number in range(families.MAX_SIDE_THREADS):
            identify(server, ChatClient(AGENT_SYSTEM, ("read",), {}, EXTRA).user(f"Search {number}."))

    model = Interrupted(server, leaves, 1, *STEPS)
    told = asyncio.run(loop(server, asking(TITLE_SYSTEM), model, stream))
    check_answered(server, told, model, is_recorded=False)
    assert len(sides_of(server.store, "", "s")) == families.MAX_SIDE_THREADS


@EITHER_WAY
def test_a_loop_that_keeps_its_session_is_recorded(stream: bool) -> None:
    """The control."""
    server = make_server()
    model = Interrupted(server, lambda server: None, 1, *STEPS)
    told = asyncio.run(loop(server, asking(TITLE_SYSTEM), model, stream))
    check_answered(server, told, model, is_recorded=True)
    assert "Done." in str(server.store.get("", "s").state)


@pytest.mark.parametrize("failure", [REFUSED, RuntimeError("engine gone")], ids=["refused", "exception"])
@pytest.mark.parametrize("at", [0, 1])
def test_a_loop_that_fails_without_its_session_says_why(at: int, failure: Any) -> None:
    """Undoing it failed, and what had happened was lost in a 404."""
    server = make_server()
    model = Interrupted(server, takes_over, at, *STEPS[:at], failure)
    if at == 0 and isinstance(failure, RuntimeError):
        with pytest.raises(RuntimeError, match="engine gone"):
            asyncio.run(loop(server, asking(TITLE_SYSTEM), model))
    else:
        status, said_why, _ = asyncio.run(loop(server, asking(TITLE_SYSTEM), model))
        assert (status, said_why) in [(400, "The prompt is too long."), (500, "engine gone")]
    assert server.sessions.undoable == {}


@pytest.mark.parametrize("removal", ["redacted", "deleted"])
def test_a_loop_whose_text_was_removed_reads_it_no_more(removal: str) -> None:
    """A fork goes with a redaction in its main thread: a further step would send the text to the engine again."""
    server = make_server()
    main = agent()
    asyncio.run(loop(server, main, Model(said("Ropes."))))
    fork = asking(SUMMARY_SYSTEM, *main.messages, {"role": "assistant", "content": "Ropes."})

    def removed(server: ContextServer) -> None:
        session = server.store.get("", "s")
        if removal == "deleted":
            server.delete(session)
            server.store.discard(held[0])
        else:
            edit = server.editor.edit(session, [Edit(EditKind.REDACT, messages=(1, 2))], "exact")
            with pytest.raises(StopIteration):
                edit.send(None)

    model = Interrupted(server, removed, 1, *STEPS)
    held = [server.store.get("", identify(server, fork).params.session_id)]
    with pytest.raises(NotFound):
        asyncio.run(loop(server, fork, model))
    assert len(model.requests) == 2
    assert server.sessions.looping == {}
