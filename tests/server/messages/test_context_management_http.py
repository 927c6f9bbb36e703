"""The vendor's context editing against a real engine, with the vendor's own client as it comes."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from typing import Any

import anthropic
import pytest

from tests.support import http
from tests.support.routes.vendor_asks import total
from tests.support.server.block_story import PLACEHOLDER, Blocks, blocks_of
from tests.support.server.scripted_server import MODEL
from tests.support.server.scripts import log_lines, new_session, tool_call

BETA = "context-management-2025-06-27"
TOOL_USES = "clear_tool_uses_20250919"
THINKING = "clear_thinking_20251015"
TOOLS: list[Any] = [
    {"name": name, "description": "Looks it up.", "input_schema": {"type": "object", "properties": {"query": {}}}}
    for name in ("read", "search")
]
NUM_LINES = 20
TOLERANCE = 4


@pytest.fixture(scope="module")
def claude(scripted_server: str) -> Iterator[anthropic.Anthropic]:
    with anthropic.Anthropic(base_url=scripted_server, api_key="unused", max_retries=0) as client:
        yield client


def tool_uses(trigger: int, keep: int = 2, **more: Any) -> dict[str, Any]:
    """The edit with an input_tokens trigger."""
    measures = {"trigger": {"type": "input_tokens", "value": trigger}, "keep": {"type": "tool_uses", "value": keep}}
    return {"edits": [{"type": TOOL_USES, **measures, **more}]}


def extra_body(session: str | None, *script: str) -> dict[str, Any]:
    body: dict[str, Any] = {"vllm_xargs": {"script_id": uuid.uuid4().hex, "script": list(script) or ["Noted."]}}
    return body if session is None else body | {"session_id": session}


def ask(
    claude: anthropic.Anthropic, messages: list[Any], context_management: Any, session: str | None, *script: str
) -> Any:
    return claude.beta.messages.create(
        model=MODEL,
        max_tokens=200,
        messages=messages,
        tools=TOOLS,
        betas=[BETA],
        context_management=context_management,
        extra_body=extra_body(session, *script),
    )


def num_input(claude: anthropic.Anthropic, messages: list[Any], **more: Any) -> Any:
    return claude.beta.messages.count_tokens(model=MODEL, messages=messages, tools=TOOLS, betas=[BETA], **more)


def by_hand(messages: list[Any], num_cleared: int, *, only: str | None = None, inputs: bool = False) -> list[Any]:
    """The messages as a client would send them that puts the placeholders in itself."""
    names = {use["id"]: use["name"] for use in blocks_of(messages, "tool_use")}
    chosen = [call_id for call_id in names if only is None or names[call_id] == only][:num_cleared]
    edited: list[Any] = []
    for message in messages:
        if isinstance(message["content"], str):
            edited.append(message)
            continue
        blocks = [
            block
            | ({"content": PLACEHOLDER} if block.get("tool_use_id") in chosen else {})
            | ({"input": {}} if inputs and block.get("id") in chosen else {})
            for block in message["content"]
        ]
        edited.append(message | {"content": blocks})
    return edited


def investigation(num_uses: int) -> list[Any]:
    """A conversation with tool uses that have long results. Read and search take turns."""
    story = Blocks().user("What happened in the valley?")
    for number in range(num_uses):
        story.step(("search" if number % 2 else "read", log_lines(NUM_LINES, first=number * NUM_LINES)))
    return list(story.messages)


def test_a_conversation_with_tools_stays_below_its_trigger(claude: anthropic.Anthropic) -> None:
    """The client loops as clients do: it resends everything, and runs the tools that the model asks for."""
    session = new_session()
    messages: list[Any] = [{"role": "user", "content": "What happened in the valley?"}]
    answers: list[Any] = []
    for number in range(9):
        script = tool_call("read", query=f"page {number}") if number < 8 else "Nothing happened."
        answer = ask(claude, messages, tool_uses(1800), session, script)
        answers.append(answer)
        messages.append({"role": "assistant", "content": [block.model_dump() for block in answer.content]})
        uses = [block for block in answer.content if block.type == "tool_use"]
        if uses:
            result = log_lines(NUM_LINES, first=number * NUM_LINES)
            block = {"type": "tool_result", "tool_use_id": uses[0].id, "content": result}
            messages.append({"role": "user", "content": [block]})
    assert answers[-1].content[0].text == "Nothing happened."
    applied = [answer.context_management.applied_edits for answer in answers]
    num_cleared = [edits[0].cleared_tool_uses if edits else 0 for edits in applied]
    assert num_cleared == sorted(num_cleared)
    assert len(set(num_cleared)) >= 3
    assert all(total(answer.usage) <= 1800 + TOLERANCE * len(messages) for answer in answers)
    for number, answer in enumerate(answers):
        sent = messages[: 2 * number + 1]
        whole, shown = num_input(claude, sent), num_input(claude, by_hand(sent, num_cleared[number]))
        assert total(answer.usage) == shown.input_tokens
        told = applied[number][0].cleared_input_tokens if applied[number] else 0
        assert abs(whole.input_tokens - shown.input_tokens - told) <= TOLERANCE * num_cleared[number]
    for before, answer, last, now in zip(answers, answers[1:], num_cleared, num_cleared[1:], strict=False):
        receipt = answer.acm["receipt"]
        assert receipt["prompt_tokens"] == total(answer.usage)
        if last == now:
            assert receipt["kept_tokens"] >= total(before.usage) - 1


def test_exclude_tools_keeps_the_results_of_these_tools(claude: anthropic.Anthropic) -> None:
    messages = investigation(6)
    answer = ask(claude, messages, tool_uses(100, exclude_tools=["search"]), None)
    assert answer.context_management.applied_edits[0].cleared_tool_uses == 2
    expected = by_hand(messages, 2, only="read")
    assert total(answer.usage) == num_input(claude, expected).input_tokens


def test_clear_tool_inputs_empties_the_calls(claude: anthropic.Anthropic) -> None:
    messages = investigation(5)
    answer = ask(claude, messages, tool_uses(100, clear_tool_inputs=True), None)
    assert total(answer.usage) == num_input(claude, by_hand(messages, 3, inputs=True)).input_tokens


def test_clear_at_least_clears_enough_or_nothing(claude: anthropic.Anthropic) -> None:
    messages = investigation(5)
    free = ask(claude, messages, tool_uses(100), None)
    num_cleared = free.context_management.applied_edits[0].cleared_input_tokens
    for least, expected in ((num_cleared, 3), (num_cleared + 1, 0)):
        asked = tool_uses(100, clear_at_least={"type": "input_tokens", "value": least})
        answer = ask(claude, messages, asked, None)
        edits = answer.context_management.applied_edits
        assert sum(edit.cleared_tool_uses for edit in edits) == expected
        assert total(answer.usage) == num_input(claude, by_hand(messages, expected)).input_tokens


def test_the_trigger_is_about_the_whole_prompt(claude: anthropic.Anthropic) -> None:
    messages = investigation(4)
    num_tokens = num_input(claude, messages).input_tokens
    for trigger, expected in ((num_tokens + 4 * TOLERANCE, 0), (num_tokens - 4 * TOLERANCE, 2)):
        answer = ask(claude, messages, tool_uses(trigger), None)
        assert sum(edit.cleared_tool_uses for edit in answer.context_management.applied_edits) == expected
    by_uses: dict[str, Any] = {"edits": [{"type": TOOL_USES, "trigger": {"type": "tool_uses", "value": 3}}]}
    assert ask(claude, messages, by_uses, None).context_management.applied_edits[0].cleared_tool_uses == 1
    assert ask(claude, messages, {"edits": [{"type": TOOL_USES}]}, None).context_management.applied_edits == []


def test_thinking_blocks_are_cleared_and_counted(claude: anthropic.Anthropic) -> None:
    story = Blocks().user().say("One.", thinking="First this.").user().say("Two.", thinking="Then that.").user()
    answer = ask(claude, list(story.messages), {"edits": [{"type": THINKING}]}, None)
    (applied,) = answer.context_management.applied_edits
    assert (applied.type, applied.cleared_thinking_turns) == (THINKING, 1)
    kept = ask(claude, list(story.messages), {"edits": [{"type": THINKING, "keep": "all"}]}, None)
    assert kept.context_management.applied_edits == []


def test_a_stream_ends_with_what_was_cleared_and_the_receipt(claude: anthropic.Anthropic) -> None:
    session = new_session()
    with claude.beta.messages.stream(
        model=MODEL,
        max_tokens=50,
        messages=investigation(5),
        tools=TOOLS,
        betas=[BETA],
        context_management=tool_uses(100),  # type: ignore[arg-type]
        extra_body=extra_body(session),
    ) as stream:
        ends = [event for event in stream if event.type == "message_delta"]
        answer = stream.get_final_message()
    assert answer.content[0].text == "Noted."  # type: ignore[union-attr]
    assert answer.context_management is not None
    assert answer.context_management.applied_edits[0].cleared_tool_uses == 3  # type: ignore[union-attr]
    assert len(ends) == 1
    assert ends[0].model_extra is not None
    assert ends[0].model_extra["acm"]["session_id"] == session


def test_count_tokens_tells_both_counts(claude: anthropic.Anthropic) -> None:
    messages = investigation(5)
    counted = num_input(claude, messages, context_management=tool_uses(100))
    assert counted.input_tokens == num_input(claude, by_hand(messages, 3)).input_tokens
    assert counted.context_management.original_input_tokens == num_input(claude, messages).input_tokens


@pytest.mark.parametrize(
    ("context_management", "named"),
    [
        (tool_uses(0), "context_management.edits[0].trigger.value"),
        ({"edits": [{"type": TOOL_USES, "keep": 3}]}, "context_management.edits[0].keep"),
        ({"edits": [{"type": "clear_everything"}]}, "clear_everything"),
        ({"edits": [{"type": "compact_20260112", "trigger": 50_000}]}, "context_management.edits[0].trigger"),
    ],
)
def test_bad_values_come_in_the_vendors_shape(claude: anthropic.Anthropic, context_management: Any, named: str) -> None:
    with pytest.raises(anthropic.BadRequestError) as refused:
        ask(claude, investigation(1), context_management, None)
    body: Any = refused.value.body
    assert body["type"] == "error"
    assert body["error"]["type"] == "invalid_request_error"
    assert named in body["error"]["message"]


def test_chat_completions_take_the_same_object(scripted_server: str) -> None:
    messages: list[Any] = [{"role": "user", "content": "What happened?"}]
    for number in range(5):
        call = {"id": f"c{number}", "type": "function", "function": {"name": "read", "arguments": '{"query": "x"}'}}
        messages.append({"role": "assistant", "content": "", "tool_calls": [call]})
        messages.append({"role": "tool", "tool_call_id": f"c{number}", "content": log_lines(NUM_LINES)})
    asked = {"model": MODEL, "messages": messages, "max_tokens": 20, "context_management": tool_uses(100)}
    answer = http.post(f"{scripted_server}/v1/chat/completions", json=asked).json()
    assert answer["context_management"]["applied_edits"][0]["cleared_tool_uses"] == 3
    plain = http.post(f"{scripted_server}/v1/chat/completions", json=asked | {"context_management": None}).json()
    told = answer["context_management"]["applied_edits"][0]["cleared_input_tokens"]
    assert abs(plain["usage"]["prompt_tokens"] - answer["usage"]["prompt_tokens"] - told) <= 3 * TOLERANCE


def test_a_chat_session_keeps_the_edited_prefix(scripted_server: str) -> None:
    messages: list[Any] = [{"role": "user", "content": "What happened?"}]
    for number in range(5):
        call = {"id": f"c{number}", "type": "function", "function": {"name": "read", "arguments": '{"query": "x"}'}}
        messages.append({"role": "assistant", "content": "", "tool_calls": [call]})
        messages.append({"role": "tool", "tool_call_id": f"c{number}", "content": log_lines(NUM_LINES)})
    asked = {"model": MODEL, "messages": messages, "max_tokens": 20, "session_id": new_session()}
    answers = []
    for trigger in (100, 100_000):
        body = asked | {"context_management": tool_uses(trigger)}
        answers.append(http.post(f"{scripted_server}/v1/chat/completions", json=body).json())
        messages += [answers[-1]["choices"][0]["message"], {"role": "user", "content": "And then?"}]
    first, second = answers
    assert first["context_management"]["applied_edits"] == second["context_management"]["applied_edits"]
    assert second["acm"]["receipt"]["kept_tokens"] >= first["usage"]["prompt_tokens"] - 1
