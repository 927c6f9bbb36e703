"""One message with thousands of calls: an eviction costs each of them as much as the first. Counted, not timed."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from acmserve.context.episodes.graph import EpisodeGraph
from acmserve.context.episodes.view import ConversationView
from acmserve.context.eviction.clear_tool_uses import ClearToolUses, ClearToolUsesPolicy
from acmserve.context.eviction.clearing_edits import Weights, edit_chat
from acmserve.context.eviction.cwl import Cwl, without_active
from acmserve.context.eviction.oldest_first.recency import Recency
from acmserve.context.eviction.policy import Policy
from acmserve.context.transcript.message import Message
from acmserve.context.transcript.omissions import MessageOmissions, Omissions
from acmserve.context.transcript.outline import Use
from tests.support.context.annotated import Story, count, token_counts_of
from tests.support.operations import growth

SIZE, FACTOR, MOST = 50, 4, 5.5
FOUND = ("grep", "found it in the end of a file")


def unmarked(num: int) -> list[Message]:
    return Story().step(*[FOUND] * num, text="Look .").say("So .").user().say("Done .").messages


def marked(num: int) -> list[Message]:
    """One message with an exploration for each pair of its calls."""
    calls = []
    for number in range(num // 2):
        calls += [("delimiter", {"action": "start", "name": f"e{number}", "type": "expl"}), FOUND]
        calls += [("delimiter", {"action": "end", "description": f"found {number}"})]
    return Story().step(*calls, text="Look .").say("So .").user().say("Done .").messages


def seen(messages: list[Message]) -> ConversationView:
    graph = EpisodeGraph(messages)
    return ConversationView(graph.outline, token_counts_of(messages), episodes=graph)


@pytest.mark.parametrize("inputs", [True, False])
def test_clearing_the_results_of_a_request(inputs: bool) -> None:
    edits = (ClearToolUses(trigger_tokens=None, clear_tool_inputs=inputs),)

    def work(num: int) -> Callable[[], object]:
        messages = unmarked(num)
        return lambda: edit_chat(messages, edits, Weights(count))

    assert growth(work, SIZE, FACTOR) < MOST


@pytest.mark.parametrize("messages_of", [unmarked, marked])
@pytest.mark.parametrize("policy", [Cwl(), Recency(), ClearToolUsesPolicy()])
def test_keeping_a_budget(policy: Policy, messages_of: Callable[[int], list[Message]]) -> None:
    def work(num: int) -> Callable[[], object]:
        view = seen(messages_of(num))
        return lambda: policy.plan(view, 0)

    assert growth(work, SIZE, FACTOR) < MOST


def test_showing_an_episode_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """Comparisons are made in C, so they are counted."""
    compare, num_compared = Use.__eq__, 0

    def counted(self: Use, other: object) -> bool:
        nonlocal num_compared
        num_compared += 1
        return compare(self, other)

    calls = [FOUND] * SIZE
    start = ("delimiter", {"action": "start", "name": "a", "type": "expl"})
    view = seen(Story().step(*calls, start, *calls).messages)
    lost = MessageOmissions(calls=frozenset(range(2 * SIZE)))
    monkeypatch.setattr(Use, "__eq__", counted)
    shown = without_active(view.with_omissions(Omissions(entries={2: lost})))
    assert shown.entries[2].calls == frozenset(range(SIZE))
    assert num_compared <= 4 * SIZE
