"""The loop beside a stand-in for vLLM's route function: what vLLM does rarely, and what only the loop can spoil.

The stand-in answers in vLLM's words. Sessions, tools and recording are the real ones. The real engine is in
`test_loop.py`.
"""

from __future__ import annotations

import asyncio
import json
from contextlib import aclosing
from types import SimpleNamespace
from typing import Any

import pytest
from fastapi.exceptions import RequestValidationError
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from vllm.exceptions import VLLMValidationError

from acmserve.context.eviction.compact import Summary
from acmserve.context.session.history import adopt
from acmserve.context.session.render import render
from acmserve.context.session.state import Author
from acmserve.context.storage.session import Session
from acmserve.context.storage.session_store import SessionStore
from acmserve.context.tools.run import SummaryWanted
from acmserve.errors import Unavailable
from acmserve.plan.request import SessionParams
from acmserve.server.chat.loop import Turn, run_loop
from acmserve.server.context.server import ContextServer
from acmserve.server.exchange.served_prompts import ServedContexts
from acmserve.server.models.embedder import NoEmbedder
from acmserve.server.options.loop_options import LoopOptions
from tests.support.instant_loop import run_instantly
from tests.support.routes.stand_in_model import RAW, Model, call, said
from tests.support.server.acm_app import WithoutLive

TEXT = "".join(f"Word number {n} of a long text. " for n in range(40))
MESSAGES: list[dict[str, Any]] = [{"role": "user", "content": f"BEGIN {TEXT}END"}]


class Words:
    """One token a word."""

    all_special_ids: tuple[int, ...] = ()

    def starts(self, text: str) -> list[int]:
        return [i for i, letter in enumerate(text) if letter != " " and (i == 0 or text[i - 1] == " ")]


class NoSummarizer(WithoutLive):
    max_tokens = 64

    async def summarize(self, wanted: SummaryWanted) -> str:
        raise Unavailable("the server for summaries cannot be reached")

    async def summarize_conversation(self, text: str, num_tokens: int, instructions: str = "") -> Summary:
        raise Unavailable("the server for summaries cannot be reached")


CUT = call("fragment_context", start_marker="BEGIN", end_marker="END", num_fragments=2)


def make_turn(**options: Any) -> Turn:
    words: Any = Words()
    server = ContextServer(SessionStore(), words, NoSummarizer(), NoEmbedder(), ServedContexts(words))
    session = server.store.open("", "s")
    server.store.save(session, adopt(session.state, MESSAGES).state)
    loop = LoopOptions(**({"suites": ("sculptor",), "max_tool_calls": 5} | options))
    return Turn(server, session, loop, SessionParams("s"))


def run(turn: Turn, model: Model, **body: Any) -> Response | None:
    request = {"model": "m", "messages": MESSAGES, **body}
    return asyncio.run(run_loop(turn, model, RAW, request))


def run_stream(turn: Turn, model: Model, raw_request: Request = RAW, **body: Any) -> list[Any]:
    """The events of a stream, parsed where they are JSON."""

    async def collect() -> list[str]:
        request = {"model": "m", "messages": MESSAGES, "stream": True, **body}
        response = await run_loop(turn, model, raw_request, request)
        assert isinstance(response, StreamingResponse)
        return [str(event) async for event in response.body_iterator]

    events = [event.removeprefix("data: ").strip() for event in run_instantly(collect())]
    return [json.loads(event) if event.startswith("{") else event for event in events]


def parsed(response: Response | None) -> Any:
    assert isinstance(response, JSONResponse)
    return json.loads(bytes(response.body))


def origins(session: Session) -> list[Author]:
    return [entry.origin for entry in session.state.entries]


def test_steps_become_one_answer_and_the_session_keeps_what_the_client_does_not_see() -> None:
    turn, model = make_turn(), Model(said("Cutting.", CUT), said("Done."))
    body = parsed(run(turn, model))
    assert (body["id"], body["created"]) == ("chatcmpl-0", 0)
    assert body["choices"][0]["message"]["content"] == "Cutting.\n\nDone."
    assert body["usage"] == {"prompt_tokens": 10, "completion_tokens": 6, "total_tokens": 16}
    assert [step["receipt"] for step in body["acm"]["steps"]] == [{"number": 0}, {"number": 1}]
    assert origins(turn.session) == [Author.CLIENT, Author.INTERNAL, Author.INTERNAL, Author.ANSWER]
    assert turn.session.state.entries[-1].message["content"] == "Done."
    history = [*MESSAGES, body["choices"][0]["message"], {"role": "user", "content": "Next"}]
    assert adopt(turn.session.state, history).num_known == 2
    assert [message["role"] for message in render(adopt(turn.session.state, history).state)] == [
        "user",
        "assistant",
        "tool",
        "assistant",
        "user",
    ]


