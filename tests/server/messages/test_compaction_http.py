"""The vendor's compaction against a real engine, with the vendor's own client as it comes."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from typing import Any

import anthropic
import pytest

from acmserve.server.options.compaction_content import session_in
from tests.support.routes.vendor_asks import total
from tests.support.server.block_story import Blocks
from tests.support.server.scripted_server import MODEL
from tests.support.server.scripts import log_lines, new_session, tool_call

BETA = "compact-2026-01-12"
TRIGGER = 1500
MOST_OLD = 200
TOOLS: list[Any] = [
    {"name": "read", "description": "Looks it up.", "input_schema": {"type": "object", "properties": {}}}
]


@pytest.fixture(scope="module")
def claude(scripted_server: str) -> Iterator[anthropic.Anthropic]:
    with anthropic.Anthropic(base_url=scripted_server, api_key="unused", max_retries=0) as client:
        yield client


def compact(trigger: int = TRIGGER, **more: Any) -> Any:
    return {"edits": [{"type": "compact_20260112", "trigger": {"type": "input_tokens", "value": trigger}, **more}]}


def request(messages: list[Any], session: str | None, script: str = "Noted it.", **more: Any) -> dict[str, Any]:
    extra: dict[str, Any] = {"vllm_xargs": {"script_id": uuid.uuid4().hex, "script": [script]}}
    extra |= {} if session is None else {"session_id": session}
    asked = {"model": MODEL, "max_tokens": 60, "messages": messages, "betas": [BETA], "extra_body": extra}
    return asked | {"context_management": compact()} | more


def ask(claude: anthropic.Anthropic, messages: list[Any], session: str | None, **more: Any) -> Any:
    return claude.beta.messages.create(**request(messages, session, **more))


def resent(answer: Any) -> dict[str, Any]:
    """The answer as the vendor's examples append it."""
    return {"role": "assistant", "content": answer.content}


def num_input(claude: anthropic.Anthropic, messages: list[Any], **more: Any) -> Any:
    return claude.beta.messages.count_tokens(model=MODEL, messages=messages, betas=[BETA], **more)


def long_talk(num_turns: int = 5) -> list[Any]:
    story = Blocks()
    for number in range(num_turns):
        story.user(log_lines(16, first=16 * number)).say("Read.")
    return [*story.user("What happened?").messages]


def test_a_conversation_stays_below_its_trigger_on_a_prefix_that_is_kept(claude: anthropic.Anthropic) -> None:
    """The client only appends what it gets. What stands before the last block is not in the prompt any more."""
    session = new_session()
    messages: list[Any] = []
    answers: list[Any] = []
    for number in range(14):
        messages.append({"role": "user", "content": log_lines(16, first=16 * number)})
        answers.append(ask(claude, messages, session, script=f"Read {number}."))
        messages.append(resent(answers[-1]))
    kinds = [[block.type for block in answer.content] for answer in answers]
    assert kinds.count(["compaction", "text"]) >= 2
    assert kinds.count(["text"]) + kinds.count(["compaction", "text"]) == 14
    assert [answer.content[-1].text for answer in answers] == [f"Read {number}." for number in range(14)]
    assert all(total(answer.usage) <= TRIGGER for answer in answers)
    for number, (before, answer, kind) in enumerate(zip(answers, answers[1:], kinds[1:], strict=False), 1):
        receipt = answer.acm["receipt"]
        assert receipt["prompt_tokens"] == total(answer.usage)
        if kind == ["text"]:
            assert receipt["kept_tokens"] >= total(before.usage) - 1
            assert answer.usage.iterations is None
        else:
            assert total(answer.usage) < total(before.usage)
            summary, message = answer.usage.iterations
            assert (summary.type, message.type) == ("compaction", "message")
            assert total(summary) > TRIGGER // 2
            num_new = num_input(claude, [{"role": "user", "content": log_lines(16, first=16 * number)}]).input_tokens
            num_computed = total(summary) - summary.cache_read_input_tokens
            assert num_computed - num_new <= MOST_OLD
            assert total(message) == total(answer.usage)


