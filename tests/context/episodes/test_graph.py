"""The episode graph: who owns what, the invariants of section 4.3, and that growth equals a fresh start."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from acmserve.context.episodes.delimiter import run_delimiter
from acmserve.context.episodes.episode import Kind
from acmserve.context.episodes.graph import EpisodeGraph
from acmserve.context.transcript.message import Message
from acmserve.context.transcript.outline import Use
from tests.support.context.annotated import Story, call, histories


def labels(graph: EpisodeGraph) -> list[tuple[str | None, str, tuple[int, ...]]]:
    return [(episode.name, episode.kind.value, episode.depends_on) for episode in graph.live.values()]


def facts(graph: EpisodeGraph) -> tuple[object, ...]:
    return dict(graph.live), graph.active, dict(graph.names), graph.prologue_end, len(graph), graph.scope()


def test_episodes_gaps_and_prologue() -> None:
    story = Story().step(("ls", "a b"), text="First a look .")
    story.expl("find", ("grep", "x y")).say("Found it .").user().act("fix", "find", results=(("edit", "ok"),))
    story.start("check").step(("bash", "fine"))
    graph = EpisodeGraph(story.messages)
    graph.check_integrity()
    assert graph.prologue_end == 4
    assert labels(graph) == [("find", "expl", ()), (None, "expl", ()), ("fix", "act", (0,))]
    assert graph.live[0].description == "found find here"
    assert graph.live[0].note == "[explored find: found find here]"
    assert graph.live[2].note is None
    assert graph.active is not None
    assert graph.active.name == "check"
    assert [episode.start for episode in graph.live.values()] == [4, 10, 12]
    assert [episode.end for episode in graph.live.values()] == [10, 11, 18]


def test_without_a_start_everything_is_prologue() -> None:
    graph = EpisodeGraph(Story().step(("grep", "x")).say("Done .").user().messages)
    assert (graph.prologue_end, len(graph), graph.active) == (None, 0, None)


def test_one_message_may_end_an_episode_and_start_the_next() -> None:
    story = Story().start("a")
    story.step(
        ("grep", "x"),
        ("delimiter", {"action": "end", "description": "seen"}),
        ("read", "y"),
        ("delimiter", {"action": "start", "name": "b", "type": "act", "dependencies": ["a"]}),
        ("edit", "ok"),
        text="On we go .",
    )
    graph = EpisodeGraph(story.messages)
    graph.check_integrity()
    first, between = graph.live.values()
    assert (first.messages, first.uses) == ((2, 4), (Use(2, 0), Use(4, 0), Use(4, 1)))
    assert (between.name, between.messages, between.uses) == (None, (), (Use(4, 2),))
    assert graph.active is not None
    assert (graph.active.name, graph.active.messages, graph.active.uses) == ("b", (), (Use(4, 3), Use(4, 4)))


def test_a_refused_call_and_a_call_without_a_result_change_nothing() -> None:
    story = Story().start("a").start("b").end("a is done")
    story.step(("delimiter", {"action": "start", "name": "c", "type": "expl"}), answered=False).user()
    graph = EpisodeGraph(story.messages)
    assert list(graph.names) == ["a"]
    assert Use(4, 0) in graph.live[0].uses
    told = {"role": "tool", "tool_call_id": "call_9", "content": "Error: the limit of tool calls is reached."}
    start = call("delimiter", 9, action="start", name="d", type="expl")
    limited: list[Message] = [{"role": "assistant", "content": None, "tool_calls": [start]}, told]
    assert "d" not in EpisodeGraph([*story.messages, *limited]).names


def test_a_step_counts_when_all_its_calls_have_results() -> None:
    story = Story().step(("delimiter", {"action": "start", "name": "a", "type": "expl"}), ("grep", "x"))
    graph = EpisodeGraph(story.messages[:-1])
    assert not graph.names
    graph.extend(story.messages[-1:])
    assert list(graph.names) == ["a"]
    assert graph.scope() == story.scope


def test_the_same_call_id_in_every_turn_is_told_apart() -> None:
    story = Story().expl("a", ("grep", "x"))
    same: list[Message] = []
    for message in story.messages:
        renamed = dict(message)
        if "tool_calls" in renamed:
            renamed["tool_calls"] = [{**call, "id": "call_0"} for call in renamed["tool_calls"]]
        if "tool_call_id" in renamed:
            renamed["tool_call_id"] = "call_0"
        same.append(renamed)
    assert facts(EpisodeGraph(same)) == facts(EpisodeGraph(story.messages))


def test_forgotten_episodes_leave_their_names() -> None:
    story = Story()
    for number in range(20):
        story.expl(f"e{number}", ("grep", "x"))
    graph = EpisodeGraph(story.messages)
    graph.forget(range(15))
    graph.check_integrity()
    assert (len(graph.live), graph.num_forgotten, len(graph)) == (5, 15, 20)
    assert graph.scope() == story.scope
    story.start("e3").act("late", "e3")
    graph.extend(story.messages[graph.num_entries :])
    assert graph.live[21].depends_on == (3,)
    graph.check_integrity()


@given(histories(), st.data())
@settings(max_examples=80, deadline=None)
def test_growing_in_any_pieces_gives_the_same_graph_and_keeps_every_invariant(
    messages: list[Message], data: st.DataObject
) -> None:
    whole = EpisodeGraph(messages)
    whole.check_integrity()
    cut = data.draw(st.integers(0, len(messages)))
    grown = EpisodeGraph(messages[:cut])
    grown.check_integrity()
    for message in messages[cut:]:
        grown.extend([message])
    assert facts(grown) == facts(whole)


@given(histories())
@settings(max_examples=80, deadline=None)
def test_the_invariants_of_section_4_3(messages: list[Message]) -> None:
    graph = EpisodeGraph(messages)
    episodes = [*graph.live.values(), *([graph.active] if graph.active else [])]
    by_number = {episode.number: episode for episode in episodes}
    names = [episode.name for episode in episodes if episode.name is not None]
    assert len(set(names)) == len(names)
    assert sum(not episode.is_closed for episode in episodes) <= 1
    owned = [item for episode in episodes for item in (*episode.messages, *episode.uses)]
    assert len(set(owned)) == len(owned)
    for episode in episodes:
        assert (episode.kind is Kind.ACT) == bool(episode.depends_on)
        for number in episode.depends_on:
            dependency = by_number[number]
            assert dependency.kind is Kind.EXPL
            assert dependency.end is not None
            assert dependency.number < episode.number
            assert dependency.close_entry is not None
            assert dependency.close_entry <= episode.start
    for entry, message in enumerate(messages):
        if message["role"] in {"user", "system"} or (graph.prologue_end is None or entry < graph.prologue_end):
            assert not any(entry in episode.messages for episode in episodes)
            assert not any(use.entry == entry for episode in episodes for use in episode.uses)


@given(histories())
@settings(max_examples=40, deadline=None)
def test_the_graph_agrees_with_what_the_tool_told_the_model(messages: list[Message]) -> None:
    """The scope behind every step is the one that the calls and results of the transcript lead to."""
    graph = EpisodeGraph([*messages, {"role": "user", "content": "?"}])
    scope = EpisodeGraph().scope()
    for entry, line in enumerate(graph.outline.lines):
        for index, name in enumerate(line.names):
            for result in line.results[index][:1] if name == "delimiter" else ():
                marked = run_delimiter(scope, messages[entry]["tool_calls"][index]["function"]["arguments"])
                assert marked.result == messages[result]["content"]
                scope = marked.scope
    assert graph.scope() == scope
