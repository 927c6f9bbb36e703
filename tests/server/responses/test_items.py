"""Items of the Responses API: what stays of them on the way to a chat, and behind a compaction."""

from __future__ import annotations

from typing import Any

import pytest
from vllm.entrypoints.openai.responses.utils import construct_tool_dicts

from acmserve.context.eviction.compact import HEAD
from acmserve.context.session.going_on import END
from acmserve.errors import InvalidRequest
from acmserve.server.models.message_roles import MessageRoles
from acmserve.server.responses.compaction_item import compaction_item, expand, has_compaction_item
from acmserve.server.responses.compaction_options import parse_compaction
from acmserve.server.responses.history import continued_from
from acmserve.server.responses.items import as_items, being_answered, items_of, leading_instructions, plain_items
from acmserve.server.responses.to_chat import to_chat_body
from acmserve.server.vllm.handlers import ChatCompletionRequest
from acmserve.server.vllm.responses import ResponsesRequest, continues_answer

INLINE = MessageRoles(inline_system=True)
CALL = {"type": "function_call", "call_id": "c1", "name": "read", "arguments": "{}"}
RESULT = {"type": "function_call_output", "call_id": "c1", "output": "A page."}
DEVELOPER = {"type": "message", "role": "developer", "content": "Be kind."}


def user(text: str) -> dict[str, Any]:
    return {"type": "message", "role": "user", "content": [{"type": "input_text", "text": text}]}


def answer(*texts: str) -> dict[str, Any]:
    return {
        "type": "message",
        "role": "assistant",
        "content": [{"type": "output_text", "text": text} for text in texts],
    }


def thought(**more: Any) -> dict[str, Any]:
    return {
        "type": "reasoning",
        "id": "rs_1",
        "summary": [],
        "content": [{"type": "reasoning_text", "text": "Hm."}],
    } | more


def chat_of(items: Any, **body: Any) -> dict[str, Any]:
    sent = {"model": "m", "input": items} | body
    request = ResponsesRequest.model_validate(sent | {"input": plain_items(as_items(items))})
    return to_chat_body(request, sent, INLINE)


def test_a_conversation_becomes_the_chat_that_says_the_same() -> None:
    items = [DEVELOPER, user("Read it."), thought(), answer("I read."), CALL, RESULT, answer("Done."), user("And?")]
    assert chat_of(items, instructions="You help.")["messages"] == [
        {"role": "system", "content": "You help.\n\nBe kind."},
        {"role": "user", "content": "Read it."},
        {
            "role": "assistant",
            "content": "I read.",
            "reasoning": "Hm.",
            "tool_calls": [{"id": "c1", "type": "function", "function": {"name": "read", "arguments": "{}"}}],
        },
        {"role": "tool", "tool_call_id": "c1", "content": "A page."},
        {"role": "assistant", "content": "Done."},
        {"role": "user", "content": "And?"},
    ]
    assert chat_of("Hello.")["messages"] == [{"role": "user", "content": "Hello."}]


def test_nothing_is_lost_that_vllm_reads_in_part() -> None:
    [message] = chat_of([answer("One. ", "Two."), user("x")])["messages"][:1]
    assert message["content"] == "One. Two."
    refused = {"type": "message", "role": "assistant", "content": [{"type": "refusal", "refusal": "No."}]}
    assert chat_of([refused, user("x")])["messages"][0]["content"] == "No."
    opaque = thought(content=None, encrypted_content="gAAA")
    assert [message["role"] for message in chat_of([opaque, user("x")])["messages"]] == ["user"]
    read = chat_of([thought(encrypted_content="gAAA"), answer("x"), user("x")])["messages"][0]
    assert read["reasoning"] == "Hm."
    parts = {**RESULT, "output": [{"type": "input_text", "text": "A"}, {"type": "input_text", "text": "B"}]}
    assert chat_of([CALL, parts])["messages"][1]["content"] == "A\nB"


