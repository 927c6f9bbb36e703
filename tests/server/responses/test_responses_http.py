"""/v1/responses in a session, with OpenAI's own client: events, the history that the server holds, compaction."""

from __future__ import annotations

import uuid
from itertools import pairwise
from typing import Any

import openai
import pytest
from openai import OpenAI

from acmserve.context.eviction.compact import HEAD
from tests.support import http
from tests.support.routes.route_clients import read_response
from tests.support.server.scripted_server import MODEL
from tests.support.server.scripts import log_lines, new_session, tool_call

READ: dict[str, Any] = {"type": "function", "name": "read", "parameters": {"type": "object", "properties": {}}}
PATCH: dict[str, Any] = {"type": "custom", "name": "patch", "description": "Apply a patch."}
GIT: dict[str, Any] = {"type": "namespace", "name": "git", "description": "Git.", "tools": [READ | {"name": "log"}]}


def asked(session: str | None, given: Any, *script: str, **more: Any) -> dict[str, Any]:
    extra: dict[str, Any] = {"cache_salt": session} | ({} if session is None else {"session_id": session})
    extra = {name: value for name, value in (extra | more.pop("extra", {})).items() if value is not None}
    if script:
        extra["vllm_xargs"] = {"script_id": uuid.uuid4().hex, "script": list(script)}
    return {"model": MODEL, "input": given, "max_output_tokens": 100, "temperature": 0, "extra_body": extra} | more


def ask(client: OpenAI, session: str | None, given: Any, *script: str, **more: Any) -> Any:
    return client.responses.create(**asked(session, given, *script, **more))


def user(text: str) -> dict[str, Any]:
    return {"type": "message", "role": "user", "content": [{"type": "input_text", "text": text}]}


def prompt_of(server: str, session: str) -> list[Any]:
    """What the model saw last, answer included."""
    view = http.get(f"{server}/v1/acm/sessions/{session}/context", headers={"X-Cache-Salt": session})
    return [message["message"] for message in view.raise_for_status().json()["messages"]]


def test_the_events_are_those_that_the_client_reads(scripted_client: OpenAI) -> None:
    tools = [READ, PATCH, GIT]
    calls = [tool_call("read"), tool_call("patch", input="+ a"), tool_call("git__log")]
    wanted = asked(new_session(), "Look.", f"I look.\n{''.join(calls)}", tools=tools)
    with scripted_client.responses.stream(**wanted) as stream:
        events = list(stream)
        answer = stream.get_final_response()
    kinds = [event.type for event in events]
    assert kinds[:2] == ["response.created", "response.in_progress"]
    assert kinds[-1] == "response.completed"
    assert [event.sequence_number for event in events] == list(range(len(events)))
    for kind, number in (("output_item.added", 4), ("output_item.done", 4), ("content_part.added", 1)):
        assert kinds.count(f"response.{kind}") == number
    assert kinds.count("response.function_call_arguments.done") == 2
    assert kinds.count("response.custom_tool_call_input.done") == 1
    assert "response.output_text.delta" in kinds
    assert [item.type for item in answer.output] == ["message", "function_call", "custom_tool_call", "function_call"]
    assert answer.output[2].input == "+ a"
    assert (answer.output[3].name, answer.output[3].namespace) == ("log", "git")
    assert answer.usage.input_tokens == answer.acm["receipt"]["prompt_tokens"]
    whole = ask(scripted_client, new_session(), "Look.", f"I look.\n{''.join(calls)}", tools=tools)
    assert [item.type for item in whole.output] == [item.type for item in answer.output]
    assert whole.usage == answer.usage


@pytest.mark.parametrize("stream", [False, True])
def test_an_answer_that_is_cut_says_so(scripted_client: OpenAI, stream: bool) -> None:
    answer = ask(scripted_client, new_session(), "Count.", log_lines(20), max_output_tokens=16, stream=stream)
    if stream:
        answer = [event for event in answer if event.type == "response.completed"][-1].response
    assert answer.status == "incomplete"
    assert answer.incomplete_details.reason == "max_output_tokens"
    assert answer.usage.output_tokens == 16


