"""The one view of a conversation: what it counts, where another choice of omissions differs, and that it stays."""

from __future__ import annotations

from dataclasses import FrozenInstanceError

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from acmserve.context.episodes.graph import EpisodeGraph
from acmserve.context.episodes.view import NOW, ConversationView, Expected
from acmserve.context.transcript.message import Message
from acmserve.context.transcript.omissions import EMPTY, omit_from_messages
from acmserve.context.transcript.outline import Use
from tests.support.context.annotated import Story, histories, token_counts_of
from tests.support.context.valid_chat import weigh


def seen(messages: list[Message]) -> ConversationView:
    episodes = EpisodeGraph(messages)
    return ConversationView(episodes.outline, token_counts_of(messages), EMPTY, episodes)


def test_a_view_is_a_value() -> None:
    view = seen(Story().expl("find", ("grep", "hits")).messages)
    with pytest.raises(FrozenInstanceError):
        view.omissions = EMPTY  # type: ignore[misc]
    assert view.with_omissions(EMPTY) is view
    assert view.expected is NOW
    later = view.expecting(2, act_starts=True)
    assert (later.expected, view.expected) == (Expected(2, act_starts=True), NOW)


def test_an_editor_leaves_the_view_as_it_was() -> None:
    messages = Story().step(("grep", "w " * 30)).user().messages
    view = seen(messages)
    editor = view.editor()
    editor.drop_call(Use(2, 0))
    after = view.with_omissions(editor.omissions())
    assert view.omissions is EMPTY
    assert after.shown_tokens() == editor.num_tokens < view.shown_tokens() == weigh(messages)
    assert view.first_difference(after.omissions) == after.first_difference(EMPTY) == 2
    assert after.lasting_tokens() <= after.shown_tokens()


@given(histories(), st.data())
@settings(max_examples=60, deadline=None)
def test_nothing_is_shown_otherwise_before_the_first_difference(messages: list[Message], data: st.DataObject) -> None:
    view = seen(messages)
    editor = view.editor()
    uses = [Use(entry, number) for entry, line in enumerate(view.outline.lines) for number in range(len(line.names))]
    for use in data.draw(st.lists(st.sampled_from(uses), max_size=4)) if uses else ():
        if data.draw(st.booleans()):
            editor.drop_call(use)
        else:
            editor.clear_result(use, inputs=False)
    after = editor.omissions()
    first = view.first_difference(after)
    assert omit_from_messages(messages, after)[:first] == messages[:first]
    there = view.with_omissions(after)
    assert there.shown_tokens() == editor.num_tokens
    if first:
        in_front = view.token_counts.base_tokens + view.token_counts.between(0, first)
        assert there.shown_tokens(first) == editor.num_tokens - in_front
