"""A real server and unmodified clients: receipts, refusals, counters, and nothing new for requests without session.

None of it depends on what a model says. The bundled one is asked in `test_real_model.py`, and by the first pages.
"""

from __future__ import annotations

import itertools
import json
import time
from collections.abc import Iterator
from typing import Any

import anthropic
import openai
import pytest
from openai import OpenAI
from openai.types.chat import ChatCompletionMessageParam
from prometheus_client.parser import text_string_to_metric_families

from tests.support import http
from tests.support.routes.vendor_asks import total
from tests.support.server.bad_requests import BAD_REQUESTS
from tests.support.server.scripted_server import MODEL

TIMEOUT = http.SECONDS
COUNTS = ("kept_tokens", "moved_tokens", "computed_tokens")
MARKER = '[folded f1a2b3: 700 tokens hidden; restore_fragment("f1a2b3") to read]'
QUESTION: list[ChatCompletionMessageParam] = [{"role": "user", "content": "What is the capital of France?"}]
_numbers = itertools.count()


def new_session() -> str:
    return f"session-{next(_numbers)}"


def log_lines(first: int, last: int) -> str:
    """Lines that all differ, as tool results do."""
    places = ("harbour", "mill", "orchard", "quarry", "chapel", "ferry", "kiln")
    lines = (f"{n}: reading {n * n % 97} taken at the {places[n % 7]}, {n * 31 % 89} kept" for n in range(first, last))
    return "\n".join(lines)


def history(first_log: str) -> list[ChatCompletionMessageParam]:
    return [
        {"role": "system", "content": "You keep the records of a valley."},
        {"role": "user", "content": f"Here is the first log:\n{first_log}"},
        {"role": "assistant", "content": "I have read the first log."},
        {"role": "user", "content": f"Here is the second log:\n{log_lines(40, 70)}\nWhat is the last reading?"},
    ]


def check_acm(acm: Any, session_id: str, prompt_tokens: int, fidelity: str = "exact") -> dict[str, Any]:
    """Check an answer's `acm` and return its receipt."""
    assert set(acm) == {"session_id", "found_by", "receipt"}
    assert acm["session_id"] == session_id
    receipt: dict[str, Any] = acm["receipt"]
    parts = {"precomputed_tokens", "loaded_tokens", "repaired_tokens", "moves"}
    assert set(receipt) == {
        "fidelity",
        "chosen",
        "reason",
        "prompt_tokens",
        *COUNTS,
        *parts,
        "fallback_reason",
        "edit_boundaries",
        "transition_norm",
    }
    assert receipt["fidelity"] == fidelity
    assert receipt["prompt_tokens"] == prompt_tokens
    assert sum(receipt[count] for count in COUNTS) == prompt_tokens
    assert sum(move["num_tokens"] for move in receipt["moves"]) == receipt["moved_tokens"]
    return receipt


def ask(client: OpenAI, messages: list[ChatCompletionMessageParam], **extra: Any) -> tuple[Any, int, str | None]:
    """One answer that is not streamed: its `acm`, its prompt tokens, its text."""
    answer = client.chat.completions.create(
        model=MODEL, messages=messages, max_tokens=4, temperature=0, extra_body=extra or None
    )
    assert answer.usage is not None
    assert answer.model_extra is not None
    return answer.model_extra.get("acm"), answer.usage.prompt_tokens, answer.choices[0].message.content


def test_chat_answer_carries_the_receipt(scripted_client: OpenAI) -> None:
    session = new_session()
    acm, num_prompt, _ = ask(scripted_client, QUESTION, session_id=session)
    assert check_acm(acm, session, num_prompt)["computed_tokens"] > 0


def test_header_names_the_session_as_the_body_does(scripted_client: OpenAI) -> None:
    session = new_session()
    answer = scripted_client.chat.completions.create(
        model=MODEL, messages=QUESTION, max_tokens=2, extra_headers={"X-Session-ID": session}
    )
    assert answer.usage is not None
    assert answer.model_extra is not None
    check_acm(answer.model_extra["acm"], session, answer.usage.prompt_tokens)
    assert answer.model_extra["kv_transfer_params"] is None


@pytest.mark.parametrize("include_usage", [False, True])
def test_streamed_chat_carries_the_receipt_in_the_chunk_that_ends_it(
    scripted_client: OpenAI, include_usage: bool
) -> None:
    session = new_session()
    _, num_prompt, text = ask(scripted_client, QUESTION)
    stream = scripted_client.chat.completions.create(
        model=MODEL,
        messages=QUESTION,
        max_tokens=4,
        temperature=0,
        stream=True,
        stream_options={"include_usage": include_usage},
        extra_body={"session_id": session},
    )
    chunks = list(stream)
    carriers = [chunk for chunk in chunks if "acm" in (chunk.model_extra or {})]
    assert [bool(chunk.choices) for chunk in carriers] == [True, False][: 1 + include_usage]
    assert carriers[0].choices[0].finish_reason
    check_acm(carriers[0].model_extra["acm"], session, num_prompt)  # type: ignore[index]
    assert "".join(c.choices[0].delta.content or "" for c in chunks if c.choices) == text
    assert len(chunks) >= 2 + include_usage, "a role, an end: vLLM joins all else that a slow reader has not fetched"