def test_the_model_reads_the_results_of_its_calls() -> None:
    turn, model = make_turn(), Model(said(None, CUT, call("dance", "c2")), said("Done."))
    run(turn, model)
    (asked,) = [m for m in model.requests[1].messages if m["role"] == "assistant"]
    results = [m for m in model.requests[1].messages if m["role"] == "tool"]
    assert [made["id"] for made in asked["tool_calls"]] == [r["tool_call_id"] for r in results] == ["c1", "c2"]
    assert results[0]["content"].startswith("Made 2 fragments")
    assert results[1]["content"].startswith("Error: name: there is no tool 'dance'.")


@pytest.mark.parametrize(
    ("name", "arguments", "told"),
    [
        ("fold_fragment", '{"fragment_id": NaN}', {"fragment_id": None}),
        ("fold_fragment", '{"fragment_id": 1e999}', {"fragment_id": None}),
        ("fold_fragment", '{"fragment_id": "\\ud800"}', {"fragment_id": "\ufffd"}),
    ],
)
def test_a_call_that_json_cannot_say_is_told_as_it_can(name: str, arguments: str, told: Any) -> None:
    """The answer was lost with its session's turn, or its events were no JSON. The tool reads what the model wrote."""
    made = {"id": "c1", "type": "function", "function": {"name": name, "arguments": arguments}}
    turn = make_turn()
    body = parsed(run(turn, Model(said(None, made), said("Done."))))
    (operation,) = body["acm"]["steps"][0]["operations"]
    assert (operation["arguments"], operation["tool"]) == (told, name)
    assert operation["is_error"]
    assert body["choices"][0]["message"]["content"] == "Done."
    events = run_stream(make_turn(), Model(said(None, made), said("Done.")))
    json.dumps(events, ensure_ascii=False, allow_nan=False).encode()
    told_events = [event["acm"] for event in events if isinstance(event, dict) and "event" in event.get("acm", {})]
    assert operation.items() <= next(event for event in told_events if event["event"] == "tool").items()


def test_the_load_counter_of_every_step_is_run() -> None:
    model = Model(said(None, CUT), said("Done."))
    response = run(make_turn(), model)
    assert response is not None
    assert response.background is not None
    asyncio.run(response.background())
    streamed = Model(said(None, CUT), said("Done."))
    run_stream(make_turn(), streamed)
    assert (model.num_background, streamed.num_background) == (2, 2)


def test_a_stream_has_one_id_one_role_and_one_end() -> None:
    turn, model = make_turn(), Model(said("Cutting.", CUT), said("Done."))
    events = run_stream(turn, model)
    chunks = [event for event in events if isinstance(event, dict)]
    assert {chunk["id"] for chunk in chunks} == {"chatcmpl-0"}
    deltas = [chunk["choices"][0]["delta"] for chunk in chunks if chunk["choices"]]
    assert "".join(delta.get("content") or "" for delta in deltas) == "Cutting.\n\nDone."
    assert sum("role" in delta for delta in deltas) == 1
    assert not any("tool_calls" in delta for delta in deltas)
    reasons = [chunk["choices"][0]["finish_reason"] for chunk in chunks if chunk["choices"]]
    assert [reason for reason in reasons if reason] == ["stop"]
    assert chunks[-1]["usage"]["completion_tokens"] == 6
    assert events.count(": keep-alive") == 2
    assert events[-1] == "[DONE]"
    assert events.count("[DONE]") == 1


@pytest.mark.parametrize("line", [None, JSONResponse({"error": {"message": "no"}}, status_code=400)])
def test_the_first_step_fails_as_vllm_says_it(line: Response | None) -> None:
    assert run(make_turn(), Model(line)) is line


