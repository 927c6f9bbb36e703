"""The policy `compact`: what is summarized, what is left, and what becomes of it when the conversation goes on."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from acmserve.context.edits import fragments as edits
from acmserve.context.edits.cut import cut_messages
from acmserve.context.episodes.view import ConversationView
from acmserve.context.eviction.clear_tool_uses import ClearToolUses, plan_clear_tool_uses
from acmserve.context.eviction.compact import (
    HEAD,
    MAX_USER_CHARS,
    Compaction,
    plan_compaction,
    predicted_plan,
    summary_plan,
)
from acmserve.context.eviction.plan import EvictionPlan, Level
from acmserve.context.session.history import adopt
from acmserve.context.session.render import render
from acmserve.context.session.state import SessionState
from acmserve.context.storage.codecs.omissions import omissions_from, omissions_value
from acmserve.context.transcript.message import Message
from acmserve.context.transcript.omissions import EMPTY, Omissions, omissions_before_divergence, render_without
from acmserve.context.transcript.outline import Outline
from acmserve.errors import IntegrityError
from tests.context.eviction.test_context_meter import SpaceWords
from tests.support.context.annotated import Story, count, histories, token_counts_of
from tests.support.context.conversation import KEY
from tests.support.context.valid_chat import check_valid, weigh

MOST = 12


def reads(num: int = 8) -> Story:
    story = Story()
    for number in range(num):
        story.step(("read", f"{'w ' * 20}{number}"), text=f"Look {number} .")
        story.user(f"Go on {number} .")
    return story


def seen(messages: list[Message], omissions: Omissions = EMPTY) -> ConversationView:
    return ConversationView(Outline(messages), token_counts_of(messages), omissions)


def wanted(messages: list[Message], omissions: Omissions, target: int, most: int = MOST) -> Compaction | None:
    return plan_compaction(seen(messages, omissions), messages, target, most)


def carried_out(messages: list[Message], omissions: Omissions, compaction: Compaction, summary: str) -> EvictionPlan:
    return summary_plan(compaction, seen(messages, omissions), summary)


def compacted(
    messages: list[Message], omissions: Omissions, target: int, summary: str = "All was read ."
) -> EvictionPlan:
    compaction = wanted(messages, omissions, target)
    assert compaction is not None
    return carried_out(messages, omissions, compaction, summary)


def test_a_summary_stands_where_the_last_step_stood_that_it_covers() -> None:
    messages = reads(4).messages
    plan = compacted(messages, EMPTY, 0)
    shown = render_without(messages, plan.omissions)
    assert [message["role"] for message in shown] == [
        *("system", "user", "user", "user", "assistant", "user", "assistant", "tool", "user")
    ]
    assert shown[4] == {"role": "assistant", "content": f"{HEAD}\nAll was read ."}
    assert shown[-3:] == messages[-3:]
    assert plan.num_after == weigh(shown)
    assert plan.num_written == count(f"{HEAD}\nAll was read .")
    assert [(step.what, step.level) for step in plan.steps] == [("messages 2 to 8", Level.SUMMARIZE)]
    assert plan.steps[0].num_tokens == plan.cleared_input_tokens


def test_the_summarizer_reads_the_steps_and_how_the_user_began() -> None:
    story = Story().user("word " * 400).step(("read", "w " * 20), text="I look .", reasoning="Hm .").say("Seven .")
    compaction = wanted([*story.messages, {"role": "assistant", "content": "Bye ."}], EMPTY, 0)
    assert compaction is not None
    assert compaction.text.startswith("user: Fix it .\n\nuser: word word")
    said = [part for part in compaction.text.split("\n\n") if part.startswith("user: word")]
    assert len(said[0]) == len("user: ") + len(("word " * 400)[:MAX_USER_CHARS].strip())
    for told in ("assistant: I look .", 'assistant calls read: {"path": "a b c"}', "result of read: w w", "Seven ."):
        assert told in compaction.text
    for untold in ("Hm .", "Be helpful", "Bye ."):
        assert untold not in compaction.text
    assert compaction.num_tokens == count(compaction.text)


def test_only_as_much_is_summarized_as_the_target_wants() -> None:
    messages = reads(8).messages
    num_all = token_counts_of(messages).num_tokens
    compaction = wanted(messages, EMPTY, num_all - 60)
    assert compaction is not None
    plan = predicted_plan(compaction, seen(messages))
    assert plan.num_after <= num_all - 60
    fewer = replace(compaction, steps=compaction.steps[:-1], at=compaction.steps[-2])
    assert predicted_plan(fewer, seen(messages)).num_after > num_all - 60
    assert wanted(messages, EMPTY, 10_000) is not None
    assert len(wanted(messages, EMPTY, 10_000).steps) == 1  # type: ignore[union-attr]


def test_the_next_summary_is_made_of_the_first_and_takes_its_place() -> None:
    story = reads(4)
    first = compacted(story.messages, EMPTY, 0)
    for number in range(4, 8):
        story.step(("read", f"{'w ' * 20}{number}")).user()
    again = wanted(story.messages, first.omissions, 0)
    assert again is not None
    assert again.text.startswith(f"assistant: {HEAD}\nAll was read .")
    assert "Look 0 ." not in again.text
    second = carried_out(story.messages, first.omissions, again, "More was read .")
    shown = render_without(story.messages, second.omissions)
    assert [m["content"] for m in shown if HEAD in str(m["content"])] == [f"{HEAD}\nMore was read ."]
    assert second.omissions.summarized == again.at > first.omissions.summarized  # type: ignore[operator]
    assert second.num_after == weigh(shown)


def test_nothing_is_asked_where_a_summary_saves_nothing() -> None:
    """Also behind a summary: it is not made anew in every turn of a conversation that stays too large."""
    assert wanted(Story().say("Hm .").say("Well .").messages, EMPTY, 0) is None
    assert wanted([{"role": "user", "content": "word " * 90}], EMPTY, 0) is None
    assert wanted([], EMPTY, 0) is None
    story = reads(4)
    omissions = compacted(story.messages, EMPTY, 0).omissions
    assert wanted(story.messages, omissions, 0) is None
    story.say("Short .").user()
    assert wanted(story.messages, omissions, 0, most=60) is None


def test_what_a_policy_left_behind_is_summarized_too() -> None:
    story = reads(6)
    cleared = plan_clear_tool_uses(seen(story.messages), ClearToolUses(None))
    compaction = wanted(story.messages, cleared.omissions, 0)
    assert compaction is not None
    assert "result of read: [tool result cleared]" in compaction.text
    plan = carried_out(story.messages, cleared.omissions, compaction, "Read .")
    shown = render_without(story.messages, plan.omissions)
    assert plan.num_after == weigh(shown)
    assert not any("[tool result cleared]" in str(message["content"]) for message in shown)


@pytest.mark.parametrize("num_kept", [3, 8, 11, 13, 14, 16])
def test_a_rewind_drops_the_summary_with_all_that_it_spoke_for(num_kept: int) -> None:
    messages = reads(6).messages
    plan = compacted(messages, EMPTY, 150)
    at = plan.omissions.summarized
    assert at == 11
    left = omissions_before_divergence(plan.omissions, messages[:num_kept])
    assert left == (EMPTY if num_kept <= at + 2 else plan.omissions)


def test_it_is_stored_to_the_byte() -> None:
    omissions = compacted(reads(4).messages, EMPTY, 0, "  Two\nlines é ").omissions
    assert omissions_from(omissions_value(omissions)) == omissions
    assert any(kept.summary == f"{HEAD}\nTwo\nlines é" for kept in omissions.entries.values())
    with pytest.raises(TypeError, match="a note or a summary is no text"):
        omissions_from({"gone": [], "entries": {"1": {"summary": 3}}})
    with pytest.raises(IntegrityError, match="summary_end=-1"):
        omissions_from({"gone": [], "entries": {"1": {"summary": "S", "summary_end": -1}}})


def summarized(messages: list[Message]) -> SessionState:
    state = adopt(SessionState(digest_key=KEY), messages).state
    return replace(state, omissions=compacted(messages, EMPTY, 0).omissions)


@pytest.mark.parametrize(("entry", "stays"), [(3, False), (6, False), (12, False), (13, False), (15, True)])
def test_a_redaction_takes_a_summary_away_that_may_tell_of_it(entry: int, stays: bool) -> None:
    """Behind the message that carries it stand the results of its calls, and what a live summary read behind those."""
    messages = reads(5).messages
    state = summarized(messages)
    assert state.omissions.summarized == 11
    cut = cut_messages(state, entry, entry + 1, SpaceWords()).state
    redacted = edits.redact(cut, cut.fragments[0].fragment_id)
    assert (HEAD in str(render(redacted))) is stays
    assert bool(redacted.omissions) is stays


@pytest.mark.parametrize(("said", "stays"), [("Read 9 .", False), ("Go on 4 .", True)])
def test_a_summary_that_has_moved_forward_goes_with_what_it_was_written_from(said: str, stays: bool) -> None:
    """The client has dropped the message that carried it, and put another one behind the one that does so now."""
    messages = reads(5).messages
    messages[10] = {"role": "user", "content": "Read 9 ."}
    state = summarized(messages)
    written: Message = {"role": "assistant", "content": "Well ."}
    state = adopt(state, [*messages[:10], written, messages[10], *messages[13:]]).state
    assert state.omissions.summarized == 8
    at = next(at for at, entry in enumerate(state.entries) if entry.message["content"] == said)
    cut = cut_messages(state, at, at + 1, SpaceWords()).state
    redacted = edits.redact(cut, cut.fragments[0].fragment_id)
    assert (HEAD in str(render(redacted))) is stays


def test_a_redaction_takes_a_summary_away_of_which_nobody_knows_what_it_was_written_from() -> None:
    """A file of before says nothing of it."""
    messages = reads(5).messages
    state = summarized(messages)
    value = omissions_value(state.omissions)
    assert value["entries"]["11"].pop("summary_end") == 14
    state = replace(state, omissions=omissions_from(value))
    cut = cut_messages(state, 15, 16, SpaceWords()).state
    assert not edits.redact(cut, cut.fragments[0].fragment_id).omissions


@settings(deadline=None)
@given(histories(), st.integers(0, 250), st.integers(0, 30), st.data())
def test_no_orphans_and_the_protected_stay_whatever_the_history(
    messages: list[Message], target: int, most: int, data: st.DataObject
) -> None:
    """Turn by turn, each compaction on top of the one before."""
    omissions, end = EMPTY, 0
    for _ in range(3):
        end = data.draw(st.integers(end, len(messages)))
        part = messages[:end]
        compaction = wanted(part, omissions, target, most)
        assert compaction == wanted([dict(message) for message in part], omissions, target, most)
        if compaction is None:
            continue
        before = render_without(part, omissions)
        plan = carried_out(part, omissions, compaction, " ".join(["s"] * data.draw(st.integers(0, most))))
        plan.omissions.check_integrity()
        shown = render_without(part, plan.omissions)
        check_valid(part, shown)
        assert plan.num_after == weigh(shown) <= predicted_plan(compaction, seen(part, omissions)).num_after
        assert plan.num_after < plan.num_before == weigh(before)
        protected = [message for message in part if message["role"] in ("system", "user")]
        assert [message for message in shown if message["role"] in ("system", "user")] == protected
        last = max(index for index, message in enumerate(part) if message["role"] == "assistant")
        assert part[last] in shown
        assert plan.num_after <= target or compaction.steps == wanted(part, omissions, 0, most).steps  # type: ignore[union-attr]
        if any(kept.summary for kept in omissions.entries.values()):
            assert HEAD in compaction.text
        omissions = plan.omissions
