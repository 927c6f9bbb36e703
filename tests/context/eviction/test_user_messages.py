"""Old messages of users go last of all: what stays, what the marker says, and that all counts agree."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from acmserve.context.eviction.chain import KEPT
from acmserve.context.eviction.oldest_first.user_messages import NO_USERS, UserMessages, evictable_users
from acmserve.context.session.history import adopt
from acmserve.context.session.render import evicted_entries, render
from acmserve.context.session.state import SessionState
from acmserve.context.storage.codecs.state import state_from, state_value
from acmserve.context.transcript.message import Message
from acmserve.context.transcript.omissions import USERS_LEFT_OUT
from acmserve.context.transcript.template_rules import STRICT, TAKES_ALL, TemplateRules
from acmserve.server.budget.fitting import PromptFitting
from tests.context.eviction.test_context_meter import MEASURED, budget, new_meter, resent, state_of, worked
from tests.support.context.valid_chat import orphans

SYSTEM = {"role": "system", "content": "You mend programs ."}
MARKER = {"role": "user", "content": USERS_LEFT_OUT}
MOST, LOW = 400, 250


def said(role: str, number: int, num_words: int = 20) -> Message:
    return {"role": role, "content": f"{role} {number} " + "word " * num_words}


def talk(num_turns: int, num_words: int = 20) -> list[Message]:
    """A person who says much, and an assistant that says little."""
    messages = [SYSTEM, {"role": "user", "content": "Mend it ."}]
    for number in range(num_turns):
        messages += [said("assistant", number, 2), said("user", number, num_words)]
    return messages


def weigh(messages: list[Message]) -> int:
    meter = new_meter()
    meter.follow(state_of(messages))
    return meter.num_tokens


class Chained:
    """A session under the policy `chain`, with its last resorts, as the server keeps it. No model writes summaries."""

    def __init__(self, rules: TemplateRules = TAKES_ALL) -> None:
        self.budget, self.fitting = budget(MOST, LOW, policy="chain"), PromptFitting(None, rules)
        self.state, self.meter, self.rules = state_of([]), new_meter(), rules
        self.plans: list[Any] = []

    def turn(self, messages: list[Message]) -> list[Message]:
        state = self.meter.follow(adopt(self.state, resent(messages)).state)
        if self.meter.exceeds(self.budget):
            plan = self.meter.plan(self.budget, MEASURED)
            state = self.fitting.carry_out(self.meter, state, plan)
            plan, state = self.fitting.take_last_resorts(self.meter, state, self.budget, plan)
            self.plans.append(plan)
        self.state = state
        self.meter.calibrate(self.meter.counted(), self.meter.num_tokens)
        self.meter.check_integrity()
        state.check_integrity()
        return render(state, self.rules)


def evict(messages: list[Message], target: int) -> tuple[SessionState, list[Message], Any]:
    meter = new_meter()
    state = meter.follow(state_of(messages))
    plan = UserMessages().plan(meter.view, target)
    state = meter.carry_out(plan, state)
    meter.check_integrity()
    shown = render(state)
    assert plan.num_after == meter.num_tokens == weigh(shown)
    return state, shown, plan


def test_the_oldest_go_and_the_beginning_and_the_newest_stay() -> None:
    messages = talk(4)
    _, shown, plan = evict(messages, 0)
    assert shown == [*messages[:3], MARKER, messages[4], messages[6], *messages[8:]]
    assert [step.what for step in plan.steps] == ["user message 3", "user message 5", "user message 7"]
    assert plan.first_entry == 3
    assert plan.unmet is not None
    assert plan.unmet.num_over == plan.num_after == sum(item.num_tokens for item in plan.unmet.protected)


def test_only_as_many_go_as_it_takes() -> None:
    messages = talk(4)
    _, shown, plan = evict(messages, weigh(messages) - 10)
    assert shown == [*messages[:3], MARKER, *messages[4:]]
    assert plan.unmet is None


def test_what_may_go_ends_in_front_of_the_newest_turn_and_begins_behind_the_first_episode() -> None:
    def users(messages: list[Message]) -> list[int]:
        meter = new_meter()
        meter.follow(state_of(messages))
        return evictable_users(meter.view)

    plain = [SYSTEM, said("user", 0), said("user", 1), said("assistant", 1), said("user", 2), said("user", 3)]
    assert users(plain) == []
    assert users([*plain, said("assistant", 2)]) == []
    assert users([*plain, said("assistant", 2), said("user", 4)]) == [4, 5]
    marked = worked(2)
    first = next(n for n, message in enumerate(marked) if message["role"] == "assistant")
    assert users(marked)
    assert min(users(marked)) > first


def test_a_later_eviction_changes_nothing_in_front_of_what_it_takes() -> None:
    served, last = Chained(), list[Message]()
    for num_turns in range(1, 60):
        shown = served.turn(talk(num_turns))
        if MARKER in last:
            assert shown[:3] == last[:3]
        last = shown
    took = [plan for plan in served.plans if plan.stages[-1].num_tokens]
    assert len(took) > 3
    assert shown[:3] == [SYSTEM, talk(0)[1], MARKER]
    assert all(plan.unmet is None for plan in served.plans)
    assert served.meter.num_tokens <= MOST
    assert len(served.plans) < 30


def test_control_without_the_last_resort_the_budget_breaks() -> None:
    meter = new_meter()
    meter.follow(state_of(talk(60)))
    plan = meter.plan(budget(MOST, LOW, policy="chain"), MEASURED)
    assert plan.unmet is not None
    assert plan.unmet.num_over > MOST


def test_users_stay_where_the_budget_is_kept_without_them_and_the_stage_says_so() -> None:
    served = Chained()
    messages = [SYSTEM, said("user", 0, 2)]
    for number in range(8):
        messages += [said("assistant", number, 60), said("user", number + 1, 2)]
    shown = served.turn(messages)
    assert [m for m in shown if m["role"] == "user"] == [m for m in messages if m["role"] == "user"]
    assert (served.plans[-1].stages[-1].policy, served.plans[-1].stages[-1].reason) == ("user_messages", KEPT)
    served.turn([SYSTEM, said("user", 0, 500), said("assistant", 0), said("user", 1, 500)])
    assert served.plans[-1].stages[-1].reason == NO_USERS
    assert served.plans[-1].unmet is not None


def test_the_marker_outlives_a_rewind_and_a_lost_message_and_a_file() -> None:
    state, shown, _ = evict(talk(6), 0)
    assert evicted_entries(state) == frozenset({3, 5, 7, 9, 11})
    read = state_from(state_value(state), "a file")
    assert render(read) == shown
    back = adopt(read, resent(talk(6)[:8])).state
    assert render(back) == [*talk(6)[:3], MARKER, talk(6)[4], talk(6)[6]]
    without = [message for entry, message in enumerate(talk(6)) if entry not in (2, 3)]
    moved = adopt(state, resent(without))
    assert moved.dropped == ()
    assert [m for m in render(moved.state) if m["role"] == "user"] == [talk(6)[1], MARKER, talk(6)[13]]


def test_a_message_that_its_user_has_changed_is_shown_again_and_told() -> None:
    state, _, _ = evict(talk(6), 0)
    changed = resent(talk(6))
    changed[5] = {**changed[5], "content": changed[5]["content"] + "and more"}
    adoption = adopt(state, changed)
    assert changed[5] in render(adoption.state)
    assert [edit.kind for edit in adoption.dropped] == ["omission"]


turns = st.lists(st.tuples(st.sampled_from(["said", "called", "both"]), st.integers(0, 60)), min_size=2, max_size=25)


@settings(deadline=None, max_examples=60)
@given(turns, st.booleans(), st.data())
def test_a_budget_is_kept_and_every_template_takes_what_is_left(
    drawn: list[tuple[str, int]], is_strict: bool, data: st.DataObject
) -> None:
    served, messages = Chained(STRICT if is_strict else TAKES_ALL), [SYSTEM, {"role": "user", "content": "Mend it ."}]
    for number, (kind, num_words) in enumerate(drawn):
        if kind != "said":
            call = {"id": f"c{number}", "type": "function", "function": {"name": "look", "arguments": "{}"}}
            messages.append({**said("assistant", number, 2 * (kind == "both")), "tool_calls": [call]})
            messages.append({"role": "tool", "tool_call_id": f"c{number}", "content": "seen " * num_words})
        messages += [said("assistant", number, 3), said("user", number, num_words)]
        shown = served.turn(messages)
        assert orphans(shown) == []
        assert shown[0] == SYSTEM
        assert "Mend it ." in shown[1]["content"]
        assert messages[-1]["content"] in shown[-1]["content"]
        assert str(shown).count(USERS_LEFT_OUT) <= 1
        if is_strict:
            spoken = ["call" if message.get("tool_calls") else message["role"] for message in shown]
            refused = {("user", "user"), ("assistant", "assistant"), ("assistant", "call"), ("tool", "user")}
            assert not refused & set(pairwise(spoken))
        if served.plans and served.plans[-1].unmet is not None:
            assert not evictable_left(served)
    if data.draw(st.booleans()):
        short = messages[: data.draw(st.integers(2, len(messages)))]
        assert str(served.turn(short)).count(USERS_LEFT_OUT) <= 1


def evictable_left(served: Chained) -> list[int]:
    gone = served.meter.omissions.entries
    return [entry for entry in evictable_users(served.meter.view) if entry not in gone]
