"""Errors as the vendors' clients know them, from the real server, by the official clients."""

from __future__ import annotations

import uuid
from argparse import Namespace
from collections.abc import Iterator
from typing import Any

import anthropic
import openai
import pytest
from fastapi import FastAPI
from starlette.testclient import TestClient
from vllm.entrypoints.serve.exception_handling.register import init_exception_handler
from vllm.exceptions import GenerationError

from acmserve.server.http.vendor_errors import anthropic_error, openai_error
from acmserve.server.http.vendor_route import VendorRoute
from acmserve.server.vllm.overflow import Overflow, asks_for_none, find_overflow
from tests.support import http
from tests.support.routes.vendor_asks import ASKS, Clients
from tests.support.server.scripted_server import MAX_MODEL_LEN, MODEL
from tests.support.server.scripts import log_lines, new_session

OPENAI_ROUTES = [name for name in ASKS if name != "messages"]
STREAMED = pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
SESSION = pytest.mark.parametrize("in_session", [False, True], ids=["plain", "session"])
LIMIT = f"This model's maximum context length is {MAX_MODEL_LEN} tokens."
SENTENCES = [
    f"{LIMIT} However, your messages resulted in 40000 tokens. Please reduce",
    f"{LIMIT} However, your prompt contains at least 40000 input tokens, which exceeds this limit even",
    f"Input length (40000) exceeds model's maximum context length ({MAX_MODEL_LEN}).",
    f"The engine prompt length 40000 exceeds the max_model_len {MAX_MODEL_LEN}. Please reduce prompt.",
    f"The decoder prompt (length 40000) is longer than the maximum model length of {MAX_MODEL_LEN}. Make sure",
]


@pytest.fixture(scope="module")
def clients(scripted_server: str) -> Iterator[Clients]:
    with (
        openai.OpenAI(base_url=f"{scripted_server}/v1", api_key="unused", max_retries=0) as one,
        anthropic.Anthropic(base_url=scripted_server, api_key="unused", max_retries=0) as other,
    ):
        yield Clients(one, other)


@pytest.fixture(scope="module")
def long_texts() -> list[str]:
    """More tokens than the model takes."""
    return [log_lines(700, first=700 * part) for part in range(4)]


@pytest.fixture(scope="module")
def num_long(scripted_server: str, long_texts: list[str]) -> int:
    """Tokens of the texts, counted in parts that the server takes."""
    counted = 0
    for text in long_texts:
        answer = http.post(f"{scripted_server}/tokenize", json={"model": MODEL, "prompt": text})
        counted += answer.json()["count"]
    return counted


@pytest.fixture(scope="module")
def filling_text(scripted_server: str) -> str:
    """A text with which the prompt of one user message has exactly as many tokens as the model takes."""

    def num_tokens(num_words: int) -> int:
        messages = [{"role": "user", "content": " a" * num_words}]
        answer = http.post(f"{scripted_server}/tokenize", json={"model": MODEL, "messages": messages})
        return int(answer.json()["count"])

    num_words = MAX_MODEL_LEN - num_tokens(0)
    num_words += MAX_MODEL_LEN - num_tokens(num_words - 50) - 50
    assert num_tokens(num_words) == MAX_MODEL_LEN
    return " a" * num_words


def session(in_session: bool) -> dict[str, Any]:
    return {"session_id": new_session()} if in_session else {}


@STREAMED
@SESSION
@pytest.mark.parametrize("name", OPENAI_ROUTES)
def test_an_overflow_has_openais_code_and_the_whole_count(
    clients: Clients, name: str, in_session: bool, stream: bool, long_texts: list[str], num_long: int
) -> None:
    """The status is that of the error, in a stream too. The first half is also what clients of vLLM look for."""
    with pytest.raises(openai.BadRequestError) as refused:
        ASKS[name](clients, long_texts, session(in_session), stream=stream)
    assert refused.value.code == "context_length_exceeded"
    assert refused.value.type == "invalid_request_error"
    overflow = find_overflow(refused.value.body["message"], 0)  # type: ignore[index]
    assert overflow is not None
    assert overflow.max_tokens == MAX_MODEL_LEN
    assert num_long <= overflow.num_tokens <= num_long + 100, "the texts and what the template writes around them"
    assert refused.value.body["message"] == overflow.sentence  # type: ignore[index]


@STREAMED
@SESSION
def test_an_overflow_has_anthropics_words(
    clients: Clients, in_session: bool, stream: bool, long_texts: list[str], num_long: int
) -> None:
    with pytest.raises(anthropic.BadRequestError) as refused:
        ASKS["messages"](clients, long_texts, session(in_session), stream=stream)
    body: Any = refused.value.body
    assert body["type"] == "error"
    assert body["error"]["type"] == "invalid_request_error"
    said = body["error"]["message"].split()
    assert said[:4] == ["prompt", "is", "too", "long:"]
    assert said[5:] == ["tokens", ">", str(MAX_MODEL_LEN), "maximum"]
    assert num_long <= int(said[4]) <= num_long + 100


@pytest.mark.parametrize("name", ["chat", "responses", "messages"])
@STREAMED
def test_a_prompt_that_leaves_no_room_for_an_answer_is_an_overflow(
    clients: Clients, name: str, stream: bool, filling_text: str
) -> None:
    """vLLM says `max_tokens must be at least 1, got 0` here."""
    with pytest.raises((openai.BadRequestError, anthropic.BadRequestError)) as refused:
        ASKS[name](clients, [filling_text], {}, stream=stream)
    said = str(refused.value.body)
    assert str(MAX_MODEL_LEN) in said
    assert str(MAX_MODEL_LEN + 1) in said
    assert ("prompt is too long" if name == "messages" else "context_length_exceeded") in said


