"""What only the vendor's servers run, in a conversation that goes on here."""

from __future__ import annotations

import json
from typing import Any

import pytest
from vllm.entrypoints.anthropic.protocol import AnthropicMessagesRequest

from acmserve.context.anthropic.vendor_parts import plain_blocks, plain_tools
from acmserve.errors import InvalidRequest
from acmserve.validation import MAX_JSON_DEPTH

SEARCHED = {
    "role": "assistant",
    "content": [
        {"type": "text", "text": "I look."},
        {"type": "server_tool_use", "id": "srvtoolu_1", "name": "web_search", "input": {"query": "mill"}},
        {
            "type": "web_search_tool_result",
            "tool_use_id": "srvtoolu_1",
            "content": [
                {"type": "web_search_result", "title": "The mill", "url": "http://m", "encrypted_content": "E9"}
            ],
        },
        {"type": "tool_use", "id": "toolu_1", "name": "read", "input": {}},
    ],
}
PLAIN = {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "toolu_1", "content": "x"}]}


def test_blocks_of_server_tools_become_texts_that_vllm_takes() -> None:
    messages = [{"role": "user", "content": "Find it."}, SEARCHED, PLAIN]
    plain = plain_blocks(messages)
    assert [block["type"] for block in plain[1]["content"]] == ["text", "text", "text", "tool_use"]
    assert plain[1]["content"][1]["text"] == '[web_search called with {"query": "mill"}]'
    assert "The mill" in plain[1]["content"][2]["text"]
    assert "E9" not in plain[1]["content"][2]["text"]
    assert (plain[0], plain[2]) == (messages[0], messages[2])
    AnthropicMessagesRequest.model_validate({"model": "m", "max_tokens": 1, "messages": plain})
    with pytest.raises(ValueError, match="server_tool_use"):
        AnthropicMessagesRequest.model_validate({"model": "m", "max_tokens": 1, "messages": messages})


@pytest.mark.parametrize("kind", ["web_search_tool_result", "server_tool_use"])
@pytest.mark.parametrize(("opened", "closed"), [("[", "]"), ('{"a":', "}")], ids=["arrays", "objects"])
def test_a_block_that_is_nested_too_deeply_is_refused(kind: str, opened: str, closed: str) -> None:
    """Its walk exhausted the stack, which was answered with 500. Arrays of 700 levels come through vLLM's parser."""

    def messages(depth: int) -> list[Any]:
        value = json.loads(opened * depth + "1" + closed * depth)
        field = "input" if kind.endswith("_use") else "content"
        return [{"role": "assistant", "content": [{"type": kind, "name": "n", field: value}]}]

    whole = plain_blocks(messages(MAX_JSON_DEPTH - 1))[0]["content"][0]["text"]
    assert whole.count(opened.strip(":")) >= MAX_JSON_DEPTH - 1
    for depth in (MAX_JSON_DEPTH, 300, 700):
        with pytest.raises(InvalidRequest, match=f"holds a {kind} that is nested deeper than 64 levels"):
            plain_blocks(messages(depth))


def test_what_is_not_the_vendors_is_the_very_object() -> None:
    for messages in ([PLAIN], "text", None, [{"role": "user", "content": [{"type": "hologram"}]}], [7]):
        assert plain_blocks(messages) is messages
    for tools in ([{"name": "read", "input_schema": {}}], None, "x", [{"type": "custom", "name": "a"}]):
        assert plain_tools(tools) == (tools, [])
        assert plain_tools(tools)[0] is tools


def test_tools_of_the_client_get_their_schema_and_those_of_the_server_are_left_out() -> None:
    own = {"name": "read", "input_schema": {"type": "object"}}
    asked = [
        {"type": "memory_20250818", "name": "memory"},
        {"type": "bash_20250124", "name": "bash"},
        {"type": "text_editor_20250728", "name": "str_replace_based_edit_tool", "max_characters": 5},
        {"type": "web_search_20250305", "name": "web_search", "max_uses": 5},
        own,
    ]
    kept, left_out = plain_tools(asked)
    assert [tool["name"] for tool in kept] == ["memory", "bash", "str_replace_based_edit_tool", "read"]
    assert left_out == ["web_search"]
    assert kept[-1] is own
    assert set(kept[0]["input_schema"]["properties"]["command"]["enum"]) >= {"view", "create", "delete", "rename"}
    AnthropicMessagesRequest.model_validate({"model": "m", "max_tokens": 1, "messages": [], "tools": kept})
