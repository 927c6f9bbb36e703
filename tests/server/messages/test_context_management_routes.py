"""`context_management` on vLLM's own routes without an engine: vLLM's functions run, handlers say what they got."""

from __future__ import annotations

import json
from typing import Any

import pytest
from starlette.testclient import TestClient
from vllm.entrypoints.serve.engine.protocol import ErrorInfo, ErrorResponse

from acmserve.server.app.paths import CHAT_PATH, COUNT_PATH, MESSAGES_PATH
from tests.support.routes.vendor_app import EVENTS, Handler, make_editor, vendor_client
from tests.support.server.acm_app import FirstSentence
from tests.support.server.bad_context_management import BAD_VALUES, THINKING, TOOLS
from tests.support.server.block_story import PLACEHOLDER, Blocks, cleared_ids, cleared_in_chat

CLEAR_NOW: dict[str, Any] = {"edits": [{"type": TOOLS, "trigger": {"type": "tool_uses", "value": 3}}]}
CLEAR_LATE: dict[str, Any] = {"edits": [{"type": TOOLS}]}


@pytest.fixture
def handler() -> Handler:
    return Handler()


@pytest.fixture
def client(handler: Handler) -> TestClient:
    return vendor_client(handler, make_editor(FirstSentence()))


def reads(num: int) -> Blocks:
    story = Blocks().user("Find it .")
    for number in range(num):
        story.step(("read", f"{'w ' * 20}{number}"))
    return story


def body(story: Blocks, context_management: Any, **more: Any) -> dict[str, Any]:
    asked = {"model": "m", "max_tokens": 5, "messages": story.messages, "context_management": context_management}
    return asked | more


def test_vllm_gets_the_edited_messages_and_the_answer_says_so(client: TestClient, handler: Handler) -> None:
    answer = client.post(MESSAGES_PATH, json=body(reads(5), CLEAR_NOW)).json()
    assert cleared_ids(handler.seen[0]) == ["toolu_1", "toolu_2"]
    assert answer["context_management"] == {
        "applied_edits": [{"type": TOOLS, "cleared_tool_uses": 2, "cleared_input_tokens": 2 * 18}]
    }
    assert "acm" not in answer


def test_below_the_trigger_vllm_gets_what_was_sent(client: TestClient, handler: Handler) -> None:
    story = reads(3)
    answer = client.post(MESSAGES_PATH, json=body(story, CLEAR_NOW)).json()
    assert handler.seen[0] == story.messages
    assert answer["context_management"] == {"applied_edits": []}


def test_without_the_field_the_answer_is_vllms_own(client: TestClient, handler: Handler) -> None:
    answer = client.post(MESSAGES_PATH, json=body(reads(5), None)).json()
    assert "context_management" not in answer
    assert cleared_ids(handler.seen[0]) == []


def test_a_stream_says_it_in_message_delta(client: TestClient) -> None:
    answer = client.post(MESSAGES_PATH, json=body(reads(5), CLEAR_NOW, stream=True))
    first, last = answer.text.strip().split("\n\n")
    assert first + "\n\n" == EVENTS[0]
    payload = json.loads(last.partition("data: ")[2])
    assert payload["context_management"]["applied_edits"][0]["cleared_tool_uses"] == 2
    assert payload["delta"] == {"stop_reason": "end_turn"}


def test_a_session_remembers_what_was_cleared(client: TestClient, handler: Handler) -> None:
    story = reads(5)
    client.post(MESSAGES_PATH, json=body(story, CLEAR_NOW, session_id="s"))
    story.user("And now ?")
    again = client.post(MESSAGES_PATH, json=body(story, CLEAR_LATE, session_id="s")).json()
    assert handler.seen[1][:-1] == handler.seen[0]
    assert again["context_management"]["applied_edits"][0]["cleared_tool_uses"] == 2
    client.post(MESSAGES_PATH, json=body(story, CLEAR_LATE, session_id="other"))
    client.post(MESSAGES_PATH, json=body(story, CLEAR_LATE, session_id="s"), headers={"X-Cache-Salt": "mine"})
    client.post(MESSAGES_PATH, json=body(story, CLEAR_LATE))
    assert [cleared_in_chat(seen) for seen in handler.seen[:4]] == [["toolu_1", "toolu_2"]] * 2 + [[], []]
    assert cleared_ids(handler.seen[4]) == []


def test_a_refused_request_is_not_remembered(client: TestClient, handler: Handler) -> None:
    handler.error = ErrorResponse(error=ErrorInfo(message="too long", type="BadRequestError", code=400))
    refused = client.post(MESSAGES_PATH, json=body(reads(5), CLEAR_NOW, session_id="s"))
    assert refused.status_code == 400
    assert refused.json()["error"]["message"] == "too long"
    handler.error = None
    client.post(MESSAGES_PATH, json=body(reads(5), CLEAR_LATE, session_id="s"))
    assert [cleared_in_chat(seen) for seen in handler.seen] == [["toolu_1", "toolu_2"], []]


