"""What a compaction block does to the messages it is sent back in: by example, and for every conversation."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from acmserve.context.anthropic.blocks import to_chat
from acmserve.context.anthropic.compaction_blocks import (
    check_compaction,
    compaction_block,
    has_compaction,
    resume,
    with_summary,
    without_compaction,
)
from acmserve.context.eviction.compact import HEAD
from acmserve.context.transcript.message import Message
from acmserve.context.transcript.plain_text import write_out
from acmserve.errors import InvalidRequest
from tests.support.server.block_story import Blocks, blocks_of, conversations

SUMMARY = "They looked for it ."
STANDS = {"type": "text", "text": f"{HEAD}\n{SUMMARY}"}


def text(words: str) -> dict[str, Any]:
    return {"type": "text", "text": words}


def answered(*blocks: dict[str, Any], summary: str | None = SUMMARY) -> dict[str, Any]:
    """An answer that begins with a compaction block."""
    return {"role": "assistant", "content": [compaction_block(summary), *blocks]}


def test_the_question_stays_behind_the_summary() -> None:
    story = Blocks().user("One ?").say("Yes .").user("Two ?")
    expected = [{"role": "user", "content": [STANDS, text("Two ?")]}]
    assert with_summary(story.messages, SUMMARY) == expected
    later = [*story.messages, answered(text("No .")), {"role": "user", "content": "Three ?"}]
    answer = {"role": "assistant", "content": [text("No .")]}
    assert resume(later) == [*expected, answer, {"role": "user", "content": "Three ?"}]


def test_results_stay_with_their_calls_and_the_last_words_of_the_user() -> None:
    story = (
        Blocks().user("Old ?").say("Yes .").user("Find it .").step(("read", "a")).step(("read", "b"), ("search", "c"))
    )
    shown = with_summary(story.messages, SUMMARY)
    assert shown == [{"role": "user", "content": [STANDS, text("Find it .")]}, *story.messages[-2:]]
    assert shown[1] is story.messages[-2]


def test_words_beside_results_stay_with_the_results() -> None:
    story = Blocks().user("Find it .").step(("read", "a")).step(("read", "b"), aside="Be quick .")
    assert with_summary(story.messages, SUMMARY)[1:] == story.messages[-2:]
    story.say("Here .").user("Thanks .")
    assert with_summary(story.messages, SUMMARY) == [{"role": "user", "content": [STANDS, text("Thanks .")]}]


def test_a_client_may_leave_out_what_stands_before_the_block() -> None:
    rest = [answered(text("No .")), {"role": "user", "content": "Three ?"}]
    assert resume(rest)[:2] == [{"role": "user", "content": [STANDS]}, {"role": "assistant", "content": [text("No .")]}]
    assert resume([answered(), {"role": "user", "content": "Three ?"}]) == [
        {"role": "user", "content": [STANDS, text("Three ?")]}
    ]


def test_behind_a_pause_the_users_turns_are_one() -> None:
    messages = [*Blocks().user("One ?").say("Yes .").user("Two ?").messages, answered()]
    assert resume(messages) == [{"role": "user", "content": [STANDS, text("Two ?")]}]
    more = [*messages, {"role": "user", "content": "Three ?"}]
    assert resume(more) == [{"role": "user", "content": [STANDS, text("Two ?"), text("Three ?")]}]


def test_the_last_block_with_content_counts() -> None:
    first = [
        *Blocks().user("One ?").messages,
        answered(text("Yes ."), summary="Old ."),
        *Blocks().user("Two ?").messages,
    ]
    messages = [
        *first,
        answered(text("No .")),
        *Blocks().user("Three ?").messages,
        answered(text("Hm ."), summary=None),
    ]
    assert resume(messages) == [
        {"role": "user", "content": [STANDS, text("Two ?")]},
        {"role": "assistant", "content": [text("No .")]},
        {"role": "user", "content": "Three ?"},
        {"role": "assistant", "content": [text("Hm .")]},
    ]


def test_changes_of_the_tools_stay() -> None:
    change = {"type": "tool_removal", "tool": {"type": "tool_reference", "name": "read"}}
    told = {"role": "system", "content": [text("From now on ."), change]}
    messages = [*Blocks().user("One ?").messages, told, *Blocks().say("Yes .").user("Two ?").messages]
    assert with_summary(messages, SUMMARY)[0] == {"role": "system", "content": [change]}


@pytest.mark.parametrize("content", ["", 7, [], {}, False])
def test_a_block_that_is_no_summary_is_refused(content: Any) -> None:
    messages = [
        *Blocks().user().messages,
        {"role": "assistant", "content": [{"type": "compaction", "content": content}]},
    ]
    with pytest.raises(InvalidRequest) as refused:
        check_compaction(messages)
    assert refused.value.field == "messages[1].content[0].content"
    check_compaction([answered(), answered(summary=None), {"role": "assistant", "content": [{"type": "compaction"}]}])


def test_the_summarizer_reads_who_says_and_calls_what() -> None:
    story = Blocks().user("Find it .").step(("read", "a page"), thinking="Hm .").say("Here .")
    story.messages.append({"role": "user", "content": [{"type": "image", "source": {}}, text("And this ?")]})
    assert write_out(to_chat(story.messages).messages).split("\n\n") == [
        "user: Find it .",
        'assistant calls read: {"query": "a b c"}',
        "result of read: a page",
        "assistant: Here .",
        "user: And this ?",
        "user: [an image]",
    ]


@given(conversations(), conversations(), st.integers(0, 3))
@settings(max_examples=150, deadline=None)
def test_the_prompt_behind_a_summary_begins_every_later_one(
    messages: list[Message], more: list[Message], num_failed: int
) -> None:
    shown = with_summary(messages, SUMMARY)
    said = {"role": "assistant", "content": [text("So .")]}
    failed = [compaction_block(None)] * num_failed
    later = [*messages, {**said, "content": [compaction_block(SUMMARY), *failed, *said["content"]]}, *more]
    assert json.dumps(resume(later)) == json.dumps([*shown, said, *more])
    assert not has_compaction(shown)


@given(conversations())
@settings(max_examples=150, deadline=None)
def test_no_question_is_lost_and_nobody_is_orphaned(messages: list[Message]) -> None:
    shown = with_summary(messages, SUMMARY)
    words = [word for message in shown for word in _words(message)]
    asked = [_words(message) for message in messages if message["role"] == "user" and _words(message)]
    assert set(asked[-1]) <= set(words)
    assert words[0] == STANDS["text"]
    uses: set[str] = set()
    for message in shown:
        assert {block["tool_use_id"] for block in blocks_of([message], "tool_result")} <= uses
        uses |= {block["id"] for block in blocks_of([message], "tool_use")}
    assert shown[0]["role"] == "user"
    assert shown[0]["content"][0] == STANDS


def _words(message: Message) -> list[str]:
    if isinstance(message["content"], str):
        return [message["content"]]
    return [block["text"] for block in message["content"] if block["type"] == "text"]


@given(conversations(), st.data())
@settings(max_examples=100, deadline=None)
def test_failed_blocks_stand_for_nothing(messages: list[Message], data: st.DataObject) -> None:
    sent: list[Any] = []
    for message in messages:
        failed = message["role"] == "assistant" and data.draw(st.booleans())
        sent.append({**message, "content": [compaction_block(None), *message["content"]]} if failed else message)
    assert resume(sent) == without_compaction(sent) == messages
    assert all(new is old for new, old in zip(resume(messages), messages, strict=True))


_scalars = st.none() | st.booleans() | st.integers() | st.text(max_size=5)
_blocks = st.fixed_dictionaries(
    {"type": st.sampled_from(["compaction", "text", "tool_result", "tool_addition", "tool_use"]) | _scalars},
    optional={"content": _scalars | st.lists(_scalars, max_size=2), "text": _scalars},
)
_messages = st.fixed_dictionaries(
    {"role": st.sampled_from(["user", "assistant", "system"]) | _scalars},
    optional={"content": _scalars | st.lists(_scalars | _blocks, max_size=4)},
)


@given(st.lists(_scalars | _messages, max_size=6))
@settings(max_examples=200, deadline=None)
def test_whatever_json_says_nothing_breaks(messages: list[Any]) -> None:
    assert not has_compaction(resume(messages))
    assert resume(resume(messages)) == resume(messages)