@pytest.mark.parametrize("status", ["incomplete", "in_progress", "completed"])
@pytest.mark.parametrize("more", [{}, {"id": "msg_1"}], ids=["without an id", "with an id"])
def test_an_answer_that_is_not_complete_is_continued_as_vllm_does(status: str, more: dict[str, Any]) -> None:
    """With an id it was refused: its content was a text, whose characters vLLM read as parts."""
    items = [user("x"), {**answer("One, ", "two, "), "status": status, **more}]
    alone = ResponsesRequest.model_validate({"model": "m", "input": items})
    chat = chat_of(items)
    assert chat.get("continue_final_message", False) == continues_answer(alone) == (status != "completed")
    assert chat["messages"][1:] == [{"role": "assistant", "content": "One, two, "}]
    ChatCompletionRequest.model_validate(chat)


def test_tools_and_formats_as_a_chat_has_them() -> None:
    namespace = {"type": "namespace", "name": "git", "description": "d", "tools": [{"type": "function", "name": "log"}]}
    tools = [
        {"type": "function", "name": "read", "parameters": {"type": "object"}},
        {"type": "custom", "name": "patch"},
        {"type": "web_search"},
        namespace,
    ]
    chat = chat_of("x", tools=tools, tool_choice={"type": "function", "name": "read"}, max_output_tokens=7)
    assert [tool["function"]["name"] for tool in chat["tools"]] == ["read", "patch", "git__log"]
    assert chat["tool_choice"] == {"type": "function", "function": {"name": "read"}}
    assert chat["max_completion_tokens"] == 7
    assert "tool_choice" not in chat_of("x", tools=[{"type": "web_search"}])
    wanted = {"format": {"type": "json_schema", "name": "n", "schema": {"type": "object"}, "strict": True}}
    assert chat_of("x", text=wanted)["response_format"]["json_schema"]["schema"] == {"type": "object"}
    called = {"type": "custom_tool_call", "call_id": "c2", "name": "patch", "input": "+ a"}
    assert "+ a" in chat_of([called])["messages"][0]["tool_calls"][0]["function"]["arguments"]


def test_a_null_of_a_tools_schema_is_shown_to_the_model() -> None:
    """As where vLLM answers itself: its tools have their own fields, unset ones too, when the template sees them."""
    shape = {"x": {"anyOf": [{"type": "string"}, {"type": "null"}], "default": None}, "y": {"const": None}}
    tools = [{"type": "function", "name": "read", "parameters": {"type": "object", "properties": shape}}]
    chat = ChatCompletionRequest.model_validate(chat_of("x", tools=tools))
    alone = ResponsesRequest.model_validate({"model": "m", "input": "x", "tools": tools})
    assert [tool.model_dump() for tool in chat.tools or ()] == construct_tool_dicts(alone.tools, "auto")


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        ({}, None),
        ({"previous_response_id": None, "conversation": None}, None),
        ({"previous_response_id": "resp_1"}, "resp_1"),
        ({"previous_response_id": ""}, ""),
        ({"conversation": "conv_1"}, END),
        ({"conversation": {"id": "conv_1"}}, END),
        ({"conversation": ""}, None),
        ({"conversation": {"id": ""}}, None),
        ({"conversation": {}}, None),
        ({"previous_response_id": "resp_1", "conversation": ""}, "resp_1"),
    ],
)
def test_where_a_request_goes_on(body: dict[str, Any], expected: Any) -> None:
    assert continued_from(body) == expected


def test_an_answer_and_a_conversation_are_not_sent_together() -> None:
    with pytest.raises(InvalidRequest) as refused:
        continued_from({"previous_response_id": "", "conversation": "conv_1"})
    assert refused.value.field == "previous_response_id"