def test_a_request_that_vllm_cannot_read_is_a_validation_error() -> None:
    with pytest.raises(RequestValidationError):
        run(make_turn(), Model(), temperature="hot")


@pytest.mark.parametrize(
    ("failure", "code"),
    [
        (JSONResponse({"error": {"message": "too long", "code": 400}}, status_code=400), 400),
        (VLLMValidationError("too long", parameter="max_tokens"), 400),
        (RuntimeError("engine gone"), 500),
    ],
)
def test_a_later_step_that_fails_says_what_was_done(failure: Any, code: int) -> None:
    body = parsed(run(make_turn(), Model(said(None, CUT), failure)))
    assert body["error"]["code"] == code
    assert [operation["tool"] for operation in body["acm"]["steps"][0]["operations"]] == ["fragment_context"]
    events = run_stream(make_turn(), Model(said(None, CUT), failure))
    assert events[-2]["error"]["code"] == code
    assert events[-2]["acm"]["steps"] == body["acm"]["steps"]
    assert events[-1] == "[DONE]"


def test_a_client_that_has_gone_gets_nothing() -> None:
    turn = make_turn()
    assert run(turn, Model(said(None, CUT), None)) is None
    assert adopt(turn.session.state, MESSAGES).state.entries == turn.session.state.entries[:1]


def test_a_model_that_cannot_be_reached_for_a_summary_is_a_result() -> None:
    turn = make_turn()
    run(turn, Model(said(None, CUT), said("Done.")))
    fragment_id = turn.session.state.fragments[0].fragment_id
    summarize = call("summarize_fragment", fragment_id=fragment_id, focus="main points")
    body = parsed(run(turn, Model(said(None, summarize), said("Then not."))))
    (operation,) = body["acm"]["steps"][0]["operations"]
    assert operation["is_error"]
    assert "cannot be reached" in operation["result"]
    assert body["choices"][0]["message"]["content"] == "Then not."


def test_a_slow_step_keeps_the_connection_alive() -> None:
    class SlowModel(Model):
        async def __call__(self, request: Any, raw_request: Request) -> Response | None:
            await asyncio.sleep(len(self.requests))
            return await super().__call__(request, raw_request)

    app = SimpleNamespace(state=SimpleNamespace(args=SimpleNamespace(sse_keep_alive_interval=0.05)))
    turn, model = make_turn(), SlowModel(said(None, CUT), said("Done."))
    events = run_stream(turn, model, raw_request=Request({**RAW.scope, "app": app}))
    assert events.count(": keep-alive") > 3
    assert turn.session.state.entries[-1].message["content"] == "Done."


def test_closing_a_stream_closes_vllms_and_keeps_whole_steps() -> None:
    turn, model = make_turn(), Model(said(None, CUT), said("A long answer."))

    async def leave() -> None:
        response = await run_loop(turn, model, RAW, {"model": "m", "messages": MESSAGES, "stream": True})
        assert isinstance(response, StreamingResponse)
        async with aclosing(response.body_iterator) as events:  # type: ignore[type-var]
            async for event in events:
                if '"content":"A"' in str(event):
                    break

    asyncio.run(leave())
    assert model.num_background == 2
    assert origins(turn.session) == [Author.CLIENT, Author.INTERNAL, Author.INTERNAL]
    turn.session.state.check_integrity()


def test_calls_of_a_cut_off_step_are_not_carried_out() -> None:
    turn = make_turn()
    body = parsed(run(turn, Model(said("Cutting.", CUT, finish_reason="length"))))
    assert body["acm"]["stopped_by"] == "length"
    assert "tool_calls" not in body["choices"][0]["message"]
    assert turn.session.state.fragments == ()
    assert "tool_calls" not in turn.session.state.entries[-1].message


def test_a_half_call_without_a_word_before_it_is_no_text(monkeypatch: pytest.MonkeyPatch) -> None:
    turn = make_turn()
    monkeypatch.setattr(turn.server, "call_marks", ("<tool_call>",))
    response = run(turn, Model(said("<tool_call>\nsearch_context(7)\n</tool_call>")))
    assert isinstance(response, JSONResponse)
    assert json.loads(bytes(response.body))["choices"][0]["message"]["content"] is None
    assert "<tool_call>" not in str(render(turn.session.state))