def test_a_deleted_session_is_forgotten(client: TestClient, handler: Handler) -> None:
    client.post(MESSAGES_PATH, json=body(reads(5), CLEAR_NOW, session_id="s"))
    client.post(MESSAGES_PATH, json=body(reads(5), CLEAR_NOW, session_id="s"), headers={"X-Cache-Salt": "mine"})
    deleted = [client.delete("/v1/acm/sessions/s").status_code for _ in range(2)]
    assert deleted == [204, 404]
    client.post(MESSAGES_PATH, json=body(reads(5), CLEAR_LATE, session_id="s"))
    client.post(MESSAGES_PATH, json=body(reads(5), CLEAR_LATE, session_id="s"), headers={"X-Cache-Salt": "mine"})
    assert [cleared_in_chat(seen) for seen in handler.seen[2:]] == [[], ["toolu_1", "toolu_2"]]


def test_count_tokens_counts_both(client: TestClient, handler: Handler) -> None:
    story = reads(5)
    asked = body(story, CLEAR_NOW)
    del asked["max_tokens"]
    counted = client.post(COUNT_PATH, json=asked).json()
    assert counted["context_management"] == {"original_input_tokens": len(json.dumps(story.messages).split())}
    assert counted["input_tokens"] == counted["context_management"]["original_input_tokens"] - 2 * 18
    plain = client.post(COUNT_PATH, json=asked | {"context_management": CLEAR_LATE}).json()
    assert plain["input_tokens"] == plain["context_management"]["original_input_tokens"]
    assert handler.counted[-1] == story.messages


def test_count_tokens_sees_the_session_and_leaves_it(client: TestClient, handler: Handler) -> None:
    story = reads(5)
    client.post(COUNT_PATH, json=body(story, CLEAR_NOW, session_id="s"))
    assert client.get("/v1/acm/sessions/s").status_code == 404
    client.post(MESSAGES_PATH, json=body(story, CLEAR_LATE, session_id="s"))
    assert cleared_in_chat(handler.seen[-1]) == []
    client.post(MESSAGES_PATH, json=body(story, CLEAR_NOW, session_id="s"))
    counted = client.post(COUNT_PATH, json=body(story, CLEAR_LATE, session_id="s")).json()
    edited, sent = handler.counted[-2:]
    assert [cleared_in_chat(messages) for messages in (edited, sent)] == [["toolu_1", "toolu_2"], []]
    assert counted["input_tokens"] == len(json.dumps(edited).split())
    assert counted["context_management"] == {"original_input_tokens": len(json.dumps(sent).split())}


def test_the_template_is_measured_once_for_each_set_of_tools(client: TestClient, handler: Handler) -> None:
    tools = [{"name": "read", "input_schema": {"type": "object"}}]
    for asked in ({}, {}, {"tools": tools}, {"tools": tools}):
        client.post(MESSAGES_PATH, json=body(reads(1), CLEAR_NOW, **asked))
    assert len(handler.counted) == 2


def test_a_template_that_cannot_be_measured_is_estimated(client: TestClient, handler: Handler) -> None:
    handler.can_count = False
    answer = client.post(MESSAGES_PATH, json=body(reads(5), CLEAR_NOW)).json()
    assert answer["context_management"]["applied_edits"][0]["cleared_tool_uses"] == 2


def chat_reads(num: int) -> list[dict[str, Any]]:
    messages: list[dict[str, Any]] = [{"role": "user", "content": "Find it ."}]
    for number in range(num):
        call = {"id": f"c{number}", "type": "function", "function": {"name": "read", "arguments": "{}"}}
        messages.append({"role": "assistant", "content": None, "tool_calls": [call]})
        messages.append({"role": "tool", "tool_call_id": f"c{number}", "content": "w " * 20})
    return messages


def cleared_results(messages: list[dict[str, Any]]) -> list[bool]:
    return [message["content"] == PLACEHOLDER for message in messages if message["role"] == "tool"]


def test_chat_completions_without_a_session(client: TestClient, handler: Handler) -> None:
    asked = {"model": "m", "messages": chat_reads(5), "context_management": CLEAR_NOW}
    answer = client.post(CHAT_PATH, json=asked).json()
    assert cleared_results(handler.seen[0]) == [True, True, False, False, False]
    assert answer["context_management"]["applied_edits"][0]["cleared_tool_uses"] == 2


@pytest.mark.parametrize(("value", "field"), BAD_VALUES)
def test_bad_values_come_in_the_vendors_shape(client: TestClient, handler: Handler, value: Any, field: str) -> None:
    for path in (MESSAGES_PATH, COUNT_PATH):
        refused = client.post(path, json=body(reads(1), value))
        assert refused.status_code == 400
        answer = refused.json()
        assert answer["type"] == "error"
        assert answer["error"]["type"] == "invalid_request_error"
        assert answer["error"]["message"].startswith(f"{field}: ")
    ours = client.post(CHAT_PATH, json=body(Blocks().user(), value)).json()
    assert ours["error"]["type"] == "BadRequestError"
    assert ours["error"]["param"] == field
    assert handler.seen == []


def test_text_that_is_no_unicode_is_refused(client: TestClient) -> None:
    story = Blocks().user().step(("read", "x"))
    story.messages[1]["content"][0]["input"]["query"] = "\ud800"
    content = json.dumps(body(story, {"edits": [{"type": THINKING}]}))
    refused = client.post(MESSAGES_PATH, content=content, headers={"Content-Type": "application/json"})
    assert refused.status_code == 400
    assert refused.json()["error"]["type"] == "invalid_request_error"