@pytest.mark.parametrize(
    ("choice", "parses", "expected"),
    [("auto", True, "auto"), ("auto", False, None), ("required", False, "required"), ("none", False, "none")],
)
def test_a_server_that_parses_no_calls_shows_the_tools_all_the_same(choice: str, parses: bool, expected: str) -> None:
    """vLLM's own route does so. A chat with "auto" is refused there."""
    sent = {"model": "m", "input": "x", "tools": [{"type": "function", "name": "read"}], "tool_choice": choice}
    request = ResponsesRequest.model_validate(sent)
    chat = ChatCompletionRequest.model_validate(to_chat_body(request, sent, INLINE, parses_calls=parses))
    assert chat.tool_choice == expected
    assert [tool.function.name for tool in chat.tools or ()] == ["read"]


@pytest.mark.parametrize(
    ("items", "expected"),
    [
        ([user("a"), answer("b"), user("c")], [user("c")]),
        ([user("a"), CALL, RESULT], [user("a"), CALL, RESULT]),
        ([user("a"), CALL, RESULT, CALL, RESULT], [user("a"), CALL, RESULT]),
        (
            [user("a"), thought(), answer("b"), CALL, RESULT, user("c")],
            [user("a"), thought(), answer("b"), CALL, RESULT, user("c")],
        ),
        ([user("a"), answer("b")], [user("a"), answer("b")]),
        ([user("a")], [user("a")]),
        ([], []),
    ],
)
def test_what_is_being_answered(items: list[Any], expected: list[Any]) -> None:
    assert being_answered(items) == expected


def test_a_compaction_item_stands_for_what_was_before_whether_it_is_sent_or_not() -> None:
    before = [DEVELOPER, user("a"), answer("b"), user("c")]
    head = leading_instructions(before)
    item = compaction_item("S.", [*head, *being_answered(before[len(head) :])], covers_all=True)
    after = [answer("d"), user("e")]
    assert has_compaction_item([item])
    assert expand([*before, item, *after]) == expand([item, *after])
    [developer, said, *rest] = expand([item, *after])
    assert developer == DEVELOPER
    assert [part["text"] for part in said["content"]] == [f"{HEAD}\nS.", "c"]
    assert rest == after
    again = compaction_item("T.", [], covers_all=True)
    assert expand([*before, item, *after, again, user("f")])[0]["content"][0]["text"] == f"{HEAD}\nT."


def test_the_compact_route_keeps_the_users_messages() -> None:
    item = compaction_item("S.", [], covers_all=False)
    assert [part["content"][-1]["text"] for part in expand([user("a"), item, user("b")])] == ["a", f"{HEAD}\nS.", "b"]


@pytest.mark.parametrize("content", [None, "", "gAAAAAB", "acm1.", "acm1.e30=", "acm1.W10=", 7])
def test_an_item_of_somebody_else_is_refused(content: Any) -> None:
    with pytest.raises(InvalidRequest) as refused:
        expand([user("a"), {"type": "compaction", "encrypted_content": content}])
    assert refused.value.field == "input[1].encrypted_content"
    assert refused.value.remedy


def test_messages_become_items() -> None:
    items = [user("Read it."), answer("I read."), CALL, RESULT]
    assert chat_of(items_of(chat_of(items)["messages"]))["messages"] == chat_of(items)["messages"]


def test_the_threshold_is_read_strictly() -> None:
    def parse(value: Any) -> int | None:
        return parse_compaction({"context_management": value}, 10_000)

    assert parse(None) is parse([]) is None
    assert parse([{"type": "compaction", "compact_threshold": 1200}]) == 1200
    assert parse([{"type": "compaction"}]) == 8000
    for value, field in (
        ({"edits": []}, "context_management"),
        ([{"type": "clear"}], "context_management[0].type"),
        ([{"type": "compaction", "threshold": 3}], "context_management[0].threshold"),
        ([{"type": "compaction", "compact_threshold": 0}], "context_management[0].compact_threshold"),
        ([{"type": "compaction", "compact_threshold": True}], "context_management[0].compact_threshold"),
        ([{"type": "compaction"}, {"type": "compaction"}], "context_management[1]"),
    ):
        with pytest.raises(InvalidRequest) as refused:
            parse(value)
        assert refused.value.field == field
