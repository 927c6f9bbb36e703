"""The rollout record on the real engine: its prompts are what was served, its samples what the engine sampled."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest
from openai import OpenAI

from acmserve.context.session.rollout.lines import record_from
from acmserve.context.session.rollout.record import RolloutRecord
from tests.support import http
from tests.support.server.scripted_server import MODEL
from tests.support.server.scripts import Answer, ask, log_lines, new_session, tool_call

MESSAGES: list[dict[str, Any]] = [
    {"role": "system", "content": "You keep the records of a valley."},
    {"role": "user", "content": f"The log:\n{log_lines(40)}\nend of the log. What was read in line 7?"},
]
CUT = tool_call("fragment_context", start_marker="line 0:", end_marker="end of the log", num_fragments=4)
SEARCH = tool_call("search_context", query="line 7:", max_results=1, context_size=50)
RECORDED = {"rollout": True}


def lines_of(server: str, session: str) -> list[dict[str, Any]]:
    answer = http.get(f"{server}/v1/acm/sessions/{session}/rollout").raise_for_status()
    assert answer.headers["content-type"].startswith("application/x-ndjson")
    return [json.loads(line) for line in answer.text.splitlines()]


def record_of(server: str, session: str) -> tuple[RolloutRecord, list[dict[str, Any]]]:
    head, *rest = lines_of(server, session)
    assert head.pop("session_id") == session
    return record_from([head, *rest]), [line for line in rest if line["kind"] == "operation"]


def next_turn(messages: list[dict[str, Any]], answer: Answer, question: str) -> list[dict[str, Any]]:
    return [*messages, answer.message, {"role": "user", "content": question}]


def text_of(server: str, token_ids: list[int]) -> str:
    told = http.post(f"{server}/detokenize", json={"model": MODEL, "tokens": token_ids}).raise_for_status().json()
    return str(told["prompt"])


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
def test_a_record_holds_what_was_served_sampled_and_done(
    scripted_client: OpenAI, scripted_server: str, stream: bool
) -> None:
    session = new_session()
    first = ask(scripted_client, session, MESSAGES, [CUT + SEARCH, "49."], acm=RECORDED, stream=stream, logprobs=True)
    fragment = first.fragment_ids[0]
    fold = tool_call("fold_fragment", fragment_id=fragment)
    ask(scripted_client, session, next_turn(MESSAGES, first, "Fold."), [fold, "Done."], acm=RECORDED, stream=stream)
    record, operations = record_of(scripted_server, session)
    assert (record.header.model, record.header.suite) == (MODEL, "sculptor") if record.header else False
    assert [one.parent for one in record.completions] == [None, 0, 1, 2]
    receipts = [*first.receipts]
    assert [len(record.prompt(number)) for number in (0, 1)] == [receipt["prompt_tokens"] for receipt in receipts]
    said = [text_of(scripted_server, list(one.sampled.token_ids)) for one in record.completions]
    assert [text.removesuffix("<|im_end|>") for text in said] == [CUT + SEARCH, "49.", fold, "Done."]
    assert record.completions[1].num_kept > len(record.prompt(0))
    whole = [*record.prompt(1), *record.completions[1].sampled.token_ids]
    assert record.prompt(2)[: len(whole)] == whole
    last = record.completions[3]
    assert last.num_kept < len(record.prompt(2))
    assert f"[folded {fragment}" in text_of(scripted_server, record.prompt(3))
    assert [one.sampled.logprobs is None for one in record.completions] == [False, False, True, True]
    assert max(record.completions[0].sampled.logprobs or (1.0,)) < 0
    calls = [[(call.name, call.operation) for call in one.sampled.tool_calls] for one in record.completions]
    assert calls == [
        [("fragment_context", "fragment"), ("search_context", "search")],
        [],
        [("fold_fragment", "fold")],
        [],
    ]
    assert [(line["after"], line["by"], line["name"]) for line in operations] == [
        (0, "model", "fragment_context"),
        (0, "model", "search_context"),
        (2, "model", "fold_fragment"),
    ]
    assert operations[2]["arguments"] == {"fragment_id": fragment}
    assert operations[2]["saved_tokens"] > 100
    assert [line["saved_tokens"] for line in operations[:2]] == [None, None]


def test_edits_and_evictions_have_their_place_and_a_redaction_empties_the_record(
    scripted_client: OpenAI, scripted_server: str
) -> None:
    session = new_session()
    url = f"{scripted_server}/v1/acm/sessions/{session}"
    body = {"session_id": session, "acm": RECORDED}
    for _ in range(2):
        scripted_client.chat.completions.create(
            model=MODEL, messages=MESSAGES, max_tokens=8, temperature=0, extra_body=body
        )
    folded = {"edits": [{"op": "fold", "messages": {"start": 1, "end": 2}}]}
    fragment = http.post(f"{url}/edits", json=folded).raise_for_status().json()["edits"][0]["fragment_id"]
    record, operations = record_of(scripted_server, session)
    assert record.header is not None
    assert record.header.suite is None
    assert [(line["after"], line["by"], line["name"]) for line in operations] == [(1, "caller", "fold")]
    secret = log_lines(1)
    assert secret in text_of(scripted_server, record.prompt(0))
    http.post(f"{url}/edits", json={"edits": [{"op": "redact", "fragment_id": fragment}]}).raise_for_status()
    [head, told] = lines_of(scripted_server, session)
    assert (head["kind"], told["kind"], told["name"], told["after"]) == ("header", "operation", "redact", -1)
    http.delete(url).raise_for_status()
    assert http.get(f"{url}/rollout").status_code == 404


def test_branches_are_threads_that_leave_the_main_one(scripted_client: OpenAI, scripted_server: str) -> None:
    session = new_session()
    script = [tool_call("branch", description="read", prompt="Read line 7."), tool_call("return", message="49"), "49."]
    ask(scripted_client, session, MESSAGES, script, acm={**RECORDED, "tools": ["sculptor", "branch"]})
    record, operations = record_of(scripted_server, session)
    threads = [one.thread for one in record.completions]
    assert threads[0] == threads[2] == "main"
    assert threads[1] not in ("main", "")
    assert [one.parent for one in record.completions] == [None, 0, 0]
    assert [(line["after"], line["name"]) for line in operations] == [(0, "branch"), (1, "return")]
    assert record.header is not None
    assert record.header.suite == "sculptor+branch"


def test_what_nobody_asked_to_record_is_not_there(scripted_client: OpenAI, scripted_server: str) -> None:
    session = new_session()
    ask(scripted_client, session, MESSAGES, ["49."])
    answer = http.get(f"{scripted_server}/v1/acm/sessions/{session}/rollout")
    assert answer.status_code == 404
    assert "acm.rollout" in answer.json()["error"]["remedy"]


def post(server: str, session: str, script: list[str], **fields: Any) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    """The chunks of an answer, one where it is whole, and its `acm`."""
    extra = {"script_id": session + str(len(script)), "script": script}
    body = {"model": MODEL, "messages": MESSAGES, "max_tokens": 300, "temperature": 0, "session_id": session}
    answer = http.post(f"{server}/v1/chat/completions", json=body | {"vllm_xargs": extra} | fields).raise_for_status()
    if not fields.get("stream"):
        return [answer.json()], answer.json()["acm"]
    events = [line.removeprefix("data: ") for line in answer.text.splitlines() if line.startswith("data: {")]
    chunks = [json.loads(event) for event in events]
    return chunks, next(chunk["acm"] for chunk in reversed(chunks) if "stopped_by" in chunk.get("acm", {}))


BOTH_WAYS = pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])


@BOTH_WAYS
def test_all_steps_give_their_tokens(scripted_server: str, stream: bool) -> None:
    session = new_session()
    asked = {"acm": {"tools": "sculptor", **RECORDED}, "return_token_ids": True, "logprobs": True, "stream": stream}
    chunks, acm = post(scripted_server, session, ["Let me.\n" + CUT, SEARCH, "It was 49."], **asked)
    record, _ = record_of(scripted_server, session)
    assert len(record.completions) == 3
    for step, completion in zip(acm["steps"], record.completions, strict=True):
        assert step["prompt_token_ids"] == record.prompt(completion.number)
        assert tuple(step["token_ids"]) == completion.sampled.token_ids
        assert tuple(step["logprobs"]) == completion.sampled.logprobs
    choices = [choice for chunk in chunks for choice in chunk["choices"]]
    told = [token for choice in choices for token in choice.get("token_ids") or ()]
    assert told == [token for one in record.completions for token in one.sampled.token_ids]
    logprobs = [found for choice in choices for found in (choice.get("logprobs") or {}).get("content") or ()]
    assert len(logprobs) == len(told) > 100


@BOTH_WAYS
@pytest.mark.parametrize(
    ("call", "error"),
    [
        (
            '<tool_call>\n{"name": "search_context", "arguments": {"query": \n</tool_call>',
            "could not be read|not a JSON",
        ),
        ("<tool_call>\nsearch_context(7)\n</tool_call>", "could not be read as a tool call"),
    ],
    ids=["half", "none"],
)
def test_a_malformed_call_is_a_format_error(scripted_server: str, stream: bool, call: str, error: str) -> None:
    session = new_session()
    asked = {"acm": {"tools": "sculptor", **RECORDED}, "stream": stream}
    chunks, acm = post(scripted_server, session, [SEARCH, f"Look: {call}", "Never said."], **asked)
    assert acm["stopped_by"] == "format_error"
    [told] = acm["format_errors"]
    assert told["step"] == 1
    assert re.search(error, told["error"])
    said = "".join(
        (choice.get("message") or choice.get("delta") or {}).get("content") or ""
        for chunk in chunks
        for choice in chunk["choices"]
    )
    assert said.strip() == "Look:"
    record, operations = record_of(scripted_server, session)
    assert [one.sampled.format_error for one in record.completions] == [None, told["error"]]
    assert len(operations) == 1
    _, after = post(scripted_server, session, ["Fine."], **asked)
    assert after["stopped_by"] == "answer"
    assert "format_errors" not in after


@BOTH_WAYS
def test_a_text_that_quotes_the_mark_of_a_call_is_an_answer(scripted_server: str, stream: bool) -> None:
    """vLLM's parser keeps back what follows the mark in a stream."""
    told = "The tag `<tool_call>` begins a call. It ends it, too."
    asked = {"acm": {"tools": "sculptor", **RECORDED}, "stream": stream}
    chunks, acm = post(scripted_server, session := new_session(), [SEARCH, told], **asked)
    assert acm["stopped_by"] == "answer"
    assert "format_errors" not in acm
    said = [
        (c.get("message") or c.get("delta") or {}).get("content") or "" for chunk in chunks for c in chunk["choices"]
    ]
    assert "".join(said) == told
    record, _ = record_of(scripted_server, session)
    assert [one.sampled.format_error for one in record.completions] == [None, None]
    context = http.get(f"{scripted_server}/v1/acm/sessions/{session}/context").json()
    assert context["messages"][-1]["message"]["content"] == told


