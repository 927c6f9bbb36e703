"""Receipts are found in what the official clients make of answers and events. What is not there is None."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import anthropic.types as anthropic_types
import pytest
from openai.types.chat import ChatCompletion, ChatCompletionChunk
from openai.types.responses import Response, ResponseCompletedEvent, ResponseInProgressEvent

from acmserve.client.answers import StepCall, StepReceipt, acm_of, header_receipt, receipt_of, step_of
from acmserve.client.errors import UnreadableAnswer
from acmserve.client.receipts import KVMove, PromptReceipt
from acmserve.client.streams import AsyncReceiptStream, ReceiptStream
from acmserve.server.exchange.receipt_header import receipt_line, session_line

RECEIPT: dict[str, Any] = {
    "fidelity": "reuse",
    "prompt_tokens": 640,
    "kept_tokens": 128,
    "moved_tokens": 480,
    "computed_tokens": 32,
    "precomputed_tokens": 0,
    "repaired_tokens": 0,
    "chosen": None,
    "reason": None,
    "moves": [{"dst_start": 160, "src_start": 900, "num_tokens": 480}],
    "fallback_reason": None,
    "edit_boundaries": None,
    "transition_norm": None,
}
ACM = {"session_id": "agent-7", "found_by": "session_id", "receipt": RECEIPT}
OPERATION = {
    "tool": "search_context",
    "arguments": {"query": "mill"},
    "result": "Found.",
    "is_error": False,
    "fragment_ids": [],
    "changed": False,
}
CHAT = {"id": "c", "object": "chat.completion", "created": 1, "model": "m", "choices": []}
CHUNK = {"id": "c", "object": "chat.completion.chunk", "created": 1, "model": "m", "choices": []}
RESPONSE = {"id": "r", "object": "response", "created_at": 1, "model": "m", "output": [], "status": "completed"}
MESSAGE = {"id": "m", "type": "message", "role": "assistant", "model": "m", "content": []}
DELTA = {"type": "message_delta", "delta": {"stop_reason": "end_turn"}, "usage": {"output_tokens": 1}}


def answers(acm: dict[str, Any] | None) -> list[Any]:
    """Each kind of answer, and of event that ends one, as the clients make it of JSON, and the JSON of one."""
    ours = {} if acm is None else {"acm": acm}
    return [
        ChatCompletion.construct(**CHAT, **ours),
        ChatCompletionChunk.construct(**CHUNK, **ours),
        Response.construct(**RESPONSE, **ours),
        ResponseCompletedEvent.construct(type="response.completed", sequence_number=1, response=RESPONSE | ours),
        anthropic_types.Message.construct(**MESSAGE, **ours),
        anthropic_types.RawMessageStartEvent.construct(type="message_start", message=MESSAGE | ours),
        anthropic_types.RawMessageDeltaEvent.construct(**DELTA, **ours),
        {**CHAT, **ours},
        {"type": "response.completed", "response": {**RESPONSE, **ours}},
    ]


@pytest.mark.parametrize("index", range(9))
def test_a_receipt_is_found_in_every_kind_of_answer(index: int) -> None:
    answer = answers(ACM)[index]
    receipt = receipt_of(answer)
    assert isinstance(receipt, PromptReceipt)
    assert receipt.kept_tokens + receipt.moved_tokens + receipt.computed_tokens == receipt.prompt_tokens == 640
    assert receipt.moves == (KVMove(160, 900, 480),)
    acm = acm_of(answer)
    assert acm is not None
    assert (acm.session_id, acm.found_by, acm.thread, acm.steps) == ("agent-7", "session_id", None, None)
    assert step_of(answer) is None


@pytest.mark.parametrize("index", range(9))
def test_no_receipt_is_none(index: int) -> None:
    assert acm_of(answers(None)[index]) is None
    assert receipt_of(answers(None)[index]) is None
    assert receipt_of(answers(ACM | {"receipt": None})[index]) is None


@pytest.mark.parametrize("nothing", [None, "", "acm", 7, [], {}, {"message": "no"}, {"response": None}])
def test_what_is_no_answer_has_no_receipt(nothing: object) -> None:
    assert acm_of(nothing) is None
    assert step_of(nothing) is None


@pytest.mark.parametrize("spoiled", [{"receipt": {}}, {"receipt": RECEIPT | {"moves": None}}, {"session_id": None}])
def test_a_receipt_that_cannot_be_read_is_an_error(spoiled: dict[str, Any]) -> None:
    with pytest.raises(UnreadableAnswer):
        acm_of(CHAT | {"acm": ACM | spoiled})
    with pytest.raises(UnreadableAnswer, match="acm must be an object, not list"):
        acm_of(CHAT | {"acm": [ACM]})


def step_events() -> list[Any]:
    """What streams of chats and of responses tell between the steps of a tool loop."""
    told = ({"event": "receipt", "step": 0, "receipt": RECEIPT}, {"event": "tool", "step": 0, **OPERATION})
    chunks = [ChatCompletionChunk.construct(**CHUNK, acm=acm) for acm in told]
    return [
        *chunks,
        *(
            ResponseInProgressEvent.construct(
                type="response.in_progress", sequence_number=1, response=RESPONSE, acm=acm
            )
            for acm in told
        ),
    ]


def test_a_stream_is_handed_through_and_its_receipt_is_kept() -> None:
    events = [ChatCompletionChunk.construct(**CHUNK), *step_events(), ChatCompletionChunk.construct(**CHUNK, acm=ACM)]
    told: list[StepReceipt | StepCall] = []
    stream = ReceiptStream(events, told.append)
    assert stream.acm is None
    seen = []
    for event in stream:
        assert stream.receipt is None or event is events[-1]
        seen.append(event)
    assert seen == events
    assert stream.receipt is not None
    assert stream.receipt.moved_tokens == 480
    assert [type(each) for each in told] == [StepReceipt, StepCall] * 2
    call = told[1]
    assert isinstance(call, StepCall)
    assert (call.step, call.call.tool, call.call.arguments) == (0, "search_context", {"query": "mill"})
    assert all(acm_of(event) is None for event in step_events())
    assert step_of(CHUNK | {"acm": {"event": "of a newer server"}}) is None


def test_what_the_beginning_of_a_stream_knew_does_not_outlive_its_end() -> None:
    """Anthropic's helper repeats the message of the beginning, behind the end."""
    early = ACM | {"receipt": RECEIPT | {"kept_tokens": 0, "computed_tokens": 160}}
    begin = {"type": "message_start", "message": MESSAGE | {"acm": early}}
    stop = {"type": "message_stop", "message": MESSAGE | {"acm": early}}
    stream = ReceiptStream([begin, DELTA | {"acm": ACM}, stop])
    list(stream)
    assert stream.receipt is not None
    assert stream.receipt.kept_tokens == 128


