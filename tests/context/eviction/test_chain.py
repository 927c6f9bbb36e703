"""The policy `chain` keeps a budget for every style of agent, and says which of its stages did what."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from acmserve.context.eviction.budget_json import budget_value, parse_budget
from acmserve.context.eviction.chain import NO_MARKS, REACHED, Chain, with_stage
from acmserve.context.eviction.compact import HEAD
from acmserve.context.eviction.plan import EvictionPlan, Level, Stage
from acmserve.context.session.budget import DEFAULT_POLICY
from acmserve.context.session.history import adopt
from acmserve.context.session.render import render
from acmserve.context.session.state import SessionState
from acmserve.context.storage.codecs.state import state_from, state_value
from acmserve.context.transcript.message import Message
from acmserve.context.transcript.observations import AUTO, ObservationRule
from acmserve.context.transcript.omissions import PLACEHOLDER
from acmserve.errors import InvalidRequest
from tests.context.eviction.test_context_meter import MEASURED, budget, new_meter, resent, state_of, worked
from tests.support.context.agent_traces import STYLES, AgentTrace
from tests.support.context.conversation import KEY
from tests.support.context.valid_chat import orphans

MOST, LOW = 900, 450


class Served:
    """A session of which every prompt is kept to a budget, as the server does it."""

    def __init__(self, wanted: Any, rule: ObservationRule = AUTO) -> None:
        self.budget, self.rule = wanted, rule
        self.state, self.meter = SessionState(digest_key=KEY), new_meter()
        self.shown: list[Message] = []
        self.plans: list[EvictionPlan] = []

    def turn(self, messages: list[Message]) -> EvictionPlan | None:
        """Take in a history, evict where it is due, and serve the prompt."""
        before, plan = self.shown, None
        state = self.meter.follow(adopt(self.state, resent(messages), self.rule).state)
        if self.meter.exceeds(self.budget):
            plan = self.meter.plan(self.budget, MEASURED)
            state = self.meter.carry_out(plan, state)
            self.plans.append(plan)
        self.state, self.shown = state, render(state)
        self.meter.calibrate(self.meter.counted(), self.meter.num_tokens)
        self.meter.check_integrity()
        if plan is None:
            assert self.shown[: len(before)] == before, "the prompt did not grow by appending"
        return plan

    def num_protected(self) -> int:
        """Tokens that no policy may take: system, users, the last step."""
        counts, outline = self.meter.token_counts, self.meter.graph.outline
        num_kept = counts.num_tokens - counts.omittable_between(0, len(outline))
        return num_kept + counts.omittable_between(outline.last_step(), len(outline))


def check_shown(shown: list[Message], trace: AgentTrace) -> None:
    """Every question is there to the byte, no call is alone, and no result stands without what it answers."""
    assert [m for m in shown if m in trace.asked] == trace.asked
    assert not orphans(shown)
    for before, message in pairwise(shown):
        if message["role"] == "user" and message not in trace.asked:
            assert before["role"] == "assistant", "an observation stands without its action"


@settings(deadline=None, max_examples=12)
@given(st.sampled_from(sorted(STYLES)), st.integers(0, 10_000))
def test_a_budget_is_kept_for_a_hundred_turns_whatever_the_style(style: str, seed: int) -> None:
    trace, served = AgentTrace(style, seed), Served(budget(MOST, LOW, policy="chain"))
    for _ in range(100):
        trace.grow()
        plan = served.turn(trace.messages)
        check_shown(served.shown, trace)
        num_least = served.num_protected() + served.meter.reserve
        assert (plan is None or plan.unmet is None) or num_least > MOST
        assert served.meter.num_tokens <= MOST or num_least > MOST
        if plan is not None:
            assert plan.num_after == served.meter.num_tokens
            assert plan.num_after <= LOW or served.num_protected() > LOW
    assert 1 < len(served.plans) < 60


@pytest.mark.parametrize("style", [style for style in STYLES if style != "tools"])
def test_without_observations_the_budget_of_such_an_agent_breaks(style: str) -> None:
    """The control: where results count as turns of the user, nothing of them may go."""
    trace, served = (
        AgentTrace(style, 7, question_share=0),
        Served(budget(MOST, LOW, policy="chain"), ObservationRule("off")),
    )
    unmet = 0
    for _ in range(40):
        trace.grow()
        plan = served.turn(trace.messages)
        unmet += plan is not None and plan.unmet is not None
    assert unmet > 10


def test_the_default_budget_is_a_chain_and_has_the_options_of_its_stages() -> None:
    assert DEFAULT_POLICY == "chain"
    made = parse_budget({"max_tokens": 500, "keep": 1, "exclude_tools": ["observation"]}, 1000)
    assert made.policy == "chain"
    assert parse_budget(budget_value(made), 1000) == made
    with pytest.raises(InvalidRequest, match="grep is named as an intermediate tool"):
        parse_budget({"max_tokens": 500, "bulk_tools": ["grep"], "intermediate_tools": ["grep"]}, 1000)


def test_each_stage_goes_only_as_far_as_those_before_did_not() -> None:
    """Three targets: results are enough, steps are needed, and nothing is left that may go."""
    trace = AgentTrace("fenced", 3, question_share=0)
    for _ in range(12):
        trace.grow()
    meter = new_meter()
    meter.follow(state_of(trace.messages))
    num_all = meter.num_tokens
    little = Chain().plan(meter.view, num_all - 30)
    assert little.stages[0] == Stage("cwl", reason=NO_MARKS)
    assert little.stages[1].num_tokens == num_all - little.num_after >= 30
    assert little.stages[2] == Stage("recency", reason=REACHED)
    assert {step.level for step in little.steps} == {Level.CLEAR}
    much = Chain().plan(meter.view, 150)
    assert [stage.policy for stage in much.stages if stage.num_tokens] == ["clear_tool_uses", "recency"]
    assert sum(stage.num_tokens for stage in much.stages) == much.num_before - much.num_after
    assert much.num_after <= 150
    least = Chain().plan(meter.view, 0)
    assert least.unmet is not None
    assert least.unmet.num_over == least.num_after > 0


def test_marked_episodes_go_first_and_alone_where_they_are_enough() -> None:
    meter = new_meter()
    state = meter.follow(state_of(worked()))
    plan = Chain().plan(meter.view, meter.num_tokens - 60)
    assert [stage.policy for stage in plan.stages if stage.num_tokens] == ["cwl"]
    assert plan.omissions == meter.plan(budget(10_000, meter.num_tokens - 60, policy="cwl"), MEASURED).omissions
    whole = Chain().plan(meter.view, 60)
    assert whole.stages[0].num_tokens > 0
    assert sum(stage.num_tokens for stage in whole.stages) == whole.num_before - whole.num_after
    shown = render(meter.carry_out(whole, state))
    assert not orphans(shown)


def test_a_summary_behind_the_other_stages_is_one_plan_with_them() -> None:
    """Notes of evicted episodes are left when all steps are gone: a summary takes their place."""
    meter = new_meter()
    state = meter.follow(state_of(worked(12)))
    plan = Chain().plan(meter.view, 0)
    state = meter.carry_out(plan, state)
    compaction = meter.compaction(0, 5)
    assert compaction is not None
    done = meter.summarized(compaction, "All found .")
    joined = with_stage(plan, "compact", done)
    assert joined.stages[-1].policy == "compact"
    assert joined.num_before - joined.num_after == sum(stage.num_tokens for stage in joined.stages)
    shown = render(meter.carry_out(joined, state))
    assert [m["content"] for m in shown if HEAD in str(m["content"])] == [f"{HEAD}\nAll found ."]
    assert with_stage(plan, "compact", None, "too short").stages[-1] == Stage("compact", reason="too short")


def test_a_judged_message_keeps_its_class_and_the_file_has_it() -> None:
    """Another rule holds for what comes then. What was evicted stays so, to the byte."""
    trace, served = AgentTrace("react", 5, question_share=0), Served(budget(MOST, LOW, policy="chain"))
    for _ in range(30):
        trace.grow()
        served.turn(trace.messages)
    assert served.state.observations
    read = state_from(state_value(served.state), "a file")
    assert read.observations == served.state.observations
    assert render(read) == served.shown
    before = served.shown
    off = adopt(served.state, resent(trace.messages), ObservationRule("off")).state
    assert render(off) == before
    trace.grow()
    later = adopt(off, resent(trace.messages), ObservationRule("off")).state
    assert later.observations == served.state.observations
    assert render(later)[: len(before)] == before


def test_a_cleared_observation_leaves_its_action_and_a_placeholder() -> None:
    trace = AgentTrace("terminal", 2, question_share=0)
    for _ in range(8):
        trace.grow()
    meter = new_meter()
    state = meter.follow(state_of(trace.messages))
    shown = render(meter.carry_out(meter.plan(budget(10_000, 1, policy="clear_tool_uses"), MEASURED), state))
    assert len(shown) == len(trace.messages)
    cleared = [index for index, message in enumerate(shown) if message["content"] == PLACEHOLDER]
    assert cleared == [3, 5, 7, 9, 11]
    assert all(shown[index]["role"] == "user" for index in cleared)
    kept = meter.plan(budget(10_000, 1, policy="clear_tool_uses", exclude_tools=["observation"]), MEASURED)
    assert not kept.changes