@BOTH_WAYS
def test_a_group_shares_its_prompt_and_goes_on_from_any_sample(scripted_server: str, stream: bool) -> None:
    session = new_session()
    extra = {"script_id": session, "script": ["One.", "Two.", "Three.", "On."]}
    body = {"model": MODEL, "max_tokens": 20, "session_id": session, "acm": RECORDED, "vllm_xargs": extra}
    url = f"{scripted_server}/v1/chat/completions"
    http.post(url, json=body | {"messages": MESSAGES, "n": 3, "stream": stream}).raise_for_status()
    record, _ = record_of(scripted_server, session)
    assert [(one.thread, one.sample) for one in record.completions] == [("main", 0), ("main#1", 1), ("main#2", 2)]
    assert [one.tail for one in record.completions[1:]] == [(), ()]
    assert len({tuple(record.prompt(number)) for number in range(3)}) == 1
    said = [text_of(scripted_server, list(one.sampled.token_ids)) for one in record.completions]
    assert sorted(text.removesuffix("<|im_end|>") for text in said) == ["One.", "Three.", "Two."]
    chosen = {"role": "assistant", "content": said[1].removesuffix("<|im_end|>")}
    more = [*MESSAGES, chosen, {"role": "user", "content": "And?"}]
    http.post(url, json=body | {"messages": more}).raise_for_status()
    record, _ = record_of(scripted_server, session)
    assert record.completions[3].parent == 1
    assert record.completions[3].num_kept >= len(record.prompt(1)) + 1


