"""What is left out stays counted and told as it is rendered, whatever a client makes of its history."""

from __future__ import annotations

import json
from dataclasses import replace
from random import Random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from acmserve.context.eviction.context_meter import ContextMeter
from acmserve.context.session.branches.branching import Spent
from acmserve.context.session.branches.fork import place_result
from acmserve.context.session.branches.parent import Parent
from acmserve.context.session.budget import Budget
from acmserve.context.session.carrying.branches import CarriedBranches
from acmserve.context.session.carrying.fragments import Landing
from acmserve.context.session.carrying.meanwhile import dropped_meanwhile, omissions_at
from acmserve.context.session.carrying.omissions import carry_omissions
from acmserve.context.session.history import adopt, append_answer, end_turn
from acmserve.context.session.low_watermark import Measured
from acmserve.context.session.render import render_entries
from acmserve.context.session.state import SessionState
from acmserve.context.transcript.message import Message
from acmserve.context.transcript.omissions import MessageOmissions, Omissions
from tests.support.context.conversation import KEY, assistant, user
from tests.support.context.maps import WordTokenizer

MEASURED = Measured(growth=10, prefill_rate=1000.0)
LONG = "alpha beta gamma delta epsilon zeta eta theta iota kappa " * 4
TEXTS = ["ok", "", "look at the file a please now", "the result of the thing is here", LONG, LONG + "tail one"]
PARENT = Parent("s", "", "look", "Look around.", 0, 0)
POLICIES = ["chain", "recency", "cwl", "clear_tool_uses", "pi-cwl"]


def text(random: Random) -> str:
    return random.choice(TEXTS) + (f" n{random.randrange(99)}" if random.random() < 0.3 else "")


def step(random: Random) -> list[Message]:
    """Calls and their results. Ids come again now and then."""
    calls = [
        {
            "id": f"c{random.randrange(9999)}" if random.random() < 0.9 else "c1",
            "type": "function",
            "function": {
                "name": random.choice(["grep", "read", "edit"]),
                "arguments": json.dumps({"p": random.choice(["a", LONG])}),
            },
        }
        for _ in range(random.choice([1, 1, 2, 3]))
    ]
    said: Message = {"role": "assistant", "content": random.choice([None, text(random)]), "tool_calls": calls}
    return [said, *({"role": "tool", "tool_call_id": call["id"], "content": text(random)} for call in calls)]


def more(random: Random) -> list[Message]:
    ways = [
        lambda: [user(text(random))],
        lambda: [assistant("I run ```ls``` " + text(random)), user("<output>" + text(random) + "</output>")],
        lambda: step(random),
        lambda: step(random),
    ]
    return [message for _ in range(random.randrange(1, 4)) for message in random.choice(ways)()]


def pruned(call: Any) -> Any:
    return {**call, "function": {**call["function"], "arguments": json.dumps({"pruned": True})}}


def changed(random: Random, history: list[Message]) -> list[Message]:
    """The history as a client may have it now: shorter, longer, in other words, its calls in another order."""
    history = [dict(message) for message in history]
    for _ in range(random.choice([0, 1, 1, 2, 3])):
        at, way = random.randrange(len(history)), random.randrange(8)
        message: Any = history[at]
        if way == 0:
            history = history[: at + 1]
        elif way == 1 and len(history) > 1:
            del history[at]
        elif way == 2:
            history[at:at] = more(random)
        elif way == 3 and message["role"] != "assistant":
            message["content"] = text(random)
        elif way == 4 and at + 1 < len(history):
            history[at : at + 2] = history[at + 1], history[at]
        elif way == 5 and message.get("tool_calls"):
            message["tool_calls"] = message["tool_calls"][::-1]
        elif way == 6 and message.get("tool_calls"):
            message["tool_calls"] = [pruned(call) for call in message["tool_calls"]]
        elif way == 7:
            history[at:at] = [dict(message)]
    return history


def hidden(state: SessionState) -> dict[int, Message]:
    """The messages of which nothing is shown, by the identity of what the client holds."""
    shown = zip(state.entries, render_entries(state), strict=True)
    return {id(entry.message): entry.message for entry, left in shown if left is None}


@settings(max_examples=50, deadline=None, derandomize=True)
@given(st.integers(0, 2**32))
def test_what_is_left_out_is_counted_and_told_as_it_is_rendered(seed: int) -> None:
    random = Random(seed)
    state, meter = SessionState(digest_key=KEY), ContextMeter(WordTokenizer())
    budget = Budget(random.choice([60, 120, 200]), None, random.choice(POLICIES))
    history: list[Message] = [{"role": "system", "content": "sys"}, user("task"), *more(random)]
    for _ in range(random.randrange(3, 7)):
        was_hidden, before = hidden(state), state
        adoption = adopt(state, history)
        state = adoption.state
        state.check_integrity()
        again = adopt(state, history)
        assert (again.state, again.dropped) == (state, ())
        check_told(before, was_hidden, adoption)
        state = meter.follow(state, keep_active=False)
        meter.check_integrity()
        check_counts(meter, state)
        if random.random() < 0.7:
            state = meter.carry_out(meter.plan(budget, MEASURED), state)
            state.check_integrity()
            check_counts(meter, state)
        answer = assistant(text(random) or "a")
        state = end_turn(append_answer(state, answer))
        history = changed(random, [*history, answer, *more(random)])