def test_receipt_survives_a_stop_string(scripted_client: OpenAI) -> None:
    session = new_session()
    _, num_prompt, text = ask(scripted_client, QUESTION)
    assert text
    for stream in (False, True):
        answer: Any = scripted_client.chat.completions.create(
            model=MODEL,
            messages=QUESTION,
            max_tokens=8,
            temperature=0,
            stop=[text[1:4]],
            stream=stream,
            extra_body={"session_id": session},
        )
        chunks = list(answer) if stream else []
        last = chunks[-1] if stream else answer
        assert last.choices[0].finish_reason == "stop"
        said = "".join(c.choices[0].delta.content or "" for c in chunks) if stream else last.choices[0].message.content
        assert said == text[:1]
        check_acm(last.model_extra["acm"], session, num_prompt)


def test_completions_carry_the_receipt(scripted_client: OpenAI) -> None:
    session = new_session()
    prompt = log_lines(0, 4)
    answer = scripted_client.completions.create(
        model=MODEL, prompt=prompt, max_tokens=3, temperature=0, extra_body={"session_id": session}
    )
    assert answer.usage is not None
    assert answer.model_extra is not None
    check_acm(answer.model_extra["acm"], session, answer.usage.prompt_tokens)
    chunks = scripted_client.completions.create(
        model=MODEL, prompt=prompt, max_tokens=3, temperature=0, stream=True, extra_body={"session_id": session}
    )
    carried = [chunk.model_extra["acm"] for chunk in chunks if chunk.model_extra and "acm" in chunk.model_extra]
    assert len(carried) == 1
    check_acm(carried[0], session, answer.usage.prompt_tokens)


def test_responses_carry_the_receipt(scripted_client: OpenAI) -> None:
    session = new_session()
    extra = {"session_id": session, "acm": {"fidelity": "reuse"}}
    answer = scripted_client.responses.create(model=MODEL, input="Hello there", max_output_tokens=4, extra_body=extra)
    assert answer.usage is not None
    assert answer.model_extra is not None
    check_acm(answer.model_extra["acm"], session, answer.usage.input_tokens, "reuse")
    events = scripted_client.responses.create(
        model=MODEL, input="Hello there", max_output_tokens=4, stream=True, extra_body=extra
    )
    ended = [event.response for event in events if event.type == "response.completed"]
    assert len(ended) == 1
    assert ended[0].model_extra is not None
    check_acm(ended[0].model_extra["acm"], session, answer.usage.input_tokens, "reuse")
    assert ended[0].model_extra["kv_transfer_params"] is None


def test_anthropic_messages_carry_the_receipt(scripted_server: str) -> None:
    session = new_session()
    extra = {"session_id": session, "acm": {"fidelity": "reuse"}}
    with anthropic.Anthropic(base_url=scripted_server, api_key="unused", max_retries=0) as claude:
        answer = claude.messages.create(
            model=MODEL, messages=[{"role": "user", "content": "Hello"}], max_tokens=4, extra_body=extra
        )
        assert answer.model_extra is not None
        check_acm(answer.model_extra["acm"], session, total(answer.usage), "reuse")
        events = claude.messages.create(
            model=MODEL, messages=[{"role": "user", "content": "Hello"}], max_tokens=4, stream=True, extra_body=extra
        )
        carried = [event.model_extra["acm"] for event in events if event.model_extra and "acm" in event.model_extra]
    assert len(carried) == 1
    check_acm(carried[0], session, total(answer.usage), "reuse")


@pytest.mark.parametrize("stream", [False, True])
def test_request_without_session_is_answered_as_by_plain_vllm(scripted_server: str, stream: bool) -> None:
    body = {"model": MODEL, "messages": QUESTION, "max_tokens": 4, "stream": stream}
    answer = http.post(f"{scripted_server}/v1/chat/completions", json=body, timeout=TIMEOUT)
    assert answer.status_code == 200
    assert b"acm" not in answer.content
    assert b'"kv_transfer_params":{' not in answer.content


@pytest.mark.parametrize(("body", "headers", "field"), BAD_REQUESTS)
def test_bad_session_request_is_refused_with_its_field(
    scripted_server: str, body: dict[str, Any], headers: dict[str, str], field: str
) -> None:
    whole = {"model": MODEL, "messages": QUESTION, "max_tokens": 1} | body
    answer = http.post(
        f"{scripted_server}/v1/chat/completions",
        content=json.dumps(whole),
        headers={"Content-Type": "application/json"} | headers,
        timeout=TIMEOUT,
    )
    assert answer.status_code == 400
    error = answer.json()["error"]
    assert set(error) - {"remedy"} == {"message", "type", "param", "code"}
    assert error.get("remedy", "none where vLLM's own check came first")
    assert error["param"].removeprefix("body.") == field
    assert error["code"] == 400