def test_a_group_is_for_rollouts_without_a_loop(scripted_server: str) -> None:
    body = {"model": MODEL, "messages": MESSAGES, "session_id": new_session(), "n": 2}
    for acm, words in (({}, "send n = 1"), ({**RECORDED, "tools": "sculptor"}, "together with acm.tools")):
        answer = http.post(f"{scripted_server}/v1/chat/completions", json=body | {"acm": acm})
        assert answer.status_code == 400
        assert words in answer.json()["error"]["message"]


def test_a_suite_of_the_deployment_is_served_and_recorded(scripted_server: str) -> None:
    session = new_session()
    url = f"{scripted_server}/v1/acm"
    offered = http.get(f"{url}/tools", params={"suite": "mine"}).raise_for_status().json()
    assert [tool["function"]["name"] for tool in offered["tools"]] == ["cut", "hide", "show", "grep"]
    http.post(f"{url}/sessions", json={"session_id": session, "suite": "mine"}).raise_for_status()
    cut = tool_call("cut", start_marker="line 0:", end_marker="end of the log")
    asked = {"acm": {"tools": "mine", "preset": "mine", **RECORDED}}
    _, acm = post(scripted_server, session, [cut, "Cut."], **asked)
    piece = acm["steps"][0]["operations"][0]["fragment_ids"][0]
    _, acm = post(scripted_server, session, [tool_call("hide", piece=piece), "Hidden.", ""], **asked)
    assert acm["steps"][0]["operations"][0]["result"].startswith(f"Hidden: {piece}.")
    record, _ = record_of(scripted_server, session)
    assert record.header is not None
    assert record.header.suite == "mine"
    assert [call.operation for one in record.completions for call in one.sampled.tool_calls] == ["fragment", "fold"]
    last = text_of(scripted_server, record.prompt(3))
    assert "Cut and hide." in last
    assert f"<{piece} " in last