@SESSION
@pytest.mark.parametrize(
    ("path", "asked"),
    [
        ("chat/completions", {"messages": [{"role": "user", "content": "Hi."}], "max_tokens": 0}),
        ("chat/completions", {"messages": [{"role": "user", "content": "Hi."}], "max_completion_tokens": 0}),
        ("completions", {"prompt": "Hi.", "max_tokens": 0}),
        ("responses", {"input": "Hi.", "max_output_tokens": 0}),
    ],
)
def test_whoever_asks_for_no_token_is_told_so(
    scripted_server: str, path: str, asked: dict[str, Any], in_session: bool
) -> None:
    """Agents compact their conversation where they hear of an overflow."""
    answer = http.post(f"{scripted_server}/v1/{path}", json={"model": MODEL} | asked | session(in_session))
    assert answer.status_code == 400
    error = answer.json()["error"]
    assert error["message"].startswith("max_tokens must be at least 1, got 0.")
    assert (error["param"], error["code"]) == ("max_tokens", 400)


@pytest.mark.parametrize("name", ASKS)
@STREAMED
def test_an_unknown_model_is_not_found_and_the_error_names_the_remedy(
    clients: Clients, name: str, stream: bool
) -> None:
    with pytest.raises((openai.NotFoundError, anthropic.NotFoundError)) as refused:
        ASKS[name](clients, ["Hello."], {}, stream=stream, model="claude-haiku-4-5-20251001")
    said = str(refused.value.body)
    assert f"--model-alias claude-haiku-4-5-20251001={MODEL} " in said
    if name == "messages":
        assert refused.value.body["error"]["type"] == "not_found_error"  # type: ignore[index,call-overload]


def test_a_malformed_request_of_anthropics_has_the_vendors_shape(scripted_server: str) -> None:
    """It is refused before the route is entered."""
    answer = http.post(f"{scripted_server}/v1/messages", json={"model": MODEL, "messages": "none"})
    assert answer.status_code == 400
    body = answer.json()
    assert body["type"] == "error"
    assert body["error"]["type"] == "invalid_request_error"
    assert "max_tokens" in body["error"]["message"]


def test_other_errors_of_openais_routes_stay_as_vllm_writes_them(scripted_server: str) -> None:
    body = {"model": MODEL, "messages": [{"role": "user", "content": "Hi."}], "max_tokens": 2, "temperature": -1}
    answer = http.post(f"{scripted_server}/v1/chat/completions", json=body)
    assert answer.status_code == 400
    assert answer.json()["error"]["code"] == 400
    assert answer.json()["error"]["type"] == "BadRequestError"


@pytest.mark.parametrize("sentence", SENTENCES)
def test_every_sentence_of_vllms_is_understood(sentence: str) -> None:
    assert find_overflow(sentence, 0) == Overflow(40_000, MAX_MODEL_LEN)


@pytest.mark.parametrize("sentence", ["max_tokens must be at least 1, got -3.", "temperature must be non-negative", ""])
def test_other_sentences_are_no_overflow(sentence: str) -> None:
    assert find_overflow(sentence, MAX_MODEL_LEN) is None


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        ({"max_tokens": 0}, True),
        ({"max_completion_tokens": 0, "max_tokens": 5}, True),
        ({"max_completion_tokens": 5, "max_tokens": 0}, False),
        ({"max_completion_tokens": None, "max_tokens": "0"}, True),
        ({"max_output_tokens": 0}, True),
        ({"max_tokens": 5}, False),
        ({}, False),
        (None, False),
    ],
)
def test_who_asks_for_no_token(body: object, expected: bool) -> None:
    assert asks_for_none(body) is expected


@pytest.mark.parametrize("path", ["/v1/messages", "/v1/chat/completions"])
def test_an_error_of_the_engine_has_the_vendors_shape(path: str) -> None:
    """It is raised in a session, where vLLM's own function of messages answers it itself."""

    async def fail() -> None:
        raise GenerationError

    app = FastAPI()
    init_exception_handler(app)
    app.state.args = Namespace(log_error_stack=False)
    app.router.add_api_route(path, fail, methods=["POST"], route_class_override=VendorRoute)
    answer = TestClient(app, raise_server_exceptions=False).post(path, json={})
    assert answer.status_code == 500
    shape = {"type": "error", "error": {"type": "api_error"}} if path == "/v1/messages" else {"error": {"code": 500}}
    body = answer.json()
    assert body.get("type") == shape.get("type")
    assert shape["error"].items() <= body["error"].items()  # type: ignore[attr-defined]
    assert "Internal server error" in body["error"]["message"]


@pytest.mark.parametrize(
    ("status", "kind"),
    [(400, "invalid_request_error"), (404, "not_found_error"), (418, "invalid_request_error"), (500, "api_error")],
)
def test_anthropics_errors_are_named_by_their_status(status: int, kind: str) -> None:
    told = anthropic_error(
        status, {"error": {"message": "no", "type": "BadRequestError", "param": "n", "code": status}}
    )
    assert told == {"type": "error", "error": {"type": kind, "message": "no", "param": "n", "code": status}}
    assert anthropic_error(status, {"detail": "no"})["error"] == {"message": "no", "type": kind}


def test_what_stands_beside_an_error_stays() -> None:
    body = {"error": {"message": uuid.uuid4().hex, "code": 409, "remedy": "wait"}, "acm": {"session_id": "s"}}
    assert openai_error(body) == body
    assert openai_error(body, Overflow(9, 8))["acm"] == {"session_id": "s"}
