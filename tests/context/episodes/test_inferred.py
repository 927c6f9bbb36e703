"""Episodes of agents whose tools' names say nothing: a shell alone, commands in the text, one editor for everything."""

from __future__ import annotations

from typing import Any

import pytest

from acmserve.context.episodes.episode import Kind
from acmserve.context.episodes.graph import EpisodeGraph
from acmserve.context.episodes.inferred import infer_active, infer_episodes
from acmserve.context.episodes.view import ConversationView
from acmserve.context.eviction.cwl import ACT_TOOLS, Cwl
from acmserve.context.transcript.message import Message
from acmserve.context.transcript.omissions import EMPTY
from tests.support.context.annotated import Story, call, token_counts_of

EXPL, ACT = Kind.EXPL, Kind.ACT
HEREDOC = "cat > test.py <<'EOF'\nassert 1 > 0\nEOF"
COMMANDS = ("ls", "grep -rn 'a > b' .", "sed -i s/a/b/ f", HEREDOC, "pytest 2>&1", "git diff > /dev/null", "ls")
KINDS = [(EXPL, 2), (ACT, 2), (EXPL, 2), (EXPL, 1)]


def by_shell(*commands: str, tool: str = "bash", key: str = "command") -> list[Message]:
    story = Story()
    for command in commands:
        story.step((tool, "r " * 20), text="Next .")
        story.messages[-2]["tool_calls"] = [call(tool, story.num_calls, **{key: command})]
    return story.messages


def by_text(*commands: str) -> list[Message]:
    messages = Story().messages
    for command in commands:
        messages.append({"role": "assistant", "content": f"THOUGHT: Next.\n\n```bash\n{command}\n```"})
        messages.append({"role": "user", "content": "<returncode>0</returncode>\n<output>\n</output>"})
    return messages


def kinds(graph: EpisodeGraph) -> list[tuple[Kind, int]]:
    """The kind of each episode, and how many steps it has. The active one is the last."""
    episodes = [*graph.live.values(), *([graph.active] if graph.active else [])]
    roles = [line.role.value for line in graph.outline.lines]
    return [(one.kind, sum(roles[entry] == "assistant" for entry in one.messages)) for one in episodes]


@pytest.mark.parametrize(
    ("tool", "key"),
    [("bash", "command"), ("Bash", "command"), ("exec_command", "cmd"), ("run_shell_command", "command"), ("x", "cmd")],
)
def test_an_agent_with_a_shell_alone_acts_where_its_commands_write(tool: str, key: str) -> None:
    graph = infer_episodes(EpisodeGraph(by_shell(*COMMANDS, tool=tool, key=key)).outline, ACT_TOOLS)
    assert kinds(graph) == KINDS
    assert graph.live[1].depends_on == (0,)


def test_an_agent_that_writes_commands_into_its_text_acts_there() -> None:
    messages = by_text(*COMMANDS)
    observations = [entry for entry, message in enumerate(messages) if entry > 1 and message["role"] == "user"]
    graph = infer_episodes(EpisodeGraph(messages, observations).outline, ACT_TOOLS)
    assert kinds(graph) == KINDS
    assert graph.live[1].depends_on == (0,)


def test_a_command_that_a_person_is_told_was_not_run() -> None:
    """The same messages, where a person answers: advice, and no act."""
    graph = infer_episodes(EpisodeGraph(by_text(*COMMANDS)).outline, ACT_TOOLS)
    assert {kind for kind, _ in kinds(graph)} == {EXPL}


def test_an_editor_that_views_explores() -> None:
    messages = by_shell("view", "view", "str_replace", "create", "view", "view", tool="str_replace_based_edit_tool")
    assert kinds(infer_episodes(EpisodeGraph(messages).outline, ACT_TOOLS)) == [
        (EXPL, 2),
        (ACT, 2),
        (EXPL, 1),
        (EXPL, 1),
    ]


def test_a_tool_that_is_named_acts_whatever_its_command() -> None:
    messages = by_shell("ls", "sed -i s/a/b/ f", "ls", "ls")
    assert kinds(infer_episodes(EpisodeGraph(messages).outline, {"bash"})) == [(ACT, 3), (ACT, 1)]
    assert kinds(infer_episodes(EpisodeGraph(messages).outline, ())) == [(EXPL, 1), (ACT, 1), (EXPL, 1), (EXPL, 1)]


def test_work_behind_a_mark_is_taken_apart_by_its_commands() -> None:
    story = Story().expl("find", ("grep", "g " * 5))
    marked: list[Any] = [*story.messages, *by_shell(*COMMANDS)[2:]]
    graph = infer_active(EpisodeGraph(marked), ACT_TOOLS)
    assert kinds(graph)[1:] == KINDS


def test_what_a_shell_wrote_goes_before_what_it_used() -> None:
    messages = by_shell(*COMMANDS)
    graph, token_counts = EpisodeGraph(messages), token_counts_of(messages)
    view = ConversationView(graph.outline, token_counts, EMPTY, graph)
    plan = Cwl().plan(view, token_counts.num_tokens - 10)
    assert [step.what for step in plan.steps] == ["act from message 6"]
