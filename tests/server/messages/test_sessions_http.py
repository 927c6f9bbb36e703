"""/v1/messages in a session, with Anthropic's own client: counts, late system messages, what only the vendor runs."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from typing import Any

import anthropic
import pytest

from tests.support import http
from tests.support.routes.route_clients import MESSAGES, RESPONSES, Agent, Message
from tests.support.server.scripted_server import MODEL
from tests.support.server.scripts import log_lines, new_session, tool_call

SYSTEM: Message = {"role": "system", "content": "You keep the records of a valley."}
LATE = {MESSAGES: "system", RESPONSES: "developer"}


@pytest.fixture(scope="module")
def claude(scripted_server: str) -> Iterator[anthropic.Anthropic]:
    with anthropic.Anthropic(base_url=scripted_server, api_key="unused", max_retries=0) as client:
        yield client


def ask(claude: anthropic.Anthropic, session: str | None, messages: Any, *script: str, **more: Any) -> Any:
    extra: dict[str, Any] = {} if session is None else {"session_id": session}
    extra |= {"vllm_xargs": {"script_id": uuid.uuid4().hex, "script": list(script)}} if script else {}
    return claude.messages.create(model=MODEL, max_tokens=60, messages=messages, extra_body=extra, **more)


def num_prompt(answer: Any) -> int:
    """Tokens of the prompt. The vendor does not count cached ones as input."""
    usage = answer.usage
    return int(usage.input_tokens + usage.cache_read_input_tokens + usage.cache_creation_input_tokens)


def count(claude: anthropic.Anthropic, session: str, messages: Any, **extra: Any) -> Any:
    return claude.messages.count_tokens(model=MODEL, messages=messages, extra_body={"session_id": session} | extra)


def test_a_count_is_what_the_next_answer_is_served(claude: anthropic.Anthropic, scripted_server: str) -> None:
    session, messages = new_session(), [{"role": "user", "content": log_lines(60)}]
    url = f"{scripted_server}/v1/acm/sessions/{session}"
    assert count(claude, session, messages).input_tokens > 600
    assert http.get(url).status_code == 404
    first = ask(claude, session, messages, "Read.")
    assert count(claude, session, messages).input_tokens == num_prompt(first)
    fold = {"edits": [{"op": "fold", "messages": {"start": 0, "end": 1}}]}
    http.post(f"{url}/edits", json=fold).raise_for_status()
    messages += [{"role": "assistant", "content": first.content}, {"role": "user", "content": "And now?"}]
    counted = count(claude, session, messages)
    before = http.get(url).json()["num_messages"]
    second = ask(claude, session, messages, "Short.")
    assert counted.input_tokens == num_prompt(second) < 200
    assert counted.context_management["original_input_tokens"] > num_prompt(first)
    assert (before, http.get(url).json()["num_messages"]) == (2, 4)
    tooled = count(claude, session, messages, acm={"tools": "sculptor"})
    served = ask(claude, session, messages, "Short.")
    assert tooled.input_tokens > num_prompt(served) + 300
    with pytest.raises(anthropic.BadRequestError, match=r"acm\.map"):
        count(claude, session, messages, acm={"map": {"corpus": "c"}})


@pytest.mark.parametrize("route", list(LATE))
def test_a_late_instruction_costs_no_prefix(scripted_server: str, route: str) -> None:
    user, session = Agent(scripted_server, route), new_session()
    history = [SYSTEM, {"role": "user", "content": log_lines(60)}]
    num_before = 0
    for number in range(3):
        answer = user.ask(session, history, [f"Read {number}."])
        assert answer.acm["receipt"]["kept_tokens"] >= num_before - 1
        num_before = answer.num_prompt
        reminder = {"role": LATE[route], "content": f"Remember {number}. {log_lines(5)}"}
        history += [answer.as_message(), {"role": "user", "content": "Go on."}, reminder]
    assert num_before > 1000


def test_where_vllm_answers_itself_a_late_instruction_costs_the_prefix(scripted_server: str) -> None:
    """The control: vLLM puts the developer's messages to the front for this template."""
    user, session = Agent(scripted_server, RESPONSES), new_session()
    history = [SYSTEM, {"role": "user", "content": log_lines(60)}]
    first = user.ask(session, history, ["Read."], enable_response_messages=True)
    history += [
        first.as_message(),
        {"role": "user", "content": "Go on."},
        {"role": "developer", "content": "Remember."},
    ]
    second = user.ask(session, history, ["Read."], enable_response_messages=True)
    assert second.acm["receipt"]["kept_tokens"] < first.num_prompt // 4


