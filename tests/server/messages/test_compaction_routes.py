"""Compaction on vLLM's own routes without an engine: what the model gets, what the answer says, what is refused."""

from __future__ import annotations

import json
from typing import Any

import pytest
from openapi_spec_validator import OpenAPIV31SpecValidator
from starlette.testclient import TestClient
from vllm.entrypoints.serve.engine.protocol import ErrorInfo, ErrorResponse

from acmserve.context.eviction.compact import HEAD
from acmserve.server.app.paths import CHAT_PATH, COMPACT_PATH, COUNT_PATH, MESSAGES_PATH
from tests.support.routes.vendor_app import EVENTS, Handler, make_editor, vendor_client
from tests.support.server.acm_app import FirstSentence, OutOfReach
from tests.support.server.bad_context_management import COMPACT, TOOLS
from tests.support.server.block_story import PLACEHOLDER, Blocks


@pytest.fixture
def handler() -> Handler:
    return Handler()


@pytest.fixture
def summarizer() -> FirstSentence:
    return FirstSentence()


@pytest.fixture
def client(handler: Handler, summarizer: FirstSentence) -> TestClient:
    return vendor_client(handler, make_editor(summarizer))


def compact(trigger: int = 100, **more: Any) -> dict[str, Any]:
    return {"edits": [{"type": COMPACT, "trigger": {"type": "input_tokens", "value": trigger}, **more}]}


def talk(num_turns: int = 5) -> Blocks:
    story = Blocks()
    for number in range(num_turns):
        story.user(f"Question {number} {'w ' * 20}?").say(f"Answer {number} {'v ' * 20}.")
    return story.user("And now ?")


def body(messages: Any, context_management: Any, **more: Any) -> dict[str, Any]:
    return {"model": "m", "max_tokens": 5, "messages": messages, "context_management": context_management} | more


def standing(summary: str, *words: str) -> dict[str, Any]:
    """The message that begins a prompt behind a summary."""
    return {"role": "user", "content": [{"type": "text", "text": word} for word in (f"{HEAD}\n{summary}", *words)]}


@pytest.mark.parametrize("sent", [[], [1], 5, "x"])
def test_what_is_no_object_is_refused(client: TestClient, sent: Any) -> None:
    answer = client.post(COMPACT_PATH, json=sent)
    assert answer.status_code == 400
    assert answer.json()["error"]["param"] == "body"


def test_over_the_trigger_the_model_gets_a_summary_and_the_question(
    client: TestClient, handler: Handler, summarizer: FirstSentence
) -> None:
    answer = client.post(MESSAGES_PATH, json=body(talk().messages, compact(instructions="Only names ."))).json()
    ((text, instructions),) = summarizer.conversations
    assert text.startswith("user: Question 0")
    assert text.endswith("user: And now ?")
    assert instructions == "Only names ."
    block = answer["content"][0]
    assert block == {"type": "compaction", "content": f"Summary 1 of {len(text.split())} words."}
    assert handler.seen == [[standing(block["content"], "And now ?")]]
    assert answer["context_management"] == {"applied_edits": []}
    first, second = answer["usage"]["iterations"]
    assert (first["type"], second["type"]) == ("compaction", "message")
    assert first["input_tokens"] > len(text.split()) // 2
    assert first["output_tokens"] == 6


def test_below_the_trigger_the_answer_is_as_ever(
    client: TestClient, handler: Handler, summarizer: FirstSentence
) -> None:
    story = talk()
    answer = client.post(MESSAGES_PATH, json=body(story.messages, compact(100_000))).json()
    assert (answer["content"], summarizer.conversations) == ([], [])
    assert "iterations" not in (answer.get("usage") or {})
    assert handler.seen == [story.messages]


def test_a_block_that_comes_back_stands_for_what_was_before(client: TestClient, handler: Handler) -> None:
    story = talk()
    block = client.post(MESSAGES_PATH, json=body(story.messages, compact())).json()["content"][0]
    said = {"role": "assistant", "content": [block, {"type": "text", "text": "Now ."}]}
    later = [*story.messages, said, {"role": "user", "content": "And then ?"}]
    for context_management in (compact(), None):
        client.post(MESSAGES_PATH, json=body(later, context_management))
        assert handler.seen[-1] == [
            *handler.seen[0],
            {"role": "assistant", "content": said["content"][1:]},
            {"role": "user", "content": "And then ?"},
        ]


def test_a_second_summary_covers_the_first(client: TestClient, handler: Handler, summarizer: FirstSentence) -> None:
    first = client.post(MESSAGES_PATH, json=body(talk().messages, compact())).json()["content"][0]
    messages = [*talk().messages, {"role": "assistant", "content": [first, {"type": "text", "text": "w " * 90}]}]
    messages.append({"role": "user", "content": "And then ?"})
    second = client.post(MESSAGES_PATH, json=body(messages, compact())).json()["content"][0]
    assert first["content"] in summarizer.conversations[1][0]
    assert "Question 0" not in summarizer.conversations[1][0]
    assert handler.seen[1] == [standing(second["content"], "And then ?")]


def test_a_pause_ends_the_answer_behind_the_summary(client: TestClient, handler: Handler) -> None:
    paused = client.post(MESSAGES_PATH, json=body(talk().messages, compact(pause_after_compaction=True))).json()
    assert handler.seen == []
    assert (paused["stop_reason"], len(paused["content"])) == ("compaction", 1)
    assert [iteration["type"] for iteration in paused["usage"]["iterations"]] == ["compaction"]
    assert (paused["usage"]["input_tokens"], paused["context_management"]) == (0, {"applied_edits": []})
    messages = [*talk().messages, {"role": "assistant", "content": paused["content"]}]
    client.post(MESSAGES_PATH, json=body(messages, compact(pause_after_compaction=True)))
    assert handler.seen == [[standing(paused["content"][0]["content"], "And now ?")]]


