"""The vendor's edits on Anthropic blocks: each parameter by example, and what must hold for every conversation."""

from __future__ import annotations

import json
from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from acmserve.context.anthropic.blocks import edit_blocks
from acmserve.context.eviction.clear_thinking import ClearThinking
from acmserve.context.eviction.clear_tool_uses import ClearToolUses
from acmserve.context.eviction.clearing_edits import Memory, VendorEdit, Weights, edit_chat
from acmserve.context.transcript.message import Message
from tests.support.context.annotated import Story
from tests.support.server.block_story import TOOLS, Blocks, blocks_of, cleared_ids, conversations, count

WORDS = Weights(count)
ALWAYS = ClearToolUses(trigger_tokens=None)

edits_lists = st.builds(
    lambda keep, tokens, uses, least, excluded, inputs, thinking: [
        *([] if thinking is None else [ClearThinking(thinking)]),
        ClearToolUses(tokens, uses, keep, least, frozenset(excluded), inputs),
    ],
    st.integers(0, 4),
    st.one_of(st.none(), st.integers(1, 200)),
    st.one_of(st.none(), st.integers(1, 6)),
    st.sampled_from([0, 0, 5, 30]),
    st.sets(st.sampled_from(TOOLS), max_size=2),
    st.booleans(),
    st.one_of(st.none(), st.integers(1, 3)),
)


def edit(messages: Sequence[Message], *edits: VendorEdit, memory: Memory | None = None) -> list[Message]:
    return edit_blocks(messages, edits, WORDS, memory)[0]


def reads(num: int = 6) -> Blocks:
    story = Blocks().user("Find it .")
    for number in range(num):
        story.step(("search" if number % 2 else "read", f"{'w ' * 20}{number}"), thinking=f"step {number}")
    return story


def test_the_oldest_results_become_a_placeholder_and_everything_else_stays() -> None:
    messages = reads().messages
    shown, edited = edit_blocks(messages, [ALWAYS], WORDS)
    assert cleared_ids(shown) == ["toolu_1", "toolu_2", "toolu_3"]
    assert edited.applied == [
        {"type": "clear_tool_uses_20250919", "cleared_tool_uses": 3, "cleared_input_tokens": 3 * 18}
    ]
    assert [m for m in shown if m["role"] == "assistant"] == [m for m in messages if m["role"] == "assistant"]
    assert all(new is old for new, old in zip(shown[7:], messages[7:], strict=True))


def test_below_the_trigger_nothing_happens() -> None:
    messages = reads().messages
    shown, edited = edit_blocks(messages, [ClearToolUses()], WORDS)
    assert all(new is old for new, old in zip(shown, messages, strict=True))
    assert edited.applied == []


def test_the_base_counts_for_the_trigger() -> None:
    assert edit_blocks(reads().messages, [ClearToolUses()], Weights(count, base_tokens=100_000))[1].applied


def test_clear_tool_inputs_empties_the_calls_of_cleared_results() -> None:
    shown = edit(reads().messages, ClearToolUses(None, clear_tool_inputs=frozenset({"read"})))
    assert [use["input"] == {} for use in blocks_of(shown, "tool_use")] == [True, False, True, False, False, False]


def test_thinking_of_all_but_the_last_turns_goes() -> None:
    story = Blocks().user().say("One .", "a a").user().step(("read", "x"), thinking="b b").say("Two .", "c").user()
    shown, edited = edit_blocks(story.messages, [ClearThinking()], WORDS)
    assert [block["thinking"] for block in blocks_of(shown, "thinking")] == ["b b", "c"]
    assert edited.applied == [
        {"type": "clear_thinking_20251015", "cleared_thinking_turns": 1, "cleared_input_tokens": 2}
    ]
    assert edit(story.messages, ClearThinking(None)) == story.messages


def test_a_message_that_only_thought_is_left_out_with_its_thought() -> None:
    messages = Blocks().user().messages
    messages.append({"role": "assistant", "content": [{"type": "thinking", "thinking": "hm", "signature": "s"}]})
    messages.append({"role": "user", "content": "And?"})
    messages.append({"role": "assistant", "content": [{"type": "thinking", "thinking": "so", "signature": "s"}]})
    assert edit(messages, ClearThinking()) == [messages[0], *messages[2:]]


def test_both_edits_count_their_own_tokens() -> None:
    messages = reads().user().say("Done .", "yes").messages
    applied = edit_blocks(messages, [ClearThinking(), ALWAYS], WORDS)[1].applied
    assert [(edit["type"], edit["cleared_input_tokens"]) for edit in applied] == [
        ("clear_thinking_20251015", 6 * 2),
        ("clear_tool_uses_20250919", 3 * 18),
    ]


@pytest.mark.parametrize("diverges_at", [2, 5, 13])
def test_a_rewound_history_keeps_what_was_cleared_before_the_divergence(diverges_at: int) -> None:
    messages = reads().messages
    memory = edit_blocks(messages, [ALWAYS], WORDS)[1].memory
    changed = [*messages[:diverges_at], {"role": "user", "content": "No , otherwise ."}]
    shown = edit(changed, ClearToolUses(), memory=memory)
    expected = {2: [], 5: ["toolu_1"], 13: ["toolu_1", "toolu_2", "toolu_3"]}[diverges_at]
    assert cleared_ids(shown) == expected


