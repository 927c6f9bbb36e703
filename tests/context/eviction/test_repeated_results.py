"""A client that sends two results for one call: whichever policy takes the call takes both, and counts both."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from acmserve.context.episodes.graph import EpisodeGraph
from acmserve.context.episodes.view import ConversationView
from acmserve.context.eviction import registry
from acmserve.context.eviction.compact import plan_compaction, summary_plan
from acmserve.context.eviction.oldest_first.recency import Recency
from acmserve.context.eviction.plan import EvictionPlan
from acmserve.context.session.carrying import late_results
from acmserve.context.session.going_on import END, go_on
from acmserve.context.session.history import adopt
from acmserve.context.session.render import render
from acmserve.context.session.state import SessionState
from acmserve.context.transcript.message import Message
from acmserve.context.transcript.omissions import PLACEHOLDER, render_without
from acmserve.context.transcript.parts import Role, role_of
from tests.context.eviction.test_context_meter import MEASURED, budget, new_meter, state_of
from tests.support.context.annotated import Story, histories, token_counts_of
from tests.support.context.valid_chat import weigh

POLICIES = [name for name, policy in registry.POLICIES.items() if not policy.needs_model]


def seen(messages: list[Message]) -> ConversationView:
    graph = EpisodeGraph(messages)
    graph.check_integrity()
    return ConversationView(graph.outline, token_counts_of(messages), episodes=graph)


def summarized(view: ConversationView, messages: list[Message], target: int) -> EvictionPlan | None:
    compaction = plan_compaction(view, messages, target, 2)
    return None if compaction is None else summary_plan(compaction, view, "All found .")


def check(messages: list[Message], plan: EvictionPlan) -> list[Message]:
    """Each call that is shown has all its results, each result that is shown has its call, and the count is right."""
    plan.omissions.check_integrity()
    shown = render_without(messages, plan.omissions)
    calls = {call["id"] for message in shown for call in message.get("tool_calls", ())}
    sent = [message["tool_call_id"] for message in messages if message["role"] == "tool"]
    results = [message["tool_call_id"] for message in shown if message["role"] == "tool"]
    assert results == [name for name in sent if name in calls]
    assert plan.num_after == weigh(shown)
    return shown


def again(message: Message) -> dict[str, Any]:
    return {**message, "content": "once more : w w w"}


@given(histories(), st.data())
@settings(max_examples=150, deadline=None)
def test_no_policy_leaves_a_result_whose_call_is_gone(messages: list[Message], data: st.DataObject) -> None:
    answered = [message for message in messages if message["role"] == "tool"]
    for message in data.draw(st.lists(st.sampled_from(answered), max_size=4)) if answered else ():
        first = next(n for n, other in enumerate(messages) if other is message)
        messages.insert(data.draw(st.integers(first + 1, len(messages))), again(message))
    view = seen(messages)
    target = data.draw(st.integers(0, view.shown_tokens()))
    for name in POLICIES:
        check(messages, registry.find(name)().plan(view, target))
    plan = summarized(view, messages, target)
    if plan is not None:
        check(messages, plan)


def repeated() -> list[Message]:
    """Three steps, the results of the first two twice: right behind each other, and behind the next step."""
    story = Story().step(("grep", "g " * 9), ("read", "r " * 9)).step(("bash", "b " * 9)).step(("bash", "b " * 9))
    messages = story.messages
    messages.insert(7, again(messages[6]))
    messages.insert(8, again(messages[3]))
    messages.insert(4, again(messages[3]))
    return messages


@pytest.mark.parametrize("name", POLICIES)
def test_a_plan_that_stops_between_them_leaves_none_of_them(name: str) -> None:
    """Each target that there is, with episodes and without."""
    story = Story().expl("find", ("grep", "g " * 9), ("read", "r " * 9)).act("fix", "find", results=(("edit", "e"),))
    marked = story.user().step(("bash", "b"), ("bash", "b")).messages
    for number in range(len(marked) - 4, 3, -1):
        if marked[number]["role"] == "tool":
            marked.insert(number + 2, again(marked[number]))
    for messages in (repeated(), marked):
        view = seen(messages)
        for target in range(0, view.shown_tokens(), 3):
            check(messages, registry.find(name)().plan(view, target))


@pytest.mark.parametrize("name", ["chain", "cwl", "pi-cwl", "recency"])
def test_both_results_leave_with_their_step(name: str) -> None:
    messages = repeated()
    plan = registry.find(name)().plan(seen(messages), 0)
    assert check(messages, plan) == [*messages[:2], *messages[-2:]]


def test_a_summary_stands_for_both_results() -> None:
    messages = repeated()
    plan = summarized(seen(messages), messages, 0)
    assert plan is not None
    assert [message["role"] for message in check(messages, plan)] == [
        "system",
        "user",
        "assistant",
        "assistant",
        "tool",
    ]


def test_both_results_are_cleared() -> None:
    messages = repeated()
    plan = registry.find("clear_tool_uses")(keep=1).plan(seen(messages), 0)  # type: ignore[call-arg]
    shown = [message["content"] for message in check(messages, plan) if message["role"] == "tool"]
    assert [content == PLACEHOLDER for content in shown] == [True] * 6 + [False]


def test_the_last_step_stays_whatever_stands_behind_it() -> None:
    """A result that answers no call ends the transcript, and is no step."""
    story = Story().step(("grep", "g " * 9)).step(("read", "r " * 9))
    messages = [*story.messages, {"role": "tool", "tool_call_id": "unknown", "content": "x"}]
    shown = render_without(messages, Recency().plan(seen(messages), 0).omissions)
    assert shown == [*messages[:2], *messages[4:]]


def evicted() -> tuple[list[Message], SessionState]:
    """Two steps, of which a budget took the first."""
    story = Story().step(("grep", "g " * 20)).step(("bash", "b " * 9))
    state = state_of(story.messages)
    meter = new_meter()
    meter.follow(state)
    return story.messages, meter.carry_out(meter.plan(budget(20, 1, policy="recency"), MEASURED), state)


@pytest.mark.parametrize("way", ["grown", "changed", "behind"])
def test_a_result_that_comes_when_its_call_is_gone_is_counted_as_it_is_shown_and_told(way: str) -> None:
    """In a history that grows word for word, in one of other words, and where the client sends what is new alone."""
    messages, state = evicted()
    new: list[Message] = [{"role": "assistant", "content": "I see ."}, again(messages[3])]
    first = {**messages[0], "content": f"{messages[0]['content']} Now ."} if way == "changed" else messages[0]
    sent = [first, *messages[1:], *new]
    adoption = go_on(state, END, [first, *new]) if way == "behind" else adopt(state, sent)
    assert adoption.fields == {
        "dropped": [{"kind": "omission", "id": "", "reason": "1 new result is left out: the call was evicted before."}]
    }
    view = seen(sent).with_omissions(adoption.state.omissions)
    assert view.shown_tokens() == weigh(render(adoption.state))
    assert adopt(adoption.state, [*sent, {"role": "user", "content": "Go on ."}]).dropped == ()


@pytest.mark.parametrize("number", [200, 2_000])
def test_many_results_are_each_looked_at_once(number: int, monkeypatch: pytest.MonkeyPatch) -> None:
    messages, state = evicted()
    num_read = 0

    def counted(message: Message) -> Role:
        nonlocal num_read
        num_read += 1
        return role_of(message)

    monkeypatch.setattr(late_results, "role_of", counted)
    adopt(state, [*messages, *([again(messages[5])] * number)])
    assert number <= num_read <= 3 * number + 10


def test_a_summary_takes_the_one_before_with_it_also_where_a_result_came_late() -> None:
    """Two summaries could not be read again after a restart."""
    messages = [*Story().step(("grep", "g " * 20)).step(("bash", "b " * 9)).step(("bash", "b " * 9)).messages]
    compaction = plan_compaction(seen(messages), messages, 0, 2)
    assert compaction is not None
    omissions = summary_plan(compaction, seen(messages), "First .").omissions
    [summarized] = [entry for entry, kept in omissions.entries.items() if kept.summary]
    messages += [*Story().step(("bash", "c " * 9)).messages[2:], again(messages[summarized + 1])]
    view = seen(messages).with_omissions(omissions)
    compaction = plan_compaction(view, messages, 0, 2)
    assert compaction is not None
    plan = summary_plan(compaction, view, "Second .")
    plan.omissions.check_integrity()
    [summary] = [kept.summary for kept in plan.omissions.entries.values() if kept.summary]
    assert summary.endswith("Second .")
    assert "First" not in summary
