"""Receipts out of the official clients' own objects, on every route, streamed or not, from a real server."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from typing import Any

import anthropic
import openai
import pytest
from openai import OpenAI

from acmserve.client import (
    ContextTooLongError,
    PromptReceipt,
    ReceiptStream,
    SessionHandle,
    StepCall,
    StepReceipt,
    acm_of,
    header_receipt,
    receipt_of,
    refusal_of,
)
from acmserve.context.tools.suites import SUITES, tool_names
from tests.support.server.scripted_server import MAX_MODEL_LEN, MODEL
from tests.support.server.scripts import log_lines, new_session, tool_call

ROUTES = ("chat", "responses", "messages")


@pytest.fixture
def anthropic_client(scripted_server: str) -> Iterator[anthropic.Anthropic]:
    with anthropic.Anthropic(base_url=scripted_server, api_key="unused", max_retries=0) as client:
        yield client


@pytest.fixture
def session(scripted_server: str) -> Iterator[SessionHandle]:
    with SessionHandle(scripted_server, new_session(), timeout=300) as handle:
        yield handle


def answer_of(openai_client: OpenAI, other: anthropic.Anthropic, route: str, text: str, extra: dict[str, Any]) -> Any:
    said: Any = [{"role": "user", "content": text}]
    if route == "chat":
        return openai_client.chat.completions.create(model=MODEL, messages=said, max_tokens=200, extra_body=extra)
    if route == "responses":
        return openai_client.responses.create(model=MODEL, input=text, max_output_tokens=200, extra_body=extra)
    return other.messages.create(model=MODEL, messages=said, max_tokens=200, extra_body=extra)


def stream_of(openai_client: OpenAI, other: anthropic.Anthropic, route: str, text: str, extra: dict[str, Any]) -> Any:
    said: Any = [{"role": "user", "content": text}]
    if route == "chat":
        return openai_client.chat.completions.create(
            model=MODEL, messages=said, max_tokens=200, stream=True, extra_body=extra
        )
    if route == "responses":
        return openai_client.responses.create(
            model=MODEL, input=text, max_output_tokens=200, stream=True, extra_body=extra
        )
    return other.messages.create(model=MODEL, messages=said, max_tokens=200, stream=True, extra_body=extra)


@pytest.mark.parametrize("route", ROUTES)
def test_answers_and_streams_have_receipts(
    scripted_client: OpenAI, anthropic_client: anthropic.Anthropic, session: SessionHandle, route: str
) -> None:
    """The second prompt is the first one again, so the cache has all of it but the end."""
    text = f"{uuid.uuid4().hex}\n{log_lines(40)}"
    clients = (scripted_client, anthropic_client)
    first = acm_of(answer_of(*clients, route, text, session.extra_body(fidelity="reuse")))
    assert first is not None
    assert (first.session_id, first.found_by) == (session.session_id, "session_id")
    assert first.receipt is not None
    assert first.receipt.fidelity == "reuse"
    stream = ReceiptStream(stream_of(*clients, route, text, session.extra_body(fidelity="reuse")))
    assert len(list(stream)) > 1
    assert stream.receipt is not None
    assert stream.receipt.prompt_tokens == first.receipt.prompt_tokens
    assert stream.receipt.kept_tokens > first.receipt.prompt_tokens / 2


@pytest.mark.parametrize("route", ROUTES)
def test_without_a_session_there_is_no_receipt(
    scripted_client: OpenAI, anthropic_client: anthropic.Anthropic, route: str
) -> None:
    clients = (scripted_client, anthropic_client)
    assert acm_of(answer_of(*clients, route, "Hello.", {})) is None
    stream = ReceiptStream(stream_of(*clients, route, "Hello.", {}))
    assert len(list(stream)) > 1
    assert stream.acm is None


def test_the_helpers_of_the_clients_are_read_too(
    scripted_client: OpenAI, anthropic_client: anthropic.Anthropic, session: SessionHandle
) -> None:
    said: Any = [{"role": "user", "content": "Hello."}]
    asked: dict[str, Any] = {"model": MODEL, "messages": said, "max_tokens": 8, "extra_body": session.extra_body()}
    with scripted_client.chat.completions.stream(**asked) as chat:
        of_chat = ReceiptStream(chat)
        list(of_chat)
    with anthropic_client.messages.stream(**asked) as events:
        of_messages = ReceiptStream(events)
        list(of_messages)
        whole = receipt_of(events.get_final_message())
    assert of_chat.receipt is not None
    assert of_messages.receipt is not None
    assert isinstance(whole, PromptReceipt)
    raw = scripted_client.chat.completions.with_raw_response.create(**asked)
    line, receipt = header_receipt(raw.headers), receipt_of(raw.parse())
    assert line is not None
    assert receipt is not None
    assert line.session_id == session.session_id
    counts = (line.prompt_tokens, line.kept_tokens, line.moved_tokens, line.computed_tokens)
    assert counts == (receipt.prompt_tokens, receipt.kept_tokens, receipt.moved_tokens, receipt.computed_tokens)


@pytest.mark.parametrize("route", ["chat", "responses"])
def test_steps_of_a_tool_loop_are_told_in_the_stream(
    scripted_client: OpenAI, anthropic_client: anthropic.Anthropic, session: SessionHandle, route: str
) -> None:
    """With all that an answer may have beside the receipt: steps, calls, the budget, the map."""
    script = [tool_call("search_context", query="harbour"), "Done."]
    more: dict[str, Any] = {"map": {"external_context_id": f"corpus-{uuid.uuid4().hex}"}} if route == "chat" else {}
    extra = session.extra_body(tools="sculptor", budget=20_000, **more)
    extra["vllm_xargs"] = {"script_id": uuid.uuid4().hex, "script": script}
    told: list[StepReceipt | StepCall] = []
    stream = ReceiptStream(stream_of(scripted_client, anthropic_client, route, log_lines(40), extra), told.append)
    list(stream)
    acm = stream.acm
    assert acm is not None
    assert acm.steps is not None
    assert [type(each) for each in told] == [StepReceipt, StepCall, StepReceipt]
    (call,) = (each.call for each in told if isinstance(each, StepCall))
    assert acm.steps[0].operations == (call,)
    assert acm.budget is not None
    assert acm.budget.max_tokens == 20_000
    assert (acm.map is None) == (route != "chat")


def test_folds_of_the_handle_are_in_the_next_receipt(scripted_client: OpenAI, session: SessionHandle) -> None:
    history: list[Any] = [
        {"role": "user", "content": f"{uuid.uuid4().hex} Read."},
        {"role": "assistant", "content": log_lines(60)},
        {"role": "user", "content": log_lines(60, first=100)},
    ]

    def ask() -> PromptReceipt:
        extra = session.extra_body(fidelity="reuse")
        answer = scripted_client.chat.completions.create(model=MODEL, messages=history, max_tokens=4, extra_body=extra)
        receipt = receipt_of(answer)
        assert receipt is not None
        return receipt

    whole = ask()
    folded = session.fold((1, 2), fidelity="reuse")
    after = ask()
    assert after.prompt_tokens < whole.prompt_tokens
    assert after.moved_tokens == sum(move.num_tokens for move in after.moves) > 500
    (message,) = (each for each in session.context().messages if each.index == 1)
    assert folded.edits[0].fragment_id in str(message.message)
    session.restore(folded.edits[0].fragment_id)
    assert ask().prompt_tokens == whole.prompt_tokens


def test_refusals_of_the_official_clients_are_typed(
    scripted_client: OpenAI, anthropic_client: anthropic.Anthropic, session: SessionHandle
) -> None:
    long = "word " * (MAX_MODEL_LEN + 100)
    for client, route in ((scripted_client, "chat"), (scripted_client, "responses"), (anthropic_client, "messages")):
        with pytest.raises((openai.APIStatusError, anthropic.APIStatusError)) as caught:
            answer_of(scripted_client, anthropic_client, route, long, session.extra_body())
        assert type(refusal_of(caught.value)) is ContextTooLongError, client
        with pytest.raises((openai.APIStatusError, anthropic.APIStatusError)) as caught:
            answer_of(scripted_client, anthropic_client, route, "Hello.", {"session_id": "s", "acm": {"fidelity": "x"}})
        error = refusal_of(caught.value)
        assert error is not None
        assert error.status == 400
        assert "acm.fidelity" in error.message


@pytest.mark.parametrize("suite", SUITES)
def test_tools_are_ready_for_a_tools_array(scripted_client: OpenAI, suite: str) -> None:
    given = scripted_client.get("/acm/tools", cast_to=dict[str, Any], options={"params": {"suite": suite}})
    assert [tool["function"]["name"] for tool in given["tools"]] == list(tool_names(suite))
    answer = scripted_client.chat.completions.create(
        model=MODEL,
        messages=[{"role": "user", "content": "Hello."}],
        max_tokens=1,
        tools=given["tools"],  # type: ignore[arg-type]
    )
    assert answer.choices[0].message.role == "assistant"