def test_results_of_custom_and_namespaced_tools_come_back(scripted_client: OpenAI) -> None:
    session, tools, history = new_session(), [PATCH, GIT], [user("Patch it.")]
    first = ask(scripted_client, session, history, tool_call("patch", input="+ a") + tool_call("git__log"), tools=tools)
    history += [item.model_dump(exclude_none=True) for item in first.output]
    patch, log = first.output
    history.append({"type": "custom_tool_call_output", "call_id": patch.call_id, "output": "Patched."})
    history.append({"type": "function_call_output", "call_id": log.call_id, "output": log_lines(30)})
    second = ask(scripted_client, session, history, "Done.", tools=tools)
    assert second.output_text == "Done."
    assert second.acm["receipt"]["kept_tokens"] >= first.usage.input_tokens - 1


@pytest.mark.parametrize("stream", [False, True])
def test_the_session_holds_the_history_of_a_previous_response(
    scripted_client: OpenAI, scripted_server: str, stream: bool
) -> None:
    session, previous, received = new_session(), None, []
    for number in range(3):
        given = [user(f"Note {number}.\n{log_lines(10, first=10 * number)}")]
        more = {"previous_response_id": previous, "instructions": "You note.", "stream": stream}
        answer = ask(scripted_client, session, given, f"Noted {number}.", **more)
        if stream:
            answer = [event for event in answer if event.type == "response.completed"][-1].response
        received.append(answer.acm["receipt"])
        previous = answer.id
    assert [message["role"] for message in prompt_of(scripted_server, session)] == ["system"] + [
        "user",
        "assistant",
    ] * 3
    for before, after in pairwise(received):
        assert after["prompt_tokens"] > before["prompt_tokens"]
        assert after["kept_tokens"] >= before["prompt_tokens"] - 1


def test_a_fold_holds_behind_a_previous_response_and_a_conversation(
    scripted_client: OpenAI, scripted_server: str
) -> None:
    session = new_session()
    first = ask(scripted_client, session, [user(log_lines(60))], "Read.")
    url, salt = f"{scripted_server}/v1/acm/sessions/{session}/edits", {"X-Cache-Salt": session}
    http.post(
        url, json={"edits": [{"op": "fold", "messages": {"start": 0, "end": 1}}]}, headers=salt
    ).raise_for_status()
    second = ask(scripted_client, session, "And now?", "Short.", previous_response_id=first.id)
    assert second.usage.input_tokens < first.usage.input_tokens // 3
    third = ask(scripted_client, session, "And then?", "Shorter.", extra={"conversation": {"id": session}})
    assert third.usage.input_tokens < first.usage.input_tokens // 3
    assert third.acm["receipt"]["kept_tokens"] >= second.usage.input_tokens - 1
    assert len(prompt_of(scripted_server, session)) == 6


def test_turns_that_overlap_are_both_in_their_conversation(scripted_client: OpenAI, scripted_server: str) -> None:
    """The second is asked and answered while the first one streams."""
    for _ in range(20):  # on a busy machine the slow one may be through before the second is asked
        session = new_session()
        extra = {"conversation": session}
        long = log_lines(60)
        slow = ask(scripted_client, session, "First?", long, stream=True, max_output_tokens=600, extra=extra)
        while next(slow).type != "response.output_text.delta":
            pass
        quick = ask(scripted_client, session, "Second?", "Quick.", extra=extra)
        ended = [event for event in slow if event.type == "response.completed"][-1].response
        assert "storage" not in quick.acm | ended.acm
        said = [str(message["content"]) for message in prompt_of(scripted_server, session)]
        assert len(said) == 4
        if said[0] == "Second?":
            break
    assert said[:2] == ["Second?", "Quick."], "the slow one ended behind it"
    assert said[2] == "First?"
    assert said[3].startswith("line 0:")
    third = ask(scripted_client, session, "Third?", "Done.", previous_response_id=ended.id)
    assert third.acm["receipt"]["kept_tokens"] >= quick.usage.input_tokens - 1


def test_an_answer_that_the_session_does_not_hold_is_a_404(scripted_client: OpenAI) -> None:
    session = new_session()
    kept_back = ask(scripted_client, session, "Hello.", "Hi.", store=False)
    for unknown in ("resp_unknown", kept_back.id):
        with pytest.raises(openai.NotFoundError) as refused:
            ask(scripted_client, session, "And?", previous_response_id=unknown)
        assert "previous_response_id" in str(refused.value)
    extra = {"conversation": "c"}
    with pytest.raises(openai.BadRequestError):
        ask(scripted_client, session, "And?", previous_response_id=kept_back.id, extra=extra)