@settings(max_examples=80, deadline=None, derandomize=True)
@given(st.integers(0, 2**32))
def test_what_a_request_took_out_is_the_same_where_a_branch_returned_meanwhile(seed: int) -> None:
    """Its message stands in front of what the request brought. The control: without it nothing has moved."""
    random = Random(seed)
    before, meter = SessionState(digest_key=KEY), ContextMeter(WordTokenizer())
    budget = Budget(random.choice([30, 60, 120]), None, random.choice(POLICIES))
    history: list[Message] = [{"role": "system", "content": "sys"}, user("task"), *more(random)]
    for _ in range(random.randrange(3)):
        before = end_turn(append_answer(adopt(before, history).state, answer := assistant(text(random) or "a")))
        if random.random() < 0.5:
            before = meter.follow(before, keep_active=False)
            before = meter.carry_out(meter.plan(budget, MEASURED), before)
        history = [*history, answer, *more(random)]
    if random.random() < 0.3:
        before = place_result(before, "b0", PARENT, "An older branch.", Spent())
    if random.random() < 0.3:
        history = changed(random, history)
    taken = meter.follow(adopt(before, history).state, keep_active=False)
    taken = meter.carry_out(meter.plan(budget, MEASURED), taken)
    assert omissions_at(taken, taken) == taken.omissions
    without = adopt(place_result(before, "b1", PARENT, "What it found.", Spent()), history).state
    state = replace(without, omissions=omissions_at(taken, without))
    state.check_integrity()
    assert dropped_meanwhile(taken, state) == [], "all of it is left out"
    is_lost = render_entries(state) != render_entries(without)
    assert [edit.kind for edit in dropped_meanwhile(taken, without)] == ["omission"] * is_lost
    assert [message for message in shown_to(state) if "b1" not in str(message)] == shown_to(taken)
    returned = [message["content"] for message in shown_to(state) if message.get("tool_call_id") == "b1"]
    assert returned == ["What it found."] * len([branch for branch in state.branches if branch.call_id == "b1"])


def test_of_what_is_shown_again_those_are_counted_that_were_left_out() -> None:
    """A user's message stands in the prompt although a range goes over it."""
    history = [user("task"), assistant("one"), user("go on"), assistant("two"), user("now")]
    state = adopt(SessionState(digest_key=KEY), history).state
    taken = replace(state, omissions=Omissions(((1, 4),)))
    assert render_entries(taken)[1:4] == [None, history[2], None]
    [lost] = dropped_meanwhile(taken, state)
    assert lost.reason.startswith("2 messages are shown again: ")


class CountedLandings(dict[int, Landing]):
    """Counts how often all of them are looked at."""

    num_read = 0

    def items(self) -> Any:
        self.num_read += 1
        return super().items()


@pytest.mark.parametrize("num_entries", [20, 400])
def test_what_is_left_out_of_many_messages_is_carried_over_in_one_go(num_entries: int) -> None:
    """Where a summary ends was asked for each of them, although one alone can have a summary."""
    messages = [assistant(f"text {number}") for number in range(num_entries)]
    entries = {number: MessageOmissions(text=True) for number in range(num_entries)}
    entries[num_entries - 1] = replace(entries[num_entries - 1], summary="All was said.", summary_end=num_entries)
    landings = CountedLandings((number, Landing(number + 1)) for number in range(num_entries))
    moved = [user("now in front"), *messages]
    carried = carry_omissions(Omissions(entries=entries), landings, messages, moved, CarriedBranches(()))
    assert carried.summarized == num_entries
    assert carried.entries[num_entries].summary_end == num_entries + 1
    assert len(carried.entries) == num_entries
    assert landings.num_read <= 3


def shown_to(state: SessionState) -> list[Message]:
    return [message for message in render_entries(state) if message is not None]


def words_of(message: Message) -> str:
    """A message without the id of the call that it answers: a session knows it again by the rest."""
    return json.dumps({name: value for name, value in message.items() if name != "tool_call_id"})


def check_told(before: SessionState, was_hidden: dict[int, Message], adoption: Any) -> None:
    """A message that was hidden and is shown in the very words, once in both, is told."""
    old = [words_of(entry.message) for entry in before.entries]
    new = [words_of(entry.message) for entry in adoption.state.entries]
    now_hidden = [words_of(message) for message in hidden(adoption.state).values()]
    for message in was_hidden.values():
        words = words_of(message)
        if old.count(words) == new.count(words) == 1 and words not in now_hidden:
            assert [edit.kind for edit in adoption.dropped] != [], words


def check_counts(meter: ContextMeter, state: SessionState) -> None:
    """The meter has what a meter counts that reads what is rendered."""
    shown = [message for message in render_entries(state) if message is not None]
    positions = [at for at, message in enumerate(render_entries(state)) if message is not None]
    truth, read = ContextMeter(WordTokenizer()), adopt(SessionState(digest_key=KEY), shown).state
    marked = [
        replace(e, is_observation=at in state.observations) for e, at in zip(read.entries, positions, strict=True)
    ]
    truth.follow(replace(read, entries=tuple(marked)), keep_active=False)
    assert meter.num_tokens == truth.num_tokens
