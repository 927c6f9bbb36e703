"""The tool loop on the real engine and HTTP server, through the official client. A scripted model says the tool calls
(see `benchmarks/models/scripted_model.py`). Everything else is real."""

from __future__ import annotations

from typing import Any

import openai
import pytest
from openai import OpenAI

from tests.support import http
from tests.support.server.scripts import Answer, ask, log_lines, new_session, tool_call

LOG = log_lines(60)
MESSAGES: list[dict[str, Any]] = [
    {"role": "system", "content": "You keep the records of a valley."},
    {"role": "user", "content": f"The log:\n{LOG}\nend of the log. What was read in line 7?"},
]
CUT = tool_call("fragment_context", start_marker="line 0:", end_marker="end of the log", num_fragments=4)
SEARCH = tool_call("search_context", query="line 7:", max_results=1, context_size=50)
WEATHER = {
    "type": "function",
    "function": {
        "name": "weather",
        "description": "Tell the weather.",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
    },
}
BOTH_WAYS = pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])


def fold(fragment_id: str) -> str:
    return tool_call("fold_fragment", fragment_id=fragment_id)


def next_turn(messages: list[dict[str, Any]], answer: Answer, question: str) -> list[dict[str, Any]]:
    """What a client sends next: its history, the answer it was given, a question."""
    return [*messages, answer.message, {"role": "user", "content": question}]


def context_of(server: str, session: str) -> Any:
    return http.get(f"{server}/v1/acm/sessions/{session}/context").raise_for_status().json()


@BOTH_WAYS
def test_context_tools_run_until_the_model_answers(scripted_client: OpenAI, stream: bool) -> None:
    script = [f"Let me cut the log.\n{CUT}", SEARCH, "It was 49."]
    answer = ask(scripted_client, new_session(), MESSAGES, script, stream=stream)
    assert answer.message["content"] == "Let me cut the log.\n\nIt was 49."
    assert "tool_calls" not in answer.message
    assert answer.finish_reason == "stop"
    assert answer.acm["stopped_by"] == "answer"
    assert [operation["tool"] for operation in answer.operations] == ["fragment_context", "search_context"]
    assert not any(operation["is_error"] for operation in answer.operations)
    assert len(answer.fragment_ids) == 4
    assert "reading 49" in answer.operations[1]["result"]
    assert len(answer.ids) == 1
    assert answer.acm["receipt"] == answer.receipts[-1]
    assert answer.usage.prompt_tokens == answer.receipts[-1]["prompt_tokens"]
    assert answer.usage.completion_tokens > 60
    assert answer.usage.total_tokens == answer.usage.prompt_tokens + answer.usage.completion_tokens


def _counted(usage: Any) -> dict[str, Any]:
    """Without what the cache had. The second of two sessions finds what the first one computed."""
    counted: dict[str, Any] = usage.model_dump(exclude={"prompt_tokens_details"})
    return counted


def test_a_stream_tells_every_receipt_and_operation_as_it_happens(scripted_client: OpenAI) -> None:
    script = [CUT + SEARCH, "It was 49."]
    whole = ask(scripted_client, new_session(), MESSAGES, script)
    answer = ask(scripted_client, new_session(), MESSAGES, script, stream=True)
    assert [(event["event"], event["step"]) for event in answer.events] == [
        ("receipt", 0),
        ("tool", 0),
        ("tool", 0),
        ("receipt", 1),
    ]
    told = [{k: v for k, v in e.items() if k not in ("event", "step")} for e in answer.events if e["event"] == "tool"]
    assert told == answer.operations == whole.operations
    assert [event["receipt"] for event in answer.events if event["event"] == "receipt"] == answer.receipts
    assert answer.message["content"] == whole.message["content"]
    assert _counted(answer.usage) == _counted(whole.usage)


def test_first_call_can_be_required(scripted_client: OpenAI) -> None:
    """Guided decoding is real: the grammar of the tools has to allow what the script says."""
    for stream in (False, True):
        answer = ask(
            scripted_client,
            new_session(),
            MESSAGES,
            [CUT, "It was 49."],
            stream=stream,
            acm={"first_call_required": True},
        )
        assert answer.message["content"] == "It was 49."
        assert [operation["tool"] for operation in answer.operations] == ["fragment_context"]
    required = {"first_call_required": True}
    silent = ask(scripted_client, new_session(), MESSAGES, ["No tool."], max_tokens=6, acm=required)
    assert silent.finish_reason == "length"
    assert "No tool" not in str(silent.message.get("content"))


def test_folds_of_one_completion_are_one_plan(scripted_client: OpenAI) -> None:
    session = new_session()
    first = ask(scripted_client, session, MESSAGES, [CUT, "Cut."])
    messages = next_turn(MESSAGES, first, "Fold what you can.")
    folds = "".join(fold(fragment_id) for fragment_id in first.fragment_ids[:3])
    second = ask(scripted_client, session, messages, [folds, SEARCH, "Folded."], acm={"fidelity": "reuse"}, stream=True)
    assert [operation["changed"] for operation in second.operations] == [True, True, True, False]
    before, after, last = second.receipts
    assert before["moved_tokens"] == 0
    assert len([move for move in after["moves"] if move["num_tokens"] > 100]) == 1
    assert after["moved_tokens"] > 300
    assert after["prompt_tokens"] < before["prompt_tokens"]
    assert last["moves"] == []
    assert last["kept_tokens"] >= after["prompt_tokens"]


