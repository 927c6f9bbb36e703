"""Results that the coming answer reads for the first time: no policy takes them, though an edit of the client may."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from acmserve.context.episodes.graph import EpisodeGraph
from acmserve.context.episodes.view import ConversationView
from acmserve.context.eviction import registry
from acmserve.context.eviction.clear_tool_uses import ClearToolUses
from acmserve.context.eviction.clearing_edits import plan_edits
from acmserve.context.eviction.compact import plan_compaction, summary_plan
from acmserve.context.eviction.cwl import Cwl
from acmserve.context.session.branches.branching import Spent
from acmserve.context.session.branches.fork import place_result
from acmserve.context.session.branches.parent import Parent
from acmserve.context.session.history import append_internal
from acmserve.context.session.render import render
from acmserve.context.session.state import SessionState
from acmserve.context.transcript.message import Message
from acmserve.context.transcript.omissions import PLACEHOLDER, Omissions, render_without
from tests.context.eviction.test_context_meter import MEASURED, budget, new_meter, state_of
from tests.support.context.annotated import Story, histories, token_counts_of
from tests.support.context.branching import answered, failed, opened_in, returned, step, tool_call, worked

POLICIES = [name for name, policy in registry.POLICIES.items() if not policy.needs_model]
PARENT = Parent("s", "", "look", "Which port ?", 0, 0)
MARKED = {"action": "end", "description": "all found"}


def seen(messages: list[Message], observations: tuple[int, ...] = ()) -> ConversationView:
    graph = EpisodeGraph(messages, observations)
    counts = token_counts_of([])
    counts.extend(messages)
    return ConversationView(graph.outline, counts, episodes=graph)


def shown_results(messages: list[Message], omissions: Omissions) -> list[str]:
    shown = render_without(messages, omissions)
    return [str(message["content"]) for message in shown if message["role"] == "tool"]


def in_parallel(num: int = 5) -> Story:
    """Old steps, and one that calls many tools at once."""
    story = Story().step(("grep", "old " * 20)).step(("read", "old " * 20))
    return story.step(*((("grep", "read")[n % 2], f"{'new ' * 20}{n}") for n in range(num)))


@pytest.mark.parametrize("user", [False, True])
@pytest.mark.parametrize("name", POLICIES)
def test_results_of_the_step_that_runs_stay_however_many(name: str, user: bool) -> None:
    """More than `keep`, and all of them over the budget. What a user says besides is read with them."""
    messages = (in_parallel().user() if user else in_parallel()).messages
    plan = registry.find(name)().plan(seen(messages), 0)
    assert [text for text in shown_results(messages, plan.omissions) if "new" in text] == [
        message["content"] for message in messages if "new" in message["content"]
    ]


def test_once_they_were_read_only_the_last_stay() -> None:
    messages = in_parallel().messages
    unread = registry.find("clear_tool_uses")().plan(seen(messages), 0)
    assert unread.cleared_tool_uses == 2
    messages.append({"role": "assistant", "content": "I see ."})
    read = registry.find("clear_tool_uses")().plan(seen(messages), 0)
    assert [text == PLACEHOLDER for text in shown_results(messages, read.omissions)] == [True] * 4 + [False] * 3


def test_the_edit_of_a_request_clears_as_the_client_asked() -> None:
    messages = in_parallel().messages
    omissions = plan_edits(seen(messages), [ClearToolUses(None, keep=1)])
    assert [text == PLACEHOLDER for text in shown_results(messages, omissions)] == [True] * 6 + [False]


def test_an_observation_that_nobody_answered_stays() -> None:
    story = Story().say("```ls```").user("old " * 9).say("```ls```").user("old " * 9).say("```ls```").user("new " * 9)
    view = seen(story.messages, (3, 5, 7))
    plan = registry.find("clear_tool_uses")(keep=0).plan(view, 0)  # type: ignore[call-arg]
    shown = [m["content"] for m in render_without(story.messages, plan.omissions, (3, 5, 7)) if m["role"] == "user"][1:]
    assert shown == [PLACEHOLDER, PLACEHOLDER, "new " * 9]


@pytest.mark.parametrize("name", ["cwl", "pi-cwl", "chain"])
def test_an_episode_that_ends_beside_other_calls_waits_for_the_answer(name: str) -> None:
    story = Story().expl("old", ("grep", "g " * 30)).start("find").step(("grep", "g " * 30))
    story.step(("read", "new " * 30), ("delimiter", MARKED))
    plan = registry.find(name)().plan(seen(story.messages), 0)
    assert [what for what in dict.fromkeys(step.what for step in plan.steps) if "message" not in what] == ["old"]
    assert "new " * 30 in shown_results(story.messages, plan.omissions)
    read = [*story.messages, {"role": "assistant", "content": "I see ."}]
    assert "new " * 30 not in shown_results(read, registry.find(name)().plan(seen(read), 0).omissions)


def test_an_episode_that_ends_alone_leaves_at_once() -> None:
    """The result of the call that ends an episode tells the model nothing that it did not say."""
    story = Story().expl("find", ("grep", "g " * 30)).act("fix", "find", results=(("edit", "e " * 30),))
    assert {step.what for step in Cwl().plan(seen(story.messages), 0).steps} == {"fix", "find"}


def test_what_an_unread_act_used_stays_with_it() -> None:
    story = Story().expl("find", ("grep", "g " * 30)).start("fix", "find")
    story.step(("edit", "e " * 30), ("delimiter", {"action": "end"}))
    view = seen(story.messages)
    plan = Cwl().plan(view, 0)
    assert not plan.changes
    assert plan.unmet is not None
    assert sum(item.num_tokens for item in plan.unmet.protected) == plan.num_after


@pytest.mark.parametrize("ends", [returned, failed])
@pytest.mark.parametrize("name", [name for name in POLICIES if name != "clear_tool_uses"])
def test_what_a_branch_returned_stays_until_it_was_read(
    name: str, ends: Callable[[SessionState], SessionState]
) -> None:
    """The last step of the transcript is in the branch, which is left out. The main conversation goes on in front."""
    asked = state_of([{"role": "user", "content": "Start the server ."}])
    before = worked(asked, step(tool_call("grep"), result="old " * 30))
    state = ends(worked(opened_in(before), step(tool_call("grep"), result="inner " * 30)))
    meter = new_meter()
    meter.follow(state)
    shown = render(meter.carry_out(meter.plan(budget(20, 1, policy=name), MEASURED), state))
    assert len(shown) == (5 if name == "user_messages" else 3)
    assert shown[-2:] == render(state)[-2:]
    assert meter.compaction(0, 2) is None or name == "user_messages"
    read = answered(state, {"role": "assistant", "content": "I see ."})
    meter.follow(read)
    shown = render(meter.carry_out(meter.plan(budget(20, 1, policy=name), MEASURED), read))
    assert len(shown) == (6 if name == "user_messages" else 2)


@pytest.mark.parametrize("name", [name for name in POLICIES if name != "clear_tool_uses"])
@pytest.mark.parametrize("between", [False, True])
def test_what_branches_of_a_client_returned_one_behind_the_other_stays(name: str, between: bool) -> None:
    asked = state_of([{"role": "user", "content": "Start the server ."}])
    state = worked(asked, step(tool_call("grep"), result="old " * 30))
    state = answered(state, {"role": "assistant", "content": "I ask ."})
    for number in range(3):
        placed = place_result(state, f"b{number}", PARENT, f"new {number} " * 30, Spent())
        state = placed if number or not between else append_internal(placed, [{"role": "user", "content": "And ?"}])
    meter = new_meter()
    meter.follow(state)
    shown = render(meter.carry_out(meter.plan(budget(20, 1, policy=name), MEASURED), state))
    assert sum("new" in str(message["content"]) for message in shown) == 3
    read = answered(state, {"role": "assistant", "content": "I see ."})
    meter.follow(read)
    shown = render(meter.carry_out(meter.plan(budget(20, 1, policy=name), MEASURED), read))
    assert sum("new" in str(message["content"]) for message in shown) == (3 if name == "user_messages" else 0)


def test_no_summary_takes_a_step_whose_result_came_late() -> None:
    first = step(tool_call("grep", "a"), tool_call("grep", "b"), result="old " * 9)[:2]
    late = {"role": "tool", "tool_call_id": "b", "content": "new " * 9}
    asked: Message = {"role": "user", "content": "Go ."}
    messages = [asked, *step(tool_call("ls", "d"), result="old " * 9), *first, *step(tool_call("ls", "c")), late]
    compaction = plan_compaction(seen(messages), messages, 1, 2)
    assert compaction is not None
    assert compaction.steps == (1,)
    read = [*messages, {"role": "assistant", "content": "I see ."}]
    compaction = plan_compaction(seen(read), read, 1, 2)
    assert compaction is not None
    assert compaction.steps == (1, 3, 5)


@given(histories(), st.data())
@settings(max_examples=150, deadline=None)
def test_no_policy_takes_what_no_answer_has_read(messages: list[Message], data: st.DataObject) -> None:
    """In front of each answer of any conversation, down to any target. That an episode has ended is no news."""
    messages = messages[: data.draw(st.integers(0, len(messages)))]
    view = seen(messages)
    answered = max((n for n, message in enumerate(messages) if message["role"] == "assistant"), default=-1)
    news = [m for m in messages[answered + 1 :] if m["role"] == "tool" and not m["content"].startswith("Ended")]
    target = data.draw(st.integers(0, view.shown_tokens()))
    plans = [registry.find(name)().plan(view, target) for name in POLICIES]
    compaction = plan_compaction(view, messages, target, 2)
    plans += [] if compaction is None else [summary_plan(compaction, view, "All found .")]
    for plan in plans:
        shown = render_without(messages, plan.omissions)
        assert all(any(message is left for left in shown) for message in news)