def test_several_prompts_in_one_session_request_are_refused(scripted_client: OpenAI) -> None:
    with pytest.raises(openai.BadRequestError) as refused:
        scripted_client.completions.create(
            model=MODEL, prompt=["one", "two"], max_tokens=1, extra_body={"session_id": new_session()}
        )
    assert refused.value.param == "prompt"


def test_anthropic_client_is_refused_with_the_field(scripted_server: str) -> None:
    extra = {"session_id": new_session(), "acm": {"fidelity": "best"}}
    with (
        anthropic.Anthropic(base_url=scripted_server, api_key="unused", max_retries=0) as claude,
        pytest.raises(anthropic.BadRequestError) as refused,
    ):
        claude.messages.create(
            model=MODEL, messages=[{"role": "user", "content": "Hello"}], max_tokens=1, extra_body=extra
        )
    body: Any = refused.value.body
    assert body["type"] == "error"
    assert body["error"]["param"] == "acm.fidelity"


def test_refused_requests_leave_the_session_as_it_was(scripted_client: OpenAI) -> None:
    session = new_session()
    with pytest.raises(openai.BadRequestError):
        ask(scripted_client, QUESTION, session_id=session, acm={"fidelity": "best"})
    acm, num_prompt, _ = ask(scripted_client, QUESTION, session_id=session, acm={"fidelity": "reuse"})
    assert check_acm(acm, session, num_prompt, "reuse")["moved_tokens"] == 0


def test_client_that_folds_its_history_gets_its_suffix_moved(scripted_client: OpenAI) -> None:
    session, log = new_session(), log_lines(0, 30)
    messages = history(log)
    _, num_before, text = ask(scripted_client, messages, session_id=session, acm={"fidelity": "reuse"})
    added: list[ChatCompletionMessageParam] = [
        {"role": "assistant", "content": text},
        {"role": "user", "content": "And the first?"},
    ]
    folded = history(MARKER) + added
    acm, num_after, _ = ask(scripted_client, folded, session_id=session, acm={"fidelity": "reuse"})
    receipt = check_acm(acm, session, num_after, "reuse")
    assert num_after < num_before
    assert receipt["fallback_reason"] is None
    assert receipt["moved_tokens"] > num_after // 2
    assert receipt["computed_tokens"] < num_after // 4
    acm, num_again, _ = ask(scripted_client, [*folded], session_id=session, acm={"fidelity": "exact"})
    assert check_acm(acm, session, num_again)["moved_tokens"] == 0
    auto = {"fidelity": "auto", "repair": {"head_tokens": 64}}
    acm, num_again, _ = ask(scripted_client, [*folded], session_id=session, acm=auto)
    receipt = check_acm(acm, session, num_again, "auto")
    assert (receipt["chosen"], receipt["reason"]) == ("exact", "nothing would be moved")


def read_counters(server: str) -> dict[str, float]:
    families = text_string_to_metric_families(http.get(f"{server}/metrics", timeout=TIMEOUT).text)
    samples: Iterator[Any] = (sample for family in families for sample in family.samples)
    return {
        sample.name.removeprefix("acmserve:").removesuffix("_total"): sample.value
        for sample in samples
        if sample.name in {f"acmserve:{count}_total" for count in COUNTS}
    }


def settled_counters(server: str) -> dict[str, float]:
    """Counters once the requests of earlier tests have been recorded: four readings agree."""
    readings = [read_counters(server)]
    while readings[-4:] != 4 * readings[-1:]:
        time.sleep(0.5)
        readings.append(read_counters(server))
    return readings[-1]


def read_counters_until(server: str, expected: dict[str, float]) -> dict[str, float]:
    """Counters follow an answer within moments, not at once: vLLM records them after it has handed the answer out."""
    deadline = time.monotonic() + TIMEOUT
    while (counters := read_counters(server)) != expected and time.monotonic() < deadline:
        time.sleep(0.1)
    return counters


def test_counters_rise_by_what_the_receipts_say(scripted_server: str, scripted_client: OpenAI) -> None:
    session = new_session()
    ask(scripted_client, QUESTION, session_id=session)
    before = settled_counters(scripted_server)
    receipts = []
    for messages in (history(log_lines(100, 120)), history(MARKER)):
        acm, num_prompt, _ = ask(scripted_client, messages, session_id=session, acm={"fidelity": "reuse"})
        receipts.append(check_acm(acm, session, num_prompt, "reuse"))
        ask(scripted_client, QUESTION)
    expected = {count: before[count] + sum(receipt[count] for receipt in receipts) for count in COUNTS}
    assert read_counters_until(scripted_server, expected) == expected