def test_a_summary_that_fails_is_a_block_without_content(handler: Handler, caplog: pytest.LogCaptureFixture) -> None:
    client, story = vendor_client(handler, make_editor(OutOfReach())), talk()
    for pause in (False, True):
        answer = client.post(MESSAGES_PATH, json=body(story.messages, compact(pause_after_compaction=pause))).json()
        assert answer["content"] == [{"type": "compaction", "content": None}]
    assert handler.seen == [story.messages] * 2
    client.post(MESSAGES_PATH, json=body([*story.messages, {"role": "assistant", "content": answer["content"]}], None))
    assert handler.seen[2] == story.messages


def test_a_summary_that_could_not_help_is_not_asked_for(
    client: TestClient, handler: Handler, summarizer: FirstSentence
) -> None:
    story = talk(1).user("w " * 120)
    answer = client.post(MESSAGES_PATH, json=body(story.messages, compact())).json()
    assert (answer["content"], summarizer.conversations) == ([{"type": "compaction", "content": None}], [])
    assert handler.seen == [story.messages]


def test_what_is_cleared_counts_for_the_trigger_no_more(
    client: TestClient, handler: Handler, summarizer: FirstSentence
) -> None:
    story = Blocks().user("Find it .")
    for number in range(5):
        story.step(("read", f"{'w ' * 40}{number}"))
    clear = {"type": TOOLS, "trigger": {"type": "tool_uses", "value": 3}}
    for trigger, num_summaries in ((260, 0), (150, 1)):
        asked = body(story.messages, {"edits": [compact(trigger)["edits"][0], clear]})
        answer = client.post(MESSAGES_PATH, json=asked).json()
        assert answer["context_management"]["applied_edits"][0]["cleared_tool_uses"] == 2
        assert len(summarizer.conversations) == num_summaries
    assert summarizer.conversations[0][0].count(PLACEHOLDER) == 2
    assert handler.seen[1][1:] == story.messages[-2:]


def test_a_refused_request_stays_refused(client: TestClient, handler: Handler) -> None:
    handler.error = ErrorResponse(error=ErrorInfo(message="too long", type="BadRequestError", code=400))
    refused = client.post(MESSAGES_PATH, json=body(talk().messages, compact()))
    assert (refused.status_code, refused.json()["error"]["message"]) == (400, "too long")


def test_a_stream_shifts_the_blocks_of_the_answer(client: TestClient) -> None:
    answer = client.post(MESSAGES_PATH, json=body(talk().messages, compact(), stream=True))
    delta, end = (json.loads(event.partition("data: ")[2]) for event in answer.text.strip().split("\n\n"))
    assert delta == json.loads(EVENTS[0].partition("data: ")[2]) | {"index": 1}
    assert [iteration["type"] for iteration in end["usage"]["iterations"]] == ["compaction", "message"]
    assert end["context_management"] == {"applied_edits": []}


def test_count_tokens_applies_blocks_and_writes_none(
    client: TestClient, handler: Handler, summarizer: FirstSentence
) -> None:
    block = {"type": "compaction", "content": "They talked ."}
    messages = [*talk().messages, {"role": "assistant", "content": [block, {"type": "text", "text": "Now ."}]}]
    messages += Blocks().user("And then ?").messages
    for context_management in (None, compact(1)):
        asked = body(messages, context_management)
        del asked["max_tokens"]
        counted = client.post(COUNT_PATH, json=asked).json()
        assert counted["input_tokens"] < counted["context_management"]["original_input_tokens"]
        assert handler.counted[-1][0] == standing("They talked .", "And now ?")
        assert len(handler.counted[-2]) == len(messages)
    assert summarizer.conversations == []


@pytest.mark.parametrize("path", [MESSAGES_PATH, COUNT_PATH])
@pytest.mark.parametrize("content", ["", 7])
def test_a_block_that_is_no_summary_is_refused(client: TestClient, handler: Handler, path: str, content: Any) -> None:
    said = {"role": "assistant", "content": [{"type": "compaction", "content": content}]}
    refused = client.post(path, json=body([*talk().messages, said], None))
    assert refused.status_code == 400
    assert refused.json()["type"] == "error"
    assert refused.json()["error"]["type"] == "invalid_request_error"
    assert refused.json()["error"]["message"].startswith("messages[11].content[0].content: ")
    assert handler.seen == []


def test_without_a_session_chat_completions_say_what_to_do(client: TestClient, handler: Handler) -> None:
    asked = {"model": "m", "messages": [{"role": "user", "content": "Hi"}], "context_management": compact()}
    refused = client.post(CHAT_PATH, json=asked)
    assert refused.status_code == 400
    assert refused.json()["error"]["param"] == "context_management.edits[0].type"
    assert "session_id" in refused.json()["error"]["remedy"]
    assert handler.seen == []


def test_the_document_of_the_routes_is_valid(client: TestClient) -> None:
    document = client.get("/openapi.json").json()
    assert [error.message for error in OpenAPIV31SpecValidator(document).iter_errors()] == []
    asked = document["paths"][MESSAGES_PATH]["post"]["requestBody"]["content"]["application/json"]["schema"]
    assert asked == {"$ref": "#/components/schemas/MessagesRequest"}
