"""The edit scheduler: its rule against the cheapest schedule there is, and the state that waits."""

from __future__ import annotations

from dataclasses import replace

import pytest

from acmserve.context.edits.commit import CommitView, Pricing, WaitingEdit, apply_commit, plan_commit, view_commit
from acmserve.context.session.history import adopt
from acmserve.context.session.render import render
from acmserve.context.session.state import SessionState
from acmserve.context.session.waiting import committed, waiting, waiting_behind
from acmserve.context.storage.codecs.state import state_from, state_value
from acmserve.context.tools.run import ToolCall, ToolContext, run_tool
from acmserve.errors import IntegrityError
from tests.support.commits.traces import by_rule, cheapest, now, num_computed, random_trace

HELD_OUT = range(10_000, 11_000)


class Words:
    """One token a word."""

    def starts(self, text: str) -> list[int]:
        return [i for i, letter in enumerate(text) if letter != " " and (i == 0 or text[i - 1] == " ")]


CONTEXT = ToolContext(Words(), may_wait=True)
TEXT = "".join(f"Word number {n} of a long text. " for n in range(200))
MESSAGES = [{"role": "user", "content": f"BEGIN {TEXT}END"}, {"role": "user", "content": "And now?"}]


def accepted(state: SessionState, name: str, **arguments: object) -> SessionState:
    """A call as the server carries it out under `acm.commit: cheapest`."""
    outcome = run_tool(committed(state), ToolCall(name, arguments), CONTEXT)
    assert outcome.error is None, outcome.result
    return waiting_behind(state, outcome.state)


def folded(*numbers: int) -> SessionState:
    state = adopt(SessionState(), MESSAGES).state
    state = accepted(state, "fragment_context", start_marker="BEGIN", end_marker="END", num_fragments=4)
    for number in numbers:
        state = accepted(state, "fold_fragment", fragment_id=state.fragments[number].fragment_id)
    return state


def test_the_rule_is_within_a_tenth_of_the_cheapest_schedule_and_now_is_far_off() -> None:
    """Held-out seeds: the rule was tuned on the first 1,000."""
    traces = [random_trace(seed) for seed in HELD_OUT]
    best = sum(map(cheapest, traces))
    assert best <= sum(num_computed(trace, by_rule) for trace in traces) <= 1.1 * best
    assert sum(num_computed(trace, now) for trace in traces) > 1.4 * best


def test_an_edit_that_waits_is_hidden_for_tools_and_shown_in_the_prompt() -> None:
    before, state = folded(), folded(1, 2)
    assert render(state) == render(before)
    assert [fragment.fragment_id for fragment in waiting(state)] == [before.fragments[n].fragment_id for n in (1, 2)]
    found = run_tool(state, ToolCall("search_context", {"query": "number 60 of"}), CONTEXT)
    assert "in folded" in found.result
    again = run_tool(state, ToolCall("fold_fragment", {"fragment_id": state.fragments[1].fragment_id}), CONTEXT)
    assert "is folded already" in again.result
    shown = render(committed(state))[0]["content"]
    assert all(fragment.fragment_id in shown for fragment in state.fragments[1:3])
    assert waiting(committed(state)) == ()


def test_a_text_that_is_shown_again_waits_no_more() -> None:
    state = folded(1, 2)
    back = accepted(state, "restore_fragment", fragment_id=state.fragments[1].fragment_id)
    assert len(waiting(back)) == 1
    assert render(back) == render(folded())
    landed = accepted(committed(state), "restore_fragment", fragment_id=state.fragments[1].fragment_id)
    assert waiting(landed) == ()
    assert render(landed) != render(committed(state))


def test_what_waits_is_stored_and_checked() -> None:
    state = folded(1)
    assert state_from(state_value(state), "here") == state
    visible = replace(state.fragments[0], waits=True)
    with pytest.raises(IntegrityError, match="is visible and waits"):
        replace(state, fragments=(visible, *state.fragments[1:])).check_integrity()


def test_the_first_edit_takes_all_and_a_change_in_front_takes_what_lies_behind_it() -> None:
    edits = (WaitingEdit("a", 5_000), WaitingEdit("b", 900))
    view = CommitView(edits, prompt_price=6_000, step_price=100, edit_share=0.9)
    assert plan_commit(view).fragment_ids == ()
    assert plan_commit(replace(view, step_price=1_000)) == plan_commit(replace(view, step_price=950))
    assert plan_commit(replace(view, step_price=1_000)).fragment_ids == ("b",)
    assert plan_commit(replace(view, step_price=1_000)).reason == "in_front"
    assert plan_commit(replace(view, edit_share=0.0)).reason == "cheapest"
    assert plan_commit(replace(view, needs_room=True)).fragment_ids == ("a", "b")
    assert plan_commit(replace(view, edits=())).reason == ""


def test_where_moving_is_free_nothing_waits() -> None:
    state = folded(0, 2)
    assert plan_commit(view_commit(state, 1, 0.9, None, Pricing(), Words())).fragment_ids == ()
    plan = plan_commit(view_commit(state, 1, 0.9, None, Pricing("reuse", 0.0), Words()))
    assert apply_commit(state, plan) == committed(state)
    assert plan_commit(view_commit(state, 1, 0.9, 100, Pricing(), Words())).reason == "room"
