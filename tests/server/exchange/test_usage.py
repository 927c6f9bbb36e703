"""The receipt where clients look for it: in the vendors' usage, in a header, in the last event. By official clients."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from typing import Any

import anthropic
import openai
import pytest

from acmserve.server.exchange.receipt_header import RECEIPT_HEADER
from tests.support import http
from tests.support.routes.vendor_asks import ASKS, MAX_TOKENS, Ask, Clients, total
from tests.support.server.scripted_server import MODEL
from tests.support.server.scripts import log_lines, new_session, tool_call

ROUTES = pytest.mark.parametrize("ask", ASKS.values(), ids=ASKS)
STREAMED = pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])


@pytest.fixture(scope="module")
def clients(scripted_server: str) -> Iterator[Clients]:
    with (
        openai.OpenAI(base_url=f"{scripted_server}/v1", api_key="unused", max_retries=0) as one,
        anthropic.Anthropic(base_url=scripted_server, api_key="unused", max_retries=0) as other,
    ):
        yield Clients(one, other)


def story(num_parts: int = 3) -> list[str]:
    """Texts that no other test has, each of several blocks."""
    name = uuid.uuid4().hex
    return [f"{name}\n{log_lines(25, first=1000 * part)}" for part in range(num_parts)]


def in_session() -> dict[str, Any]:
    return {"session_id": new_session(), "acm": {"fidelity": "reuse"}}


@ROUTES
@STREAMED
def test_plain_requests_report_what_the_cache_had(clients: Clients, ask: Ask, stream: bool) -> None:
    texts = story()
    first = ask(clients, texts, {}, stream=stream)
    again = ask(clients, texts, {}, stream=stream)
    assert first.cached == 0
    assert 0 < again.cached < again.prompt == first.prompt
    assert again.prompt - again.cached <= 128, "all whole blocks but the last one"
    assert first.acms == again.acms == []
    assert RECEIPT_HEADER not in again.headers


@ROUTES
@STREAMED
def test_moved_tokens_count_as_cached_ones(clients: Clients, ask: Ask, stream: bool) -> None:
    """The middle of three texts goes: the third is moved, and no usage of stock vLLM would say so."""
    texts, body = story(), in_session()
    ask(clients, texts, body, stream=stream)
    seen = ask(clients, [texts[0], texts[2], "Go on."], body, stream=stream)
    receipt = seen.acms[-1]["receipt"]
    assert receipt["moved_tokens"] > 500
    assert seen.prompt == receipt["prompt_tokens"]
    assert seen.cached == receipt["kept_tokens"] + receipt["moved_tokens"] < seen.prompt


@ROUTES
def test_the_header_has_the_receipt_in_one_line(clients: Clients, ask: Ask) -> None:
    body = in_session()
    seen = ask(clients, story(1), body, stream=False)
    receipt = seen.acms[0]["receipt"]
    counts = "; ".join(f"{name}={receipt[f'{name}_tokens']}" for name in ("prompt", "kept", "moved", "computed"))
    named = f"session={body['session_id']}; found_by=session_id"
    assert seen.headers[RECEIPT_HEADER] == f"{named}; fidelity=reuse; {counts}"
    assert seen.headers["X-Session-ID"] == body["session_id"], "what a proxy in front of replicas learns"


@ROUTES
def test_the_header_of_a_stream_names_the_session(clients: Clients, ask: Ask) -> None:
    body = in_session()
    seen = ask(clients, story(1), body, stream=True)
    assert seen.headers[RECEIPT_HEADER] == f"session={body['session_id']}; found_by=session_id"
    assert seen.headers["X-Session-ID"] == body["session_id"]


def test_a_session_id_cannot_add_a_header(clients: Clients) -> None:
    name = f"{uuid.uuid4().hex}\r\nX-Evil: 1; Grüße"
    seen = ASKS["chat"](clients, ["Hello."], {"session_id": name}, stream=False)
    assert "X-Evil" not in seen.headers
    assert "X-Session-ID" not in seen.headers, "what a header cannot say"
    assert seen.acms[0]["session_id"] == name
    assert f"session={name[:32]}%0D%0AX-Evil%3A%201%3B%20Gr%C3%BC%C3%9Fe; " in seen.headers[RECEIPT_HEADER]


@pytest.mark.parametrize("name", ["chat", "completions"])
def test_the_chunk_that_ends_the_answer_and_the_last_one_have_it(clients: Clients, name: str) -> None:
    """A client that stops at the finish reason finds it, and one that reads the last chunk, which has no choices."""
    seen = ASKS[name](clients, story(1), in_session(), stream=True)
    assert seen.last.choices == []
    assert seen.last.acm == seen.acms[0] == seen.acms[-1]
    assert len(seen.acms) == 2


def test_a_stream_without_usage_has_it_once(scripted_server: str) -> None:
    body = {"model": MODEL, "messages": [{"role": "user", "content": "Hi."}], "max_tokens": MAX_TOKENS, "stream": True}
    answer = http.post(f"{scripted_server}/v1/chat/completions", json=body | in_session())
    with_acm = [line for line in answer.text.splitlines() if '"acm"' in line]
    assert len(with_acm) == 1
    assert '"finish_reason":"' in with_acm[0]


def test_anthropics_stream_begins_and_ends_with_the_same_sum(clients: Clients) -> None:
    """`message_start` is what a meter on the client shows first. The final message of the client has the receipt."""
    texts, body = story(), in_session()
    ASKS["messages"](clients, texts, body, stream=True)
    seen = ASKS["messages"](clients, [texts[0], texts[2], "Go on."], body, stream=True)
    assert total(seen.starts) == total(seen.usage) == seen.acms[0]["receipt"]["prompt_tokens"]
    assert seen.starts.cache_read_input_tokens == seen.cached > 0
    assert seen.acms[0] == seen.acms[1], "message_delta, and the message that the client put together"
    assert "receipt" in seen.acms[0]


@STREAMED
def test_the_tool_loop_reports_its_last_step(clients: Clients, stream: bool) -> None:
    script = [tool_call("search_context", query="harbour"), "Done."]
    xargs = {"script_id": uuid.uuid4().hex, "script": script}
    body = {"session_id": new_session(), "acm": {"tools": "sculptor"}, "vllm_xargs": xargs, "max_tokens": 200}
    seen = ASKS["chat"](clients, story(1), body, stream=stream)
    acm = seen.acms[-1]
    assert len(acm["steps"]) == 2
    receipt = acm["steps"][-1]["receipt"]
    assert seen.cached == receipt["kept_tokens"] + receipt["moved_tokens"] > 0
    if stream:
        assert seen.headers[RECEIPT_HEADER] == f"session={body['session_id']}; found_by=session_id"
        assert seen.headers["X-Session-ID"] == body["session_id"]
        assert [acm for acm in seen.acms if "event" not in acm] == [acm, acm]
    else:
        assert seen.headers["X-Session-ID"] == body["session_id"]
        assert f"; steps=2; fidelity=exact; prompt={receipt['prompt_tokens']}; " in seen.headers[RECEIPT_HEADER]