def test_search_computes_only_what_it_appends(scripted_client: OpenAI) -> None:
    detail = tool_call("search_context", query="quarry", max_results=3, context_size=60)
    answer = ask(scripted_client, new_session(), MESSAGES, [SEARCH, detail, "Found."])
    for before, after in zip(answer.receipts, answer.receipts[1:], strict=False):
        assert after["kept_tokens"] >= before["prompt_tokens"]
        assert after["computed_tokens"] <= after["prompt_tokens"] - before["prompt_tokens"]


def test_the_next_turn_keeps_the_internal_messages_and_the_fold(scripted_client: OpenAI, scripted_server: str) -> None:
    session = new_session()
    first = ask(scripted_client, session, MESSAGES, [CUT, "Cut."])
    second_messages = next_turn(MESSAGES, first, "Fold the beginning.")
    second = ask(scripted_client, session, second_messages, [fold(first.fragment_ids[0]), "Folded."])
    third = ask(
        scripted_client, session, next_turn(second_messages, second, "And line 9?"), ["It was 81."], stream=True
    )
    assert third.message["content"] == "It was 81."
    receipt = third.receipts[0]
    assert receipt["kept_tokens"] >= second.receipts[-1]["prompt_tokens"]
    context = context_of(scripted_server, session)
    assert "[folded" in str(context)
    assert first.fragment_ids[0] in str(context)


@pytest.mark.parametrize(
    ("call", "advice"),
    [
        (fold("f00000"), "there is no fragment"),
        (tool_call("fold_fragment", fragment="f00000"), "no such argument"),
        (tool_call("fragment_context", start_marker="nowhere", end_marker="x"), "no message of role 'all'"),
        (tool_call("fragment_context", start_marker="line 0:", end_marker="end", num_fragments=99), "from 1 to 20"),
        (tool_call("dance", how="fast"), "Choose one of fragment_context, fold_fragment"),
        (tool_call("get_search_detail", search_id="s00000"), "no search result"),
    ],
)
def test_a_wrong_call_says_what_to_do_and_the_loop_goes_on(scripted_client: OpenAI, call: str, advice: str) -> None:
    answer = ask(scripted_client, new_session(), MESSAGES, [call, "Sorry."])
    assert answer.message["content"] == "Sorry."
    (operation,) = answer.operations
    assert operation["is_error"]
    assert not operation["changed"]
    assert advice in operation["result"]


@BOTH_WAYS
def test_the_number_of_calls_is_bounded(scripted_client: OpenAI, stream: bool) -> None:
    script = [SEARCH, SEARCH + SEARCH, "Enough."]
    answer = ask(scripted_client, new_session(), MESSAGES, script, stream=stream, acm={"max_tool_calls": 2})
    assert [operation["is_error"] for operation in answer.operations] == [False, False, True]
    assert "Answer now" in answer.operations[2]["result"]
    assert answer.acm["stopped_by"] == "max_tool_calls"
    assert answer.message["content"] == "Enough."


@BOTH_WAYS
def test_the_clients_own_tools_are_returned_to_it(scripted_client: OpenAI, stream: bool) -> None:
    session = new_session()
    script = [f"I cut and ask.{CUT}\n{tool_call('weather', city='Rome')}\n{SEARCH}"]
    mixed = ask(scripted_client, session, MESSAGES, script, stream=stream, tools=[WEATHER])
    assert mixed.finish_reason == "tool_calls"
    assert mixed.acm["stopped_by"] == "client_tools"
    assert [operation["tool"] for operation in mixed.operations] == ["fragment_context", "search_context"]
    assert mixed.message["content"] == "I cut and ask."
    (call,) = mixed.message["tool_calls"]
    assert (call["function"]["name"], call["function"]["arguments"]) == ("weather", '{"city": "Rome"}')
    result = {"role": "tool", "tool_call_id": call["id"], "content": "Sunny."}
    messages = [*MESSAGES, mixed.message, result]
    answer = ask(scripted_client, session, messages, [SEARCH, "Sunny."], stream=stream, tools=[WEATHER])
    assert answer.message["content"] == "Sunny."
    assert answer.receipts[0]["kept_tokens"] >= mixed.receipts[0]["prompt_tokens"]


def test_a_summary_is_made_once_for_a_focus(scripted_client: OpenAI, scripted_server: str) -> None:
    session = new_session()
    first = ask(scripted_client, session, MESSAGES, [CUT, "Cut."])
    fragment_id = first.fragment_ids[0]
    summarize = tool_call("summarize_fragment", fragment_id=fragment_id, focus="main points")
    restore = tool_call("restore_fragment", fragment_id=fragment_id)
    messages = next_turn(MESSAGES, first, "Summarize.")
    before = num_requests(scripted_server)
    answer = ask(scripted_client, session, messages, [summarize, restore, summarize, "Done."])
    assert [operation["is_error"] for operation in answer.operations] == [False, False, False]
    assert num_requests(scripted_server) - before == len(answer.receipts) + 1
    assert "main points" in str(context_of(scripted_server, session))
    assert "Noted." in str(context_of(scripted_server, session))


