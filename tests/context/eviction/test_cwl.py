"""Evictions: Algorithm 1 step by step against its naive transcription, and what may never happen to a conversation."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from acmserve.context.edits.cut import cut_messages
from acmserve.context.edits.fragments import redact
from acmserve.context.episodes.episode import Kind
from acmserve.context.episodes.graph import EpisodeGraph
from acmserve.context.episodes.inferred import infer_active, infer_episodes
from acmserve.context.episodes.view import ConversationView
from acmserve.context.eviction.cwl import ACT_TOOLS, Cwl, PiCwl, without_active
from acmserve.context.eviction.plan import EvictionPlan, Level
from acmserve.context.eviction.policy import Policy
from acmserve.context.eviction.protected import evicted_numbers, is_evicted
from acmserve.context.session.history import adopt
from acmserve.context.session.render import render
from acmserve.context.session.state import SessionState
from acmserve.context.transcript.message import Message
from acmserve.context.transcript.omissions import EMPTY, Omissions, omissions_before_divergence, render_without
from acmserve.context.transcript.parts import Role
from acmserve.context.transcript.token_counts import EntrySize, TokenCounts
from tests.context.eviction.test_context_meter import SpaceWords
from tests.support.context.annotated import Story, histories, token_counts_of
from tests.support.context.naive_eviction import NaiveSession
from tests.support.context.valid_chat import check_valid, weigh
from tests.support.fuzzing import FACTOR

EVERYTHING = 0
DEFAULT = Cwl()


def seen(graph: EpisodeGraph, token_counts: TokenCounts, omissions: Omissions) -> ConversationView:
    return ConversationView(graph.outline, token_counts, omissions, graph)


def plan_eviction(
    graph: EpisodeGraph,
    token_counts: TokenCounts,
    omissions: Omissions,
    target: int,
    policy: Policy = DEFAULT,
    act_ends: bool = False,
) -> EvictionPlan:
    return policy.plan(seen(graph, token_counts, omissions).expecting(act_ends=act_ends), target)


def small() -> Story:
    story = Story()
    story.expl("find", ("grep", "g " * 30), ("read", "r " * 20), ("edit", "e " * 5), reasoning="h " * 10)
    story.act("fix", "find", results=(("grep", "g " * 30), ("bash", "b " * 20), ("edit", "e " * 5)))
    return story.user("And now ?")


def test_a_redaction_reaches_the_note_that_quotes_it() -> None:
    secret = "the key of the vault is hunter2-4711-0815-hunter2"
    story = Story().start("find").step(("read", f"Monday : {secret}")).end(f"It says that {secret}").user("And now ?")
    plan = plan_eviction(EpisodeGraph(story.messages), token_counts_of(story.messages), EMPTY, EVERYTHING)
    state = replace(adopt(SessionState(), story.messages).state, omissions=plan.omissions)
    assert f"[explored find: It says that {secret}]" in str(render(state)), "the control"
    cut = cut_messages(state, 5, 6, SpaceWords())
    redacted = redact(cut.state, cut.fragments[0].fragment_id)
    redacted.check_integrity()
    assert "hunter2" not in str(render(redacted))
    assert "[explored find: It sa[redacted]]" in str(render(redacted)), "with the margin of a redaction"


def test_acts_go_before_explorations_and_levels_in_order() -> None:
    story = small()
    graph = EpisodeGraph(story.messages)
    plan = plan_eviction(graph, token_counts_of(story.messages), EMPTY, EVERYTHING)
    assert [(step.what, step.level) for step in plan.steps] == [
        ("fix", Level.BULK),
        ("fix", Level.INTERMEDIATE),
        ("fix", Level.REMOVE),
        ("find", Level.REASONING),
        ("find", Level.BULK),
        ("find", Level.INTERMEDIATE),
        ("find", Level.REMOVE),
    ]
    assert render_without(story.messages, plan.omissions) == [
        *story.messages[:2],
        {"role": "assistant", "content": "[explored find: found find here]"},
        story.messages[-1],
    ]
    assert plan.first_entry == 2
    assert plan.unmet is not None
    assert plan.unmet.num_over == plan.num_after


def test_it_stops_at_the_first_level_that_is_enough() -> None:
    story = small()
    graph, token_counts = EpisodeGraph(story.messages), token_counts_of(story.messages)
    plan = plan_eviction(graph, token_counts, EMPTY, token_counts.num_tokens - 20)
    assert [(step.what, step.level) for step in plan.steps] == [("fix", Level.BULK)]
    assert plan.num_after <= plan.target
    assert plan.unmet is None
    assert plan.num_before - plan.num_after == sum(step.num_tokens for step in plan.steps)
    nothing = plan_eviction(graph, token_counts, plan.omissions, plan.num_after)
    assert not nothing.changes
    assert nothing.omissions is plan.omissions


def test_an_exploration_stays_while_an_act_that_uses_it_has_not_ended() -> None:
    story = Story().expl("find", ("grep", "g " * 50)).expl("other", ("grep", "g " * 50))
    story.start("fix", "find")
    graph, token_counts = EpisodeGraph(story.messages), token_counts_of(story.messages)
    plan = plan_eviction(graph, token_counts, EMPTY, EVERYTHING)
    assert {step.what for step in plan.steps} == {"other"}
    assert plan.unmet is not None
    told = {item.what: item.num_tokens for item in plan.unmet.protected}
    assert set(told) == {
        "needed: find",
        "active: fix",
        "prologue",
        "descriptions and the step that runs",
    }
    assert sum(told.values()) == plan.num_after
    assert "needed: find" in str(plan.unmet)


def test_unannotated_work_goes_after_every_act_that_started_later() -> None:
    story = Story().expl("find").user().step(("grep", "g " * 30)).say("So it is .").user().act("fix", "find").user()
    graph, token_counts = EpisodeGraph(story.messages), token_counts_of(story.messages)
    plan = plan_eviction(graph, token_counts, EMPTY, EVERYTHING)
    first = {step.what: index for index, step in reversed(list(enumerate(plan.steps)))}
    assert first["fix"] < first["find"] < first["unannotated work from message 7"]
    story.start("again", "find")
    graph, token_counts = EpisodeGraph(story.messages), token_counts_of(story.messages)
    plan = plan_eviction(graph, token_counts, EMPTY, EVERYTHING)
    assert {step.what for step in plan.steps} == {"fix"}


def test_pi_cwl_takes_the_oldest_by_position() -> None:
    story = Story().expl("a").expl("b", ("grep", "g " * 30)).act("fix", "a")
    graph, token_counts = EpisodeGraph(story.messages), token_counts_of(story.messages)
    target = token_counts.num_tokens - 10
    assert plan_eviction(graph, token_counts, EMPTY, target).steps[0].what == "fix"
    by_position = plan_eviction(graph, token_counts, EMPTY, target, PiCwl())
    assert by_position.steps[0].what == "b"


def test_the_tools_of_a_level_are_configurable() -> None:
    story = small()
    graph, token_counts = EpisodeGraph(story.messages), token_counts_of(story.messages)
    options = Cwl(bulk_tools=frozenset({"edit"}), intermediate_tools=frozenset())
    plan = plan_eviction(graph, token_counts, EMPTY, token_counts.num_tokens - 5, options)
    rendered = render_without(story.messages, plan.omissions)
    assert [(step.what, step.level) for step in plan.steps] == [("fix", Level.BULK)]
    assert sum("edit" in str(message) for message in rendered) == 1


def explored(num: int) -> list[Message]:
    story = Story()
    for number in range(num):
        story.expl(f"e{number}", ("grep", "g " * 40))
    return story.user("And now ?").messages


def test_descriptions_go_at_a_second_level_the_oldest_first() -> None:
    messages = explored(20)
    graph, token_counts = EpisodeGraph(messages), token_counts_of(messages)
    floor = Cwl().plan_episodes(seen(graph, token_counts, EMPTY), EVERYTHING)
    assert floor.unmet is not None
    target = floor.num_after - 30
    plan = plan_eviction(graph, token_counts, EMPTY, target)
    assert plan.unmet is None
    assert target - 10 < plan.num_after <= target
    dropped = [step for step in plan.steps if step.level is Level.DESCRIPTIONS]
    assert 1 < len(dropped) < 20
    shown = [str(message["content"]) for message in render_without(messages, plan.omissions)]
    assert [f"[explored e{n}: found e{n} here]" in shown for n in range(20)] == [n >= len(dropped) for n in range(20)]
    # What cannot be reached even so takes no description.
    beyond = plan_eviction(graph, token_counts, EMPTY, EVERYTHING)
    assert beyond.omissions == floor.omissions


def unmarked(num: int, *, acts: bool = True) -> list[Message]:
    """An agent that never calls `delimiter`: reads, and now and then an edit."""
    story = Story()
    for number in range(num):
        story.step(("grep", "g " * 30), text="Look .", reasoning="h " * 5)
        story.step(("read", "r " * 60), text="Read .")
        if acts and number % 3 == 2:
            story.step(("edit", "e " * 20), text="Do .")
        if number % 10 == 9:
            story.user()
    return story.messages


@pytest.mark.parametrize("acts", [True, False])
@pytest.mark.parametrize("policy", [Cwl(), PiCwl()])
def test_an_agent_that_marks_nothing_stays_under_its_budget(acts: bool, policy: Policy) -> None:
    """The budget is met at every step of the way, and only system, user and the last step are always there."""
    messages = unmarked(40, acts=acts)
    omissions = EMPTY
    for end in range(2, len(messages) + 1):
        if messages[end - 1]["role"] == "assistant":
            continue
        graph, token_counts = EpisodeGraph(messages[:end]), token_counts_of(messages[:end])
        if seen(graph, token_counts, omissions).shown_tokens() <= 400:
            continue
        plan = plan_eviction(graph, token_counts, omissions, 300, policy)
        assert plan.unmet is None, end
        assert plan.num_after <= 300
        omissions = plan.omissions
        rendered = render_without(messages[:end], omissions)
        check_valid(messages[:end], rendered)
        assert messages[end - 1] in rendered
    assert omissions


def test_inferred_acts_go_before_what_they_used() -> None:
    messages = unmarked(6)
    graph, token_counts = EpisodeGraph(messages), token_counts_of(messages)
    first = plan_eviction(graph, token_counts, EMPTY, token_counts.num_tokens - 10)
    assert [step.what for step in first.steps] == ["act from message 14"]
    only_reads = plan_eviction(graph, token_counts, EMPTY, token_counts.num_tokens - 10, Cwl(act_tools=frozenset()))
    assert only_reads.steps[0].what == "exploration from message 2"
    marked = [*messages, *Story(prologue=False).expl("find", ("grep", "g " * 30)).messages]
    graph, token_counts = EpisodeGraph(marked), token_counts_of(marked)
    assert {step.what for step in plan_eviction(graph, token_counts, EMPTY, EVERYTHING).steps} == {"find"}


@given(histories(), st.data())
@settings(max_examples=80, deadline=None)
def test_inferred_episodes_hold_everything_once(messages: list[Message], data: st.DataObject) -> None:
    graph = infer_episodes(EpisodeGraph(messages).outline, {"edit", "Write"})
    episodes = [*graph.live.values(), *([graph.active] if graph.active else [])]
    uses = [use for one in episodes for use in one.uses]
    texts = [entry for one in episodes for entry in one.messages]
    lines = graph.outline.lines
    assert sorted(uses) == [(entry, n) for entry, line in enumerate(lines) for n in range(len(line.names))]
    assert sorted(set(texts)) == sorted(texts)
    assert {entry for entry, line in enumerate(lines) if line.role is Role.ASSISTANT} <= set(texts)
    assert all(graph.live[number].kind is Kind.EXPL for one in episodes for number in one.depends_on)
    for one in episodes:
        acts = [
            any(lines[entry].names[n] in ("edit", "write") for e, n in one.uses if e == entry) for entry in one.messages
        ]
        assert set(acts) <= {one.kind is Kind.ACT} or any(lines[e].role is Role.RESULT for e in one.messages)


@given(histories())
@settings(max_examples=80, deadline=None)
def test_unannotated_work_behind_the_last_mark_is_taken_apart_whole(messages: list[Message]) -> None:
    graph = EpisodeGraph(messages)
    active, apart = graph.active, infer_active(graph, {"edit", "Write"})
    if active is None or active.name is not None:
        assert apart is graph
        return
    parts = [one for one in (*apart.live.values(), apart.active) if one is not None and one.number >= active.number]
    assert [one.number for one in parts] == list(range(active.number, len(apart)))
    assert sorted(use for one in parts for use in one.uses) == sorted(active.uses)
    assert sorted(entry for one in parts for entry in one.messages) == sorted(active.messages)
    assert {number: one for number, one in apart.live.items() if number < active.number} == graph.live
    assert apart.prologue_end == graph.prologue_end
    assert apart.active is not None
    assert apart.active.kind is Kind.EXPL
    needed = {number for one in parts for number in one.depends_on}
    assert needed <= {one.number for one in parts if one.kind is Kind.EXPL}


def test_what_marked_acts_need_stays_where_unannotated_work_behind_them_goes() -> None:
    story = Story().expl("find", ("grep", "g " * 30))
    story.start("fix", "find").step(("edit", "e " * 30))
    graph, token_counts = EpisodeGraph(story.messages), token_counts_of(story.messages)
    assert plan_eviction(graph, token_counts, EMPTY, EVERYTHING).steps == ()
    story.end().step(("read", "r " * 50)).step(("edit", "e " * 20)).step(("read", "r " * 9))
    graph, token_counts = EpisodeGraph(story.messages), token_counts_of(story.messages)
    first = plan_eviction(graph, token_counts, EMPTY, token_counts.num_tokens - 100)
    assert [step.what for step in first.steps][:2] == ["fix", "find"]
    everything = plan_eviction(graph, token_counts, EMPTY, EVERYTHING)
    kinds = {step.what.partition(" from ")[0] for step in everything.steps}
    assert kinds >= {"fix", "find", "exploration", "act"}
    assert everything.unmet is not None


def test_older_unannotated_work_goes_too_where_the_step_that_runs_acts() -> None:
    story = Story().expl("find", ("grep", "g " * 30)).step(("read", "r " * 500)).user()
    story.step(("edit", "e " * 20)).step(("read", "r " * 500)).step(("edit", "e " * 20))
    graph, token_counts = EpisodeGraph(story.messages), token_counts_of(story.messages)
    assert plan_eviction(graph, token_counts, EMPTY, 700).unmet is None
    assert plan_eviction(graph, token_counts, EMPTY, 200).unmet is None


@given(histories(), st.data(), st.booleans(), st.booleans())
@settings(max_examples=60 * FACTOR, deadline=None)
def test_algorithm_1_step_by_step(
    messages: list[Message], data: st.DataObject, by_position: bool, expects_end: bool
) -> None:
    options = PiCwl() if by_position else Cwl()
    graph, token_counts = EpisodeGraph(messages), token_counts_of(messages)
    assume(graph.prologue_end is not None)
    naive = NaiveSession(messages, weigh, options, expects_end)
    omissions = EMPTY
    for target in sorted(
        data.draw(st.lists(st.integers(0, token_counts.num_tokens), min_size=1, max_size=3)), reverse=True
    ):
        naive.steps.clear()
        naive.run(target)
        view = seen(graph, token_counts, omissions).expecting(act_ends=expects_end)
        plan = options.plan_episodes(view, target, with_descriptions=True)
        assert plan.unmet is not None or options.plan(view, target) == plan
        assert [(step.what, step.level, step.num_tokens) for step in plan.steps] == naive.steps
        assert render_without(messages, plan.omissions) == naive.rendered()
        assert plan.num_after == naive.count_tokens()
        assert (plan.unmet is not None) == (plan.num_after > target)
        omissions = plan.omissions


@given(histories(), st.data())
@settings(max_examples=100, deadline=None)
def test_what_may_never_happen(messages: list[Message], data: st.DataObject) -> None:
    graph, token_counts = EpisodeGraph(messages), token_counts_of(messages)
    target = data.draw(st.integers(0, token_counts.num_tokens))
    plan = plan_eviction(graph, token_counts, EMPTY, target)
    is_marked, num_marked = graph.prologue_end is not None, len(graph)
    if not is_marked:
        graph = infer_episodes(graph.outline, ACT_TOOLS)
    elif DEFAULT.plan_episodes(seen(graph, token_counts, EMPTY), target, with_descriptions=True).unmet is not None:
        num_marked = num_marked if graph.active is None else graph.active.number
        graph = infer_active(graph, ACT_TOOLS)
    plan.omissions.check_integrity()
    rendered = render_without(messages, plan.omissions)
    check_valid(messages, rendered)
    assert plan == plan_eviction(EpisodeGraph(messages), token_counts_of(messages), EMPTY, target)
    assert plan.num_after == seen(graph, token_counts, plan.omissions).shown_tokens() == weigh(rendered)
    gone = {e.number for e in graph.live.values() if is_evicted(e, plan.omissions)}
    for act in (*graph.live.values(), *([graph.active] if graph.active else [])):
        if is_marked and act.kind is Kind.ACT and act.number not in gone and act.number < num_marked:
            assert not gone & set(act.depends_on)
            assert all(e.name is not None or e.number > act.number for e in graph.live.values() if e.number in gone)
    untouched = [*messages[: graph.prologue_end], *(m for m in messages if m["role"] == "user")]
    assert all(any(message is left for left in rendered) for message in untouched)
    if graph.active is not None:
        assert all(not plan.omissions.has_lost(use) for use in graph.active.uses)
    if plan.unmet is not None:
        assert sum(item.num_tokens for item in plan.unmet.protected) == plan.num_after
    if plan.first_entry is not None:
        assert render_without(messages[: plan.first_entry], plan.omissions) == messages[: plan.first_entry]
        assert plan.num_behind == seen(graph, token_counts, plan.omissions).shown_tokens(plan.first_entry)


@given(histories(), st.data())
@settings(max_examples=60, deadline=None)
def test_a_forgotten_episode_changes_no_later_plan(messages: list[Message], data: st.DataObject) -> None:
    cut = data.draw(st.integers(0, len(messages)))
    graph, token_counts = EpisodeGraph(messages[:cut]), token_counts_of(messages[:cut])
    omissions = plan_eviction(graph, token_counts, EMPTY, data.draw(st.integers(0, token_counts.num_tokens))).omissions
    graph.forget(evicted_numbers(graph.live.values(), omissions))
    graph.check_integrity()
    graph.extend(messages[cut:])
    whole, token_counts = EpisodeGraph(messages), token_counts_of(messages)
    target = data.draw(st.integers(0, token_counts.num_tokens))
    assert plan_eviction(graph, token_counts, omissions, target) == plan_eviction(
        whole, token_counts, omissions, target
    )


@given(histories(), st.data())
@settings(max_examples=80, deadline=None)
def test_a_rewound_history_keeps_what_lies_before_and_is_valid(messages: list[Message], data: st.DataObject) -> None:
    graph, token_counts = EpisodeGraph(messages), token_counts_of(messages)
    omissions = plan_eviction(graph, token_counts, EMPTY, data.draw(st.integers(0, token_counts.num_tokens))).omissions
    kept = messages[: data.draw(st.integers(0, len(messages)))]
    new = [*kept, {"role": "user", "content": "Otherwise ."}]
    graph, token_counts = EpisodeGraph(new), token_counts_of(new)
    left = without_active(seen(graph, token_counts, omissions_before_divergence(omissions, kept)))
    left.check_integrity()
    rendered = render_without(new, left)
    check_valid(new, rendered)
    assert seen(graph, token_counts, left).shown_tokens() == weigh(rendered)
    if graph.active is not None:
        assert all(not left.has_lost(use) for use in graph.active.uses)


@pytest.fixture(scope="module")
def long_history() -> list[Message]:
    """A thousand episodes."""
    story = Story()
    for number in range(500):
        story.expl(f"e{number}").act(f"a{number}", f"e{number}")
    return story.messages


@pytest.mark.parametrize("by_position", [False, True])
def test_a_thousand_episodes_are_looked_at_once(long_history: list[Message], by_position: bool) -> None:
    """Structure, not time: a pass that evicts a few episodes asks for few sizes, and what is gone is a few ranges."""
    graph, token_counts = EpisodeGraph(long_history), token_counts_of(long_history)
    assert len(graph) == 1000
    asked = 0

    class Counted(list[EntrySize]):
        def __getitem__(self, entry: Any) -> Any:
            nonlocal asked
            asked += 1
            return super().__getitem__(entry)

    assert token_counts.num_tokens
    token_counts.sizes = Counted(token_counts.sizes)
    options = PiCwl() if by_position else Cwl()
    plan = plan_eviction(graph, token_counts, EMPTY, token_counts.num_tokens - 60, options)
    assert plan.unmet is None
    assert 0 < asked < 200
    everything = plan_eviction(graph, token_counts, plan.omissions, EVERYTHING, options)
    assert len(everything.omissions.gone) == 1
    assert len(everything.omissions.entries) == 500
    graph.forget(evicted_numbers(graph.live.values(), everything.omissions))
    assert not graph.live