def test_an_asynchronous_stream_is_handed_through() -> None:
    events = answers(ACM)[:2]

    async def source() -> AsyncIterator[Any]:
        for event in events:
            yield event

    async def read() -> tuple[list[Any], int | None]:
        stream = AsyncReceiptStream(source())
        seen = [event async for event in stream]
        return seen, None if stream.receipt is None else stream.receipt.prompt_tokens

    assert asyncio.run(read()) == (events, 640)


def test_the_line_of_the_header_is_read_back() -> None:
    """As the server writes it."""
    acm = {
        "session_id": "a; b=%\n",
        "found_by": "metadata.user_id",
        "steps": [1, 2],
        "receipt": RECEIPT | {"chosen": "repair", "fallback_reason": "x y"},
    }
    receipt = header_receipt({"x-acm-receipt": receipt_line(acm)})
    assert receipt is not None
    assert (receipt.session_id, receipt.fidelity, receipt.num_steps) == ("a; b=%\n", "reuse", 2)
    assert receipt.found_by == "metadata.user_id"
    counts = (receipt.prompt_tokens, receipt.kept_tokens, receipt.moved_tokens, receipt.computed_tokens)
    assert counts == (640, 128, 480, 32)
    assert (receipt.chosen, receipt.fallback_reason) == ("repair", "x y")
    of_stream = header_receipt({"X-ACM-Receipt": session_line("s", {"found_by": "content", "budget": {}})})
    assert of_stream is not None
    assert (of_stream.session_id, of_stream.found_by, of_stream.fidelity) == ("s", "content", None)
    assert of_stream.prompt_tokens is None
    of_older_server = header_receipt({"X-ACM-Receipt": "session=s"})
    assert of_older_server is not None
    assert of_older_server.found_by is None


def test_a_header_that_says_nothing_is_none_and_a_broken_one_an_error() -> None:
    assert header_receipt({"content-type": "text/plain"}) is None
    assert header_receipt({"X-ACM-Receipt": "none, this request has several answers"}) is None
    for broken in ("fidelity=reuse", "session=s; kept=many"):
        with pytest.raises(UnreadableAnswer):
            header_receipt({"X-ACM-Receipt": broken})