def num_requests(server: str) -> int:
    """Requests that the engine has finished."""
    lines = http.get(f"{server}/metrics").text.splitlines()
    return int(sum(float(line.split()[-1]) for line in lines if line.startswith("vllm:request_success_total")))


def test_a_client_that_leaves_in_the_middle_leaves_a_whole_session(
    scripted_client: OpenAI, scripted_server: str
) -> None:
    session, before = new_session(), num_requests(scripted_server)
    script = [CUT, *[SEARCH] * 90, "Found."]
    chat: dict[str, Any] = {"session_id": session, "acm": {"tools": "sculptor", "max_tool_calls": 100}}
    chat["vllm_xargs"] = {"script_id": session, "script": script}
    stream = scripted_client.chat.completions.create(
        model="scripted",
        messages=MESSAGES,  # type: ignore[arg-type]
        max_tokens=200,
        stream=True,
        extra_body=chat,
    )
    for chunk in stream:
        if ((chunk.model_extra or {}).get("acm") or {}).get("event") == "tool":
            break
    stream.close()
    answer = ask(scripted_client, session, MESSAGES, ["It was 49."])
    assert num_requests(scripted_server) - before < len(script), "the loop did not go on without its client"
    assert answer.message["content"] == "It was 49."
    messages = context_of(scripted_server, session)["messages"]
    assert [message["role"] for message in messages] == ["system", "user", "assistant"]


@BOTH_WAYS
def test_an_answer_that_is_cut_off_is_returned_as_it_is(scripted_client: OpenAI, stream: bool) -> None:
    answer = ask(scripted_client, new_session(), MESSAGES, [f"I cut.\n{CUT}"], stream=stream, max_tokens=20)
    assert answer.finish_reason == "length"
    assert answer.acm["stopped_by"] == "length"
    assert answer.operations == []
    assert "tool_calls" not in answer.message


def test_an_error_in_a_later_step_carries_what_was_done(scripted_client: OpenAI, scripted_server: str) -> None:
    """Fifty excerpts of a short log are more than the window holds."""
    session = new_session()
    full = [{"role": "user", "content": log_lines(120)}]
    much = tool_call("search_context", query="line", max_results=50, context_size=1000)
    plain = ask(scripted_client, session, full, ["Read."])
    assert plain.receipts[0]["prompt_tokens"] < 4_000
    with pytest.raises(openai.BadRequestError) as caught:
        ask(scripted_client, session, full, [much, "Never said."])
    body: Any = caught.value.response.json()
    assert body["error"]["code"] == "context_length_exceeded"
    assert [o["tool"] for step in body["acm"]["steps"] for o in step["operations"]] == ["search_context"]
    with pytest.raises(openai.APIError):
        ask(scripted_client, session, full, [much, "Never said."], stream=True)
    assert ask(scripted_client, session, full, ["Read."]).message["content"] == "Read."
    roles = [message["role"] for message in context_of(scripted_server, session)["messages"]]
    assert roles == ["user", "assistant"]


def test_presets_teach_the_model_and_stay_out_of_the_session(scripted_client: OpenAI, scripted_server: str) -> None:
    session = new_session()
    plain = ask(scripted_client, new_session(), MESSAGES, ["It was 49."])
    taught = ask(scripted_client, session, MESSAGES, ["It was 49."], acm={"preset": "pi-llm"})
    assert taught.receipts[0]["prompt_tokens"] > plain.receipts[0]["prompt_tokens"] + 100
    assert "PI-LLM" not in str(context_of(scripted_server, session))


def test_the_first_suite_of_tools(scripted_client: OpenAI) -> None:
    session = new_session()
    semantic = tool_call("search_context", query="water", mode="semantic")
    restore = tool_call("restore_context")
    answer = ask(scripted_client, session, MESSAGES, [CUT, semantic, restore, "Done."], acm={"tools": "sculptor-v1"})
    assert [operation["is_error"] for operation in answer.operations] == [False, True, False]
    assert "--embedder" in answer.operations[1]["result"]


@pytest.mark.parametrize(
    ("acm", "fields", "param"),
    [
        ({"tools": "chisel"}, {}, "acm.tools"),
        ({"max_tool_calls": 0}, {}, "acm.max_tool_calls"),
        ({}, {"tools": [{"type": "function", "function": {"name": "fold_fragment"}}]}, "tools[0].function.name"),
        ({}, {"response_format": {"type": "json_object"}}, "response_format"),
    ],
)
def test_requests_that_a_loop_cannot_serve_are_refused_by_name(
    scripted_client: OpenAI, acm: dict[str, Any], fields: dict[str, Any], param: str
) -> None:
    with pytest.raises(openai.BadRequestError) as caught:
        ask(scripted_client, new_session(), MESSAGES, ["Never said."], acm=acm, **fields)
    assert caught.value.param == param