def test_a_tool_call_that_waits_for_its_result_survives(claude: anthropic.Anthropic) -> None:
    messages: list[Any] = [{"role": "user", "content": "Read both pages."}]
    for number, script in enumerate([tool_call("read", page=1), tool_call("read", page=2), "The mill burned."]):
        answer = ask(claude, messages, None, script=script, tools=TOOLS)
        messages.append(resent(answer))
        if answer.stop_reason == "tool_use":
            result = log_lines(40, first=40 * number)
            block = {"type": "tool_result", "tool_use_id": answer.content[-1].id, "content": result}
            messages.append({"role": "user", "content": [block]})
    assert [block.type for block in answer.content] == ["compaction", "text"]
    assert answer.content[1].text == "The mill burned."
    kept = [{"role": "user", "content": [{"type": "text", "text": "Read both pages."}]}, *messages[3:5]]
    num_kept = num_input(claude, kept, tools=TOOLS).input_tokens
    assert num_kept < total(answer.usage) < num_kept + 40


def test_a_pause_hands_the_block_to_the_client_first(claude: anthropic.Anthropic) -> None:
    messages = long_talk()
    asked = compact(pause_after_compaction=True, instructions="Only names.")
    paused = ask(claude, messages, new_session(), context_management=asked)
    assert paused.stop_reason == "compaction"
    assert [block.type for block in paused.content] == ["compaction"]
    assert paused.usage.output_tokens == 0
    answer = ask(claude, [*messages, resent(paused)], None, context_management=asked)
    assert [block.type for block in answer.content] == ["text"]
    assert total(answer.usage) < 100


@pytest.mark.parametrize("pause", [False, True])
def test_a_stream_begins_with_the_block(claude: anthropic.Anthropic, pause: bool) -> None:
    session, asked = new_session(), compact(pause_after_compaction=pause)
    with claude.beta.messages.stream(**request(long_talk(), session, context_management=asked)) as stream:
        events = list(stream)
        answer: Any = stream.get_final_message()
    assert [event.index for event in events if event.type == "content_block_start"] == list(range(len(answer.content)))
    whole = [event for event in events if event.type == "compaction"]
    assert [event.content for event in whole] == [answer.content[0].content]
    assert answer.content[0].content
    assert session_in({"messages": [{"role": "assistant", "content": [answer.content[0].to_dict()]}]}) == session
    kinds, reason = (["compaction"], "compaction") if pause else (["compaction", "text"], "end_turn")
    assert ([block.type for block in answer.content], answer.stop_reason) == (kinds, reason)
    assert [iteration.type for iteration in answer.usage.iterations] == kinds[:1] + ["message"] * (not pause)
    assert answer.context_management.applied_edits == []
    if not pause:
        assert answer.content[1].text == "Noted it."
        (end,) = [event for event in events if event.type == "message_delta"]
        assert end.model_extra["acm"]["session_id"] == session  # type: ignore[index]


def test_count_tokens_counts_what_the_block_leaves(claude: anthropic.Anthropic) -> None:
    messages = long_talk()
    answer = ask(claude, messages, None)
    later = [*messages, resent(answer), {"role": "user", "content": "And then?"}]
    counted = num_input(claude, later, context_management=compact(1))
    assert counted.input_tokens == total(ask(claude, later, None).usage)
    assert counted.context_management.original_input_tokens > TRIGGER
    assert num_input(claude, messages, context_management=compact(1)).input_tokens > TRIGGER


def test_where_no_summary_can_help_the_block_is_empty_and_the_answer_comes(claude: anthropic.Anthropic) -> None:
    messages: list[Any] = [{"role": "user", "content": log_lines(80)}]
    answer = ask(claude, messages, None)
    assert [block.type for block in answer.content] == ["compaction", "text"]
    assert answer.content[0].content is None
    assert total(answer.usage) == num_input(claude, messages).input_tokens > TRIGGER
    later = [*messages, resent(answer), {"role": "user", "content": "And then?"}]
    assert ask(claude, later, None).content[0].content