@pytest.mark.parametrize("stream", [False, True])
def test_over_the_threshold_a_summary_takes_the_place(
    scripted_client: OpenAI, scripted_server: str, stream: bool
) -> None:
    session, history, kinds, received = new_session(), [], [], []
    for number in range(8):
        history.append(user(f"{log_lines(16, first=16 * number)}"))
        limit = {"context_management": [{"type": "compaction", "compact_threshold": 1500}]}
        answer = ask(scripted_client, session, history, f"Read {number}.", stream=stream, **limit)
        if stream:
            events = list(answer)
            done = [event.item for event in events if event.type == "response.output_item.done"]
            answer = events[-1].response
            assert [item.type for item in done] == [item.type for item in answer.output]
        kinds.append([item.type for item in answer.output])
        received.append(answer)
        history += [item.model_dump(exclude_none=True) for item in answer.output]
        if number % 2 and "compaction" in kinds[-1]:
            history = history[[item.get("type") for item in history].index("compaction") :]
    assert kinds.count(["compaction", "message"]) >= 1
    assert kinds.count(["message"]) >= 4
    assert all(answer.usage.input_tokens <= 1600 for answer in received)
    assert [answer.output_text for answer in received] == [f"Read {number}." for number in range(8)]
    for before, answer, kind in zip(received, received[1:], kinds[1:], strict=False):
        if kind == ["message"]:
            assert answer.acm["receipt"]["kept_tokens"] >= before.usage.input_tokens - 1
        else:
            assert answer.context_management["applied_edits"][0]["summary"]["input_tokens"] > 500
    assert HEAD in str(prompt_of(scripted_server, session)[0]["content"])


def test_compaction_on_its_own_route(scripted_client: OpenAI) -> None:
    history = [user(log_lines(30)), {"type": "message", "role": "assistant", "content": log_lines(30, first=30)}]
    compacted = scripted_client.responses.compact(model=MODEL, input=history, instructions="You read.")
    assert [item.type for item in compacted.output] == ["message", "compaction"]
    assert compacted.object == "response.compaction"
    assert compacted.usage.input_tokens > 500
    later = [item.model_dump(exclude_none=True, warnings=False) for item in compacted.output] + [user("And now?")]
    for session in (new_session(), None):
        answer = ask(scripted_client, session, later, "Go on.")
        assert answer.output_text == "Go on."
        assert answer.usage.input_tokens < compacted.usage.input_tokens
    with pytest.raises(openai.BadRequestError) as refused:
        ask(scripted_client, new_session(), [{"type": "compaction", "encrypted_content": "gAAA"}, user("x")])
    assert "encrypted_content" in str(refused.value)


def test_what_a_chat_cannot_say_is_vllms_and_the_answer_says_why(scripted_client: OpenAI, scripted_server: str) -> None:
    session = new_session()
    for stream in (False, True):
        answer = ask(scripted_client, session, "Hello.", "Hi.", extra={"enable_response_messages": True}, stream=stream)
        if stream:
            answer = list(answer)[-1].response
        assert answer.output_text == "Hi."
        assert "enable_response_messages" in answer.acm["edits_not_applied"]
        assert answer.acm["receipt"]["prompt_tokens"] == answer.usage.input_tokens
    assert (
        http.get(f"{scripted_server}/v1/acm/sessions/{session}", headers={"X-Cache-Salt": session}).status_code == 404
    )
    extra = {"enable_response_messages": True, "acm": {"budget": 500}}
    with pytest.raises(openai.BadRequestError) as refused:
        ask(scripted_client, session, "Hello.", extra=extra)
    assert "acm.budget" in str(refused.value)
    assert "is 500, which needs a transcript, but vLLM answers this request by itself" in str(refused.value)


def test_errors_have_vllms_shape(scripted_client: OpenAI) -> None:
    with pytest.raises(openai.NotFoundError):
        scripted_client.responses.create(model="nobody", input="x", extra_body={"session_id": new_session()})
    with pytest.raises(openai.BadRequestError) as refused:
        ask(scripted_client, new_session(), log_lines(2000))
    assert "maximum context length" in str(refused.value)


def test_without_a_session_the_answer_is_vllms_own(scripted_client: OpenAI) -> None:
    answer = ask(scripted_client, None, "Hello.", "Hi.")
    assert answer.output_text == "Hi."
    assert "acm" not in (answer.model_extra or {})
    assert read_response(answer).num_prompt > 0
    limit: Any = [{"type": "compaction", "compact_threshold": 1}]
    for given, told in ((limit, True), (openai.omit, False)):
        raw = scripted_client.responses.with_raw_response.create(**asked(None, "x", "Hi.", context_management=given))
        assert ("needs a session id" in raw.headers.get("x-acm-compaction", "")) is told
