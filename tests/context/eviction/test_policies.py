"""The policies without episodes: the vendor's parameters one by one, and recency."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from acmserve.context.episodes.view import ConversationView
from acmserve.context.eviction.clear_thinking import count_cleared, plan_clear_thinking
from acmserve.context.eviction.clear_tool_uses import ClearToolUses, plan_clear_tool_uses
from acmserve.context.eviction.oldest_first.recency import Recency
from acmserve.context.eviction.plan import EvictionPlan, Level
from acmserve.context.transcript.message import Message
from acmserve.context.transcript.omissions import EMPTY, PLACEHOLDER, Omissions, render_without
from acmserve.context.transcript.outline import Outline
from tests.support.context.annotated import Story, histories, token_counts_of
from tests.support.context.valid_chat import check_valid, weigh

ALWAYS = ClearToolUses(trigger_tokens=None)


def reads(num: int = 6) -> Story:
    story = Story()
    for number in range(num):
        story.step(("grep" if number % 2 else "read", f"{'w ' * 20}{number}"))
    return story


def seen(messages: list[Message], omissions: Omissions = EMPTY) -> ConversationView:
    return ConversationView(Outline(messages), token_counts_of(messages), omissions)


def clear(story: Story, options: ClearToolUses, omissions: Omissions = EMPTY) -> EvictionPlan:
    return plan_clear_tool_uses(seen(story.messages, omissions), options)


def cleared(story: Story, omissions: Omissions) -> list[int]:
    rendered = render_without(story.messages, omissions)
    results = [message for message in rendered if message["role"] == "tool"]
    return [index for index, message in enumerate(results) if message["content"] == PLACEHOLDER]


def test_it_keeps_the_last_three_by_default() -> None:
    plan = clear(reads(), ALWAYS)
    assert cleared(reads(), plan.omissions) == [0, 1, 2]
    assert plan.cleared_tool_uses == 3
    assert plan.cleared_input_tokens == 3 * 18
    assert [step.level for step in plan.steps] == [Level.CLEAR] * 3
    assert plan.first_entry == 2


@pytest.mark.parametrize(("keep", "expected"), [(0, 6), (1, 5), (6, 0), (9, 0)])
def test_keep(keep: int, expected: int) -> None:
    assert clear(reads(), replace(ALWAYS, keep=keep)).cleared_tool_uses == expected


def test_trigger() -> None:
    story = reads()
    num_tokens = token_counts_of(story.messages).num_tokens
    assert not clear(story, ClearToolUses()).changes
    assert not clear(story, ClearToolUses(trigger_tokens=num_tokens)).changes
    assert clear(story, ClearToolUses(trigger_tokens=num_tokens - 1)).changes
    by_uses = ClearToolUses(trigger_tokens=None, trigger_uses=6)
    assert not clear(story, by_uses).changes
    assert clear(story, replace(by_uses, trigger_uses=5)).changes


def test_exclude_tools_are_kept_and_count_among_the_kept() -> None:
    plan = clear(reads(), replace(ALWAYS, exclude_tools=frozenset({"grep"})))
    assert cleared(reads(), plan.omissions) == [0, 2]


def test_clear_at_least_is_all_or_nothing() -> None:
    plan = clear(reads(), replace(ALWAYS, clear_at_least=54))
    assert plan.cleared_input_tokens == 54
    nothing = clear(reads(), replace(ALWAYS, clear_at_least=55))
    assert (nothing.changes, nothing.omissions, nothing.num_after) == (False, EMPTY, nothing.num_before)


@pytest.mark.parametrize(
    ("inputs", "expected"), [(False, 0), (True, 3), (frozenset({"read"}), 2), (frozenset({"edit"}), 0)]
)
def test_clear_tool_inputs(inputs: bool | frozenset[str], expected: int) -> None:
    story = reads()
    rendered = render_without(story.messages, clear(story, replace(ALWAYS, clear_tool_inputs=inputs)).omissions)
    calls = [call for message in rendered for call in message.get("tool_calls", ())]
    assert sum(call["function"]["arguments"] == "{}" for call in calls) == expected


def test_after_a_clearing_it_grows_until_the_trigger_is_reached_again() -> None:
    story = reads()
    options = ClearToolUses(trigger_tokens=token_counts_of(story.messages).num_tokens - 1)
    omissions = clear(story, options).omissions
    story.step(("read", "w " * 20))
    again = clear(story, options, omissions)
    assert not again.changes
    assert again.omissions is omissions
    story.step(("read", "w " * 40))
    later = clear(story, options, omissions)
    assert later.cleared_tool_uses == 2
    assert cleared(story, later.omissions) == [0, 1, 2, 3, 4]
    total = count_cleared(seen(story.messages, later.omissions))
    assert total.tool_uses == 5
    assert total.input_tokens == 5 * 18


def test_clear_thinking_keeps_the_last_turns_of_the_assistant() -> None:
    story = Story().say("a", "t t").user().step(("read", "x"), reasoning="t t").say("b", "t").user().say("c").user()
    story.say("d", "t t t")
    view = seen(story.messages)
    plan = plan_clear_thinking(view, keep=1)
    rendered = render_without(story.messages, plan.omissions)
    left = [message for message in rendered if message.get("reasoning") or message.get("reasoning_content")]
    assert left == [story.messages[-1]]
    assert plan.cleared_thinking_turns == 2
    assert plan.cleared_input_tokens == 5
    assert plan_clear_thinking(view, keep=2).cleared_thinking_turns == 1
    assert not plan_clear_thinking(view, keep=None).changes
    assert not plan_clear_thinking(view.with_omissions(plan.omissions), keep=1).changes
    assert count_cleared(view.with_omissions(plan.omissions)).thinking_turns == 2


def test_recency_drops_whole_steps_from_the_front() -> None:
    story = reads().user().say("Done .")
    view = seen(story.messages)
    plan = Recency().plan(view, view.token_counts.num_tokens - 50)
    assert render_without(story.messages, plan.omissions) == [*story.messages[:2], *story.messages[6:]]
    everything = Recency().plan(view, 0)
    assert render_without(story.messages, everything.omissions) == [*story.messages[:2], *story.messages[-2:]]
    assert everything.unmet is not None
    assert sum(item.num_tokens for item in everything.unmet.protected) == everything.num_after
    assert everything.omissions.gone == ((2, 14),)


@given(histories(), st.data())
@settings(max_examples=80, deadline=None)
def test_every_policy_leaves_a_valid_conversation_that_weighs_what_it_says(
    messages: list[Message], data: st.DataObject
) -> None:
    view, omissions = seen(messages), EMPTY
    for _ in range(3):
        kind = data.draw(st.sampled_from(["clear", "thinking", "recency"]))
        number = data.draw(st.integers(0, 4))
        if kind == "clear":
            options = ClearToolUses(None, keep=number, clear_tool_inputs=data.draw(st.booleans()))
            plan = plan_clear_tool_uses(view.with_omissions(omissions), options)
        elif kind == "thinking":
            plan = plan_clear_thinking(view.with_omissions(omissions), number)
        else:
            plan = Recency().plan(
                view.with_omissions(omissions), data.draw(st.integers(0, view.token_counts.num_tokens))
            )
            assert (plan.unmet is not None) == (plan.num_after > plan.target)
        rendered = render_without(messages, plan.omissions)
        check_valid(messages, rendered)
        assert plan.num_after == weigh(rendered)
        assert plan.num_before == weigh(render_without(messages, omissions))
        omissions = plan.omissions
        omissions.check_integrity()