def test_what_clients_change_between_turns_does_not_break_the_memory() -> None:
    """They move cache marks, and leave out thinking of earlier turns."""
    story = reads()
    memory = edit_blocks(story.messages, [ALWAYS], WORDS)[1].memory
    again = json.loads(json.dumps(story.messages))
    mark = {"cache_control": {"type": "ephemeral"}}
    again[0]["content"] = [{"type": "text", "text": again[0]["content"]} | mark]
    again[-1]["content"][-1] |= mark
    again[1]["content"] = [block for block in again[1]["content"] if block["type"] != "thinking"]
    assert cleared_ids(edit(again, ClearToolUses(), memory=memory)) == ["toolu_1", "toolu_2", "toolu_3"]


def test_chat_messages_are_edited_alike() -> None:
    story = Story()
    for number in range(5):
        story.step(("read", f"{'w ' * 20}{number}"))
    shown, edited = edit_chat(story.messages, [ALWAYS], WORDS)
    results = [message["content"] for message in shown if message["role"] == "tool"]
    assert [result == "[tool result cleared]" for result in results] == [True, True, False, False, False]
    assert edited.applied[0]["cleared_tool_uses"] == 2
    again, _ = edit_chat([*story.messages, {"role": "user", "content": "?"}], [ClearToolUses()], WORDS, edited.memory)
    assert again[: len(shown)] == shown


@given(conversations(), edits_lists)
@settings(max_examples=150, deadline=None)
def test_calls_and_results_stay_in_place_and_nobody_is_orphaned(
    messages: list[Message], edits: list[VendorEdit]
) -> None:
    shown = edit(messages, *edits)
    assert [(b["type"], b.get("id"), b.get("tool_use_id")) for b in blocks_of(shown, "tool_use", "tool_result")] == [
        (b["type"], b.get("id"), b.get("tool_use_id")) for b in blocks_of(messages, "tool_use", "tool_result")
    ]
    texts, kept = blocks_of(messages, "text"), blocks_of(shown, "text")
    assert all(new is old for new, old in zip(kept, texts, strict=True))
    assert all(message["content"] for message in shown)


@given(conversations(), edits_lists)
@settings(max_examples=150, deadline=None)
def test_keep_exclude_tools_and_clear_at_least_are_respected(messages: list[Message], edits: list[VendorEdit]) -> None:
    shown, edited = edit_blocks(messages, edits, WORDS)
    options = edits[-1]
    assert isinstance(options, ClearToolUses)
    names = {use["id"]: use["name"] for use in blocks_of(messages, "tool_use")}
    order = [block["tool_use_id"] for block in blocks_of(messages, "tool_result")]
    cleared = cleared_ids(shown)
    assert not {names[call_id] for call_id in cleared} & options.exclude_tools
    assert not set(cleared) & set(order[max(0, len(order) - options.keep) :])
    applied = {edit["type"]: edit for edit in edited.applied}.get("clear_tool_uses_20250919")
    assert (applied or {"cleared_tool_uses": 0})["cleared_tool_uses"] == len(cleared)
    if cleared and options.clear_at_least:
        assert applied is not None
        assert applied["cleared_input_tokens"] >= options.clear_at_least
    emptied = {use["id"] for use in blocks_of(shown, "tool_use") if use["input"] == {}}
    assert emptied == (set(cleared) if options.clear_tool_inputs else set())


@given(conversations(), edits_lists)
@settings(max_examples=100, deadline=None)
def test_turn_by_turn_the_same_memory_gives_the_same_bytes_and_only_adds(
    messages: list[Message], edits: list[VendorEdit]
) -> None:
    memory: Memory | None = None
    before: list[str] = []
    num_thoughts = 0
    for end in range(1, len(messages) + 1):
        shown, edited = edit_blocks(messages[:end], edits, WORDS, memory)
        assert json.dumps(shown) == json.dumps(edit(messages[:end], *edits, memory=memory))
        assert json.dumps(shown) == json.dumps(edit(messages[:end], *edits, memory=edited.memory))
        cleared = cleared_ids(shown)
        assert set(before) <= set(cleared)
        lost = len(blocks_of(messages[:end], "thinking")) - len(blocks_of(shown, "thinking"))
        assert lost >= num_thoughts
        memory, before, num_thoughts = edited.memory, cleared, lost


@given(conversations(), st.integers(0, 4), st.booleans())
@settings(max_examples=100, deadline=None)
def test_editing_what_was_edited_changes_nothing(messages: list[Message], keep: int, inputs: bool) -> None:
    edits = [ClearThinking(), ClearToolUses(None, keep=keep, clear_tool_inputs=inputs)]
    once = edit(messages, *edits)
    assert edit(once, *edits) == once