@pytest.mark.parametrize("session", [None, "held"])
def test_what_only_the_vendor_runs_is_accepted(claude: anthropic.Anthropic, session: str | None) -> None:
    session = session and new_session()
    searched: list[Any] = [
        {"type": "server_tool_use", "id": "srvtoolu_1", "name": "web_search", "input": {"query": "mill"}},
        {"type": "web_search_tool_result", "tool_use_id": "srvtoolu_1", "content": []},
        {"type": "text", "text": "The mill stands."},
    ]
    messages = [
        {"role": "user", "content": "Search."},
        {"role": "assistant", "content": searched},
        {"role": "user", "content": "Note it."},
    ]
    tools: list[Any] = [
        {"type": "memory_20250818", "name": "memory"},
        {"type": "web_search_20250305", "name": "web_search"},
    ]
    call = tool_call("memory", command="create", path="/memories/mill", file_text="It stands.")
    answer = ask(claude, session, messages, call, tools=tools)
    [use] = [block for block in answer.content if block.type == "tool_use"]
    assert (use.name, use.input["command"]) == ("memory", "create")
    assert answer.stop_reason == "tool_use"


def test_pings_tell_what_a_loop_does(scripted_server: str) -> None:
    body = {
        "model": MODEL,
        "max_tokens": 60,
        "stream": True,
        "messages": [{"role": "user", "content": f"The log:\n{log_lines(20)}"}],
        "session_id": new_session(),
        "acm": {"tools": "sculptor"},
        "vllm_xargs": {
            "script_id": uuid.uuid4().hex,
            "script": [tool_call("search_context", query="line 7:", max_results=1, context_size=50), "It was 49."],
        },
    }
    events = http.post(f"{scripted_server}/v1/messages", json=body).text
    assert events.count('"event":"tool"') == 1
    assert events.count('"event":"receipt"') == 2
    assert all("event: ping" in event for event in events.split("\n\n") if '"event":"' in event)


def test_errors_come_in_the_vendors_shape(claude: anthropic.Anthropic) -> None:
    with pytest.raises(anthropic.BadRequestError) as refused:
        ask(claude, new_session(), [{"role": "user", "content": log_lines(2000)}])
    assert refused.value.body["type"] == "error"  # type: ignore[index,call-overload]
    with pytest.raises(anthropic.NotFoundError):
        claude.messages.create(
            model="nobody", max_tokens=5, messages=[{"role": "user", "content": "x"}], extra_body={"session_id": "s"}
        )
    with pytest.raises(anthropic.BadRequestError, match=r"acm\.budget"):
        claude.messages.create(
            model=MODEL,
            max_tokens=5,
            messages=[{"role": "user", "content": "x"}],
            extra_body={"session_id": new_session(), "acm": {"budget": -1}},
        )


@pytest.mark.parametrize("fields", [{}, {"acm": {"tools": "sculptor"}}], ids=["once", "loop"])
def test_a_call_that_spells_half_of_a_surrogate_pair_ends_its_stream(scripted_server: str, fields: Any) -> None:
    """Its arguments are text as good as any. Recorded by their value, they broke the stream behind its last word."""
    look = {"name": "look", "input_schema": {"type": "object", "properties": {"at": {"type": "string"}}}}
    said = 'Look: <tool_call>\n{"name": "look", "arguments": {"at": "\\ud800"}}\n</tool_call>'
    body = {"model": MODEL, "max_tokens": 100, "stream": True, "session_id": new_session(), "tools": [look]}
    script = {"script_id": new_session(), "script": [said]}
    asked = body | {"messages": [{"role": "user", "content": "Where?"}], "vllm_xargs": script} | fields
    text = http.post(f"{scripted_server}/v1/messages", json=asked).raise_for_status().text
    assert "input_json_delta" in text
    assert "event: error" not in text
    assert text.rstrip().endswith('data: {"type":"message_stop"}')
    path = f"{scripted_server}/v1/acm/sessions/{body['session_id']}/context"
    assert "ud800" in http.get(path).raise_for_status().text, "the answer was recorded"
