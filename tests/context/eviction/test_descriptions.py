"""Descriptions of evicted explorations go last of all under `chain`: when, how many, and what the plan says of it."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from acmserve.context.eviction.chain import Chain
from acmserve.context.eviction.context_meter import ContextMeter
from acmserve.context.eviction.oldest_first.descriptions import NOT_ENOUGH, plan_descriptions
from acmserve.context.eviction.plan import EvictionPlan, Level, Stage
from acmserve.context.session.render import render
from acmserve.context.session.state import SessionState
from acmserve.context.transcript.message import Message
from acmserve.context.transcript.template_rules import TAKES_ALL
from acmserve.server.budget.fitting import PromptFitting
from tests.context.eviction.test_context_meter import MEASURED, budget, new_meter, state_of
from tests.support.context.annotated import Story, histories
from tests.support.context.valid_chat import orphans, weigh

NUM = 20
FITTING = PromptFitting(None, TAKES_ALL)


def explored(num: int = NUM, num_said: int = 0) -> list[Message]:
    """Explorations with a description each, and what the user said behind them."""
    story = Story()
    for number in range(num):
        story.expl(f"e{number}", ("grep", "g " * 40))
        if num_said:
            story.user("word " * num_said)
    return story.user("And now ?").messages


def described(messages: list[Message]) -> list[int]:
    """The numbers of the explorations whose descriptions are shown."""
    shown = [str(message["content"]) for message in messages]
    return [number for number in range(NUM) if any(f"[explored e{number}: " in text for text in shown)]


def evicted(
    meter: ContextMeter, state: SessionState, most: int, low: int
) -> tuple[EvictionPlan, EvictionPlan, SessionState]:
    """The plan without the very last resort, the plan with it, and the state, as the server makes them.

    What was served is known, so next to nothing is set aside for what a template might add.
    """
    counted = meter.counted()
    meter.calibrate(counted, counted.num_tokens)
    wanted = budget(most, low, policy="chain")
    plan = meter.plan(wanted, MEASURED)
    state = meter.carry_out(plan, state)
    before, _ = FITTING.let_users_go(meter.copied(), state, wanted, plan)
    after, state = FITTING.take_last_resorts(meter, state, wanted, plan)
    meter.check_integrity()
    state.check_integrity()
    return before, after, state


def kept_to(messages: list[Message], most: int, low: int) -> tuple[EvictionPlan, EvictionPlan, list[Message]]:
    meter = new_meter()
    before, after, state = evicted(meter, meter.follow(state_of(messages)), most, low)
    shown = render(state)
    assert after.num_after == meter.num_tokens
    assert not orphans(shown)
    return before, after, shown


def floor(messages: list[Message]) -> int:
    """Tokens that are left where all stages took what they can."""
    meter = new_meter()
    meter.follow(state_of(messages))
    return Chain().plan(meter.view, 0).num_after


def test_the_oldest_go_as_far_as_the_target_asks_and_the_plan_names_the_stage() -> None:
    least = floor(explored())
    before, plan, shown = kept_to(explored(), least - 20, least - 60)
    assert before.unmet is not None, "the control: without them the budget breaks"
    assert plan.unmet is None
    assert least - 70 < plan.num_after <= least - 60
    dropped = [step for step in plan.steps if step.level is Level.DESCRIPTIONS]
    assert plan.steps[-len(dropped) :] == tuple(dropped)
    assert 1 < len(dropped) < NUM
    assert described(shown) == [*range(len(dropped), NUM)]
    assert plan.stages[:-1] == before.stages
    assert plan.stages[-1] == Stage("descriptions", sum(step.num_tokens for step in dropped))
    assert sum(stage.num_tokens for stage in plan.stages) == plan.num_before - plan.num_after


def test_where_the_low_watermark_is_out_of_reach_they_go_as_far_as_the_budget_asks() -> None:
    least = floor(explored())
    _, plan, shown = kept_to(explored(), least - 20, 1)
    assert plan.unmet is None
    assert least - 30 < plan.num_after <= least - 20
    assert described(shown)


def test_none_goes_where_all_are_not_enough_and_the_stage_says_so() -> None:
    before, plan, shown = kept_to(explored(), 12, 6)
    assert plan.unmet is not None
    assert plan.stages == (*before.stages, Stage("descriptions", reason=NOT_ENOUGH))
    assert plan.omissions == before.omissions
    assert described(shown) == [*range(NUM)]


def test_what_users_said_goes_before_them() -> None:
    messages = explored(num_said=30)
    least = floor(messages)
    _, plan, shown = kept_to(messages, least - 20, least - 60)
    assert plan.stages[-1].policy == "user_messages"
    assert plan.stages[-1].num_tokens
    assert described(shown) == [*range(NUM)]
    _, both, shown = kept_to(messages, 100, 80)
    assert both.unmet is None
    assert [stage.policy for stage in both.stages if stage.num_tokens][-2:] == ["user_messages", "descriptions"]
    assert described(shown) == [*range(NUM - len(described(shown)), NUM)]
    assert weigh(shown) <= 100


@pytest.mark.parametrize("num_said", [0, 30])
def test_a_plan_that_keeps_the_budget_without_them_is_the_very_same(num_said: int) -> None:
    """Each target in turn, from one that old results meet down to one that nothing meets."""
    messages = explored(num_said=num_said)
    num_same = num_more = 0
    for most in range(floor(messages) + 300, 10, -37):
        before, plan, _ = kept_to(messages, most, most - 5)
        if before.unmet is None:
            assert plan == before
            num_same += 1
        else:
            assert plan.stages[:-1] == before.stages
            num_more += plan.unmet is None
    assert num_same > 5
    assert num_more > 1


@settings(deadline=None, max_examples=80)
@given(histories(max_steps=24), st.integers(1, 150), st.floats(0.2, 1))
def test_any_history_is_kept_to_its_budget_or_keeps_its_descriptions(
    messages: list[Message], most: int, share: float
) -> None:
    meter = new_meter()
    state = meter.follow(state_of(messages))
    low = max(1, int(most * share))
    before, plan, state = evicted(meter, state, most, low)
    left = meter.view.editor().noted()
    assert set(orphans(render(state))) <= set(orphans(messages))
    if before.unmet is None:
        assert plan == before
    elif plan.unmet is not None:
        assert plan.omissions == before.omissions
        least = plan_descriptions(meter.view, 0)
        assert not least.changes
    else:
        assert plan.stages[-1].policy == "descriptions"
        assert [stage.policy for stage in plan.stages].count("descriptions") == 1
        assert plan.num_after + meter.reserve <= most
        gone = {step.what for step in plan.steps if step.level is Level.DESCRIPTIONS}
        assert all(int(what.rsplit(" ", 1)[1]) < entry for what in gone for entry in left)
