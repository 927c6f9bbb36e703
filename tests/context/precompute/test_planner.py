"""Foresight: what is planned at the end of a turn is what comes, or it is not used. Nothing else changes."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from acmserve.context.edits import fragments as edits
from acmserve.context.edits.cut import cut_messages
from acmserve.context.eviction.clear_thinking import ClearThinking
from acmserve.context.eviction.clear_tool_uses import ClearToolUses
from acmserve.context.eviction.context_meter import ContextMeter
from acmserve.context.eviction.planned_eviction import TurnStats, takes_what_is_needed
from acmserve.context.precompute.candidate import Reason
from acmserve.context.precompute.clearing import pending_uses
from acmserve.context.precompute.planner import (
    MAX_FOLDS,
    View,
    heal,
    kept_plan,
    plan_next_eviction,
    plan_precompute,
    prepare_mark,
    ready_plan,
)
from acmserve.context.session.history import adopt
from acmserve.context.session.low_watermark import Measured
from acmserve.context.session.render import render
from acmserve.context.session.state import SessionState
from acmserve.context.transcript.message import Message
from tests.context.eviction.test_context_meter import (
    POLICIES,
    SpaceWords,
    budget,
    new_meter,
    resent,
    state_of,
    worked,
)
from tests.support.context.annotated import Story, histories
from tests.support.context.valid_chat import check_valid
from tests.support.fuzzing import FACTOR

WORDS = SpaceWords()
MEASURED = Measured(growth=20.0, prefill_rate=1000.0)


def view(wanted: Any = None, **rest: Any) -> View:
    return View(wanted, None if wanted is None else MEASURED, **rest)


def look(meter: ContextMeter, state: SessionState, seen: View) -> dict[Reason, Any]:
    """What is foreseen, one of each kind."""
    return {item.reason: item for item in plan_precompute(meter, state, seen, WORDS)}


def serve(meter: ContextMeter) -> None:
    """The prompt has as many tokens as were counted, so that little is set aside for the next one."""
    counted = meter.counted()
    meter.calibrate(counted, counted.num_tokens)


def more(messages: list[Message], num_words: int = 30) -> list[Message]:
    return [*messages, {"role": "assistant", "content": "Well ."}, {"role": "user", "content": "w " * num_words}]


@settings(deadline=None, max_examples=50 * FACTOR)
@given(histories(), st.data())
def test_a_kept_plan_is_used_where_it_applies_and_is_under_the_budget(messages: list[Message], data: Any) -> None:
    """Turn by turn, with rewinds and folds between: the rules of `kept_plan`, written down a second time."""
    meter, state = new_meter(), state_of([])
    wanted = budget(data.draw(st.integers(30, 200)), policy=data.draw(st.sampled_from(POLICIES)))
    planned: tuple[list[Message], Any] = ([], None)
    kept: Any = None
    for _ in range(5):
        end = data.draw(st.integers(0, len(messages)))
        part = resent(messages[:end])
        if part and data.draw(st.integers(0, 5)) == 0:
            part[-1] = {**part[-1], "content": "Something else ."}
        state = meter.follow(adopt(state, part).state)
        if meter.exceeds(wanted):
            plan, (known, before) = kept_plan(meter, state, wanted), planned
            if plan is not None:
                assert part[: len(known)] == known
                assert state.omissions == before
                assert plan.num_after + meter.reserve <= wanted.max_tokens
                needed = takes_what_is_needed(meter.view.with_omissions(before), plan.omissions)
                assert not (needed and "cwl" in wanted.policy)
                check_valid(render(state), render(replace(state, omissions=plan.omissions)))
            state = meter.carry_out(plan or meter.plan(wanted, MEASURED), state)
            meter.check_integrity()
            if plan is not None:
                assert meter.num_tokens == plan.num_after
        num_tokens, fresh = meter.num_tokens, meter.plan(wanted, MEASURED)
        candidates = plan_precompute(meter, state, view(wanted), WORDS)
        meter.check_integrity()
        assert (meter.num_tokens, meter.plan(wanted, MEASURED)) == (num_tokens, fresh), "looking changes nothing"
        reasons = [item.reason for item in candidates]
        assert all(item.num_open < item.num_new or item.num_open == 0 for item in candidates), "there is work in each"
        assert (
            reasons in ([Reason.EVICTION],) if meter.turn_stats.kept is not None else reasons in ([], [Reason.ACT_END])
        )
        if meter.turn_stats.kept is not None:
            # A plan that stays is that of an earlier turn: what came since may be exchanged.
            planned = (part, state.omissions) if meter.turn_stats.kept is not kept else planned
            kept = meter.turn_stats.kept
            check_valid(render(state), render(candidates[0].state))


def turns(num_turns: int, num_words: int = 30) -> list[list[Message]]:
    """A history at the end of each of its turns, about `num_words` tokens apart."""
    history: list[Message] = [{"role": "system", "content": "Be brief ."}]
    ends = []
    for number in range(num_turns):
        history = [*history, {"role": "user", "content": f"Say {number} ."}]
        history = [*history, {"role": "assistant", "content": f"s{number} " * num_words}]
        ends.append(history)
    return ends


def test_the_eviction_that_was_foreseen_is_the_one_that_comes_and_grows_by_what_is_new() -> None:
    meter, wanted = new_meter(), budget(600, 300, "recency")
    state, plans, contexts, num_used = state_of([]), [], [], 0
    for history in turns(50):
        state = meter.follow(adopt(state, [*history, {"role": "user", "content": "Go on ."}]).state)
        if meter.exceeds(wanted):
            plan = kept_plan(meter, state, wanted)
            assert plan is not None, "every eviction was foreseen"
            assert plan.omissions == plans[-1].omissions
            assert abs(plan.num_after - 300) <= 80, "it ends about where one that is planned now would"
            state = meter.carry_out(plan, state)
            assert render(state)[: len(contexts[-1])] == contexts[-1]
            plans, contexts, num_used = [], [], num_used + 1
        state = meter.follow(adopt(state, history).state)
        if (item := look(meter, state, view(wanted)).get(Reason.EVICTION)) is not None:
            plans.append(item.state)
            contexts.append(render(item.state))
            assert item.state.omissions == plans[0].omissions, "the plan is made once"
            assert contexts[-1][: len(contexts[0])] == contexts[0]
    assert num_used >= 5


def test_below_the_prepare_mark_nothing_is_foreseen() -> None:
    meter, state = new_meter(), state_of(worked(6))
    meter.follow(state)
    serve(meter)
    meter.turn_stats = turn_stats_of([20] * 40)
    for max_tokens, is_near in ((meter.num_tokens + 200, False), (meter.num_tokens + 30, True)):
        wanted = budget(max_tokens, 100, "recency")
        assert prepare_mark(meter, wanted, MEASURED) == max_tokens - meter.reserve - 3 * MEASURED.growth
        assert (meter.num_tokens > prepare_mark(meter, wanted, MEASURED)) is is_near
        assert (Reason.EVICTION in look(meter, state, view(wanted))) is is_near


def turn_stats_of(growths: list[int]) -> TurnStats:
    turn_stats, num_written = TurnStats(), 0
    for growth in (10_000, *growths):
        num_written += growth
        turn_stats.end_turn(num_written)
    return turn_stats


def test_a_turn_that_was_large_moves_the_prepare_mark_by_an_eviction_at_most() -> None:
    meter = new_meter()
    meter.follow(state_of(worked(6)))
    serve(meter)
    wanted = budget(2000, 1000, "recency")
    meter.turn_stats = turn_stats_of([*[10] * 40, 300])
    window = math.ceil(2 * meter.turn_stats.growth(0))
    assert prepare_mark(meter, wanted, MEASURED) == 2000 - meter.reserve - 300 - window
    meter.turn_stats = turn_stats_of([*[10] * 40, 1100, -1100])
    assert meter.turn_stats.largest_growth(0) == 1100, "a rewind is no growth"
    window = math.ceil(2 * meter.turn_stats.growth(0))
    assert prepare_mark(meter, wanted, MEASURED) == 2000 - meter.reserve - 1000 - window


def test_before_enough_turns_were_seen_a_large_one_may_come() -> None:
    meter = new_meter()
    meter.follow(state_of(worked(6)))
    serve(meter)
    meter.turn_stats = turn_stats_of([10] * 5)
    assert prepare_mark(meter, budget(2000, 1500, "recency"), MEASURED) == 2000 - meter.reserve - 500 - 20
    assert meter.turn_stats.largest_growth(8) == 10


def test_close_to_the_budget_any_plan_that_makes_room_is_kept() -> None:
    """An open act keeps most of what should go. With one turn left there is nothing to wait for."""
    story = Story().user("w " * 300)
    for number in range(2):
        story.expl(f"find{number}", ("grep", "found " * 20))
    story.start("long", text="w " * 120)
    meter = new_meter()
    state = meter.follow(state_of(story.messages))
    serve(meter)
    for room, is_planned in ((35, False), (15, True)):
        wanted = budget(meter.num_tokens + meter.reserve + room, 300)
        meter.turn_stats.kept = None
        plan_precompute(meter, state, view(wanted), WORDS)
        assert (meter.turn_stats.kept is not None) is is_planned


def test_a_policy_that_asks_a_model_is_not_foreseen() -> None:
    meter, state = new_meter(), state_of(worked(6))
    meter.follow(state)
    assert look(meter, state, view(budget(200, 100, "compact"))) == {}


def prepared(wanted: Any, messages: list[Message]) -> tuple[ContextMeter, SessionState]:
    meter = new_meter()
    state = meter.follow(state_of(messages))
    serve(meter)
    plan_precompute(meter, state, view(wanted), WORDS)
    assert meter.turn_stats.kept is not None
    return meter, state


def test_an_eviction_that_is_ready_comes_up_to_two_turns_early() -> None:
    messages = worked(6)
    meter, state = prepared(budget(1080, 700, "recency"), messages)
    kept = meter.turn_stats.kept
    assert kept is not None

    def early(num_left: float, num_ready: int, new: list[Message]) -> Any:
        """The plan of a turn that leaves so many tokens of the budget, for a context of so many entries computed."""
        grown = meter.follow(adopt(state, new).state)
        wanted = budget(math.floor(meter.num_tokens + meter.reserve + num_left), 700, "recency")
        meter.turn_stats.kept, meter.turn_stats.num_ready = replace(kept, budget=wanted), num_ready
        assert kept_plan(meter, grown, wanted) is not None
        return ready_plan(meter, grown, wanted)

    asked = [*messages, {"role": "user", "content": "Go on ."}]
    meter.turn_stats.end_turn(meter.token_counts.num_tokens + 40)
    growth = meter.turn_stats.growth(0.0)
    assert growth > 0
    assert early(2 * growth - 2, len(messages), asked) is not None
    assert early(2 * growth + 2, len(messages), asked) is None, "further from the budget"
    assert early(0, 0, asked) is None, "not computed"
    assert early(0, len(messages), more(messages)) is None, "an answer came since"


def test_what_makes_a_kept_plan_void() -> None:
    messages, wanted = worked(6), budget(1080, 700, "recency")
    meter, state = prepared(wanted, messages)

    def plan(new: SessionState, asked: Any = wanted) -> Any:
        return kept_plan(meter, meter.follow(new, keep_active=False), asked)

    grown = adopt(state, more(messages)).state
    assert plan(grown) is not None
    assert plan(grown, budget(1081, 700, "recency")) is None, "another budget"
    assert plan(adopt(state, more(messages, 450)).state) is None, "what is new does not fit"
    cut = cut_messages(grown, 5, 6, WORDS).state
    assert plan(cut) is not None, "a name changes nothing"
    folded = edits.fold(cut, cut.fragments[0].fragment_id, "sculptor", WORDS)
    assert plan(folded) is None, "an edit"
    assert plan(edits.redact(cut, cut.fragments[0].fragment_id)) is None
    assert plan(edits.restore(folded, cut.fragments[0].fragment_id)) is not None
    assert plan(adopt(state, more(messages[:-2])).state) is None, "a rewind"
    assert plan(grown) is not None


def test_a_kept_plan_leaves_what_new_work_depends_on() -> None:
    story = Story()
    for number in range(8):
        story.expl(f"find{number}", ("grep", "found " * 20))
    meter, state = prepared(budget(420, 250), story.messages)
    story.start("do", "find0", text="w " * 60)
    meter.follow(adopt(state, story.messages).state)
    kept = meter.turn_stats.kept
    assert kept is not None
    assert takes_what_is_needed(meter.view.with_omissions(kept.before), kept.plan.omissions)
    assert kept_plan(meter, adopt(state, story.messages).state, budget(420, 250)) is None
    plan_precompute(meter, adopt(state, story.messages).state, view(budget(420, 250)), WORDS)
    assert meter.turn_stats.kept is not kept, "nobody computes on what will not come"


def test_an_act_that_starts_after_the_plan_does_not_void_it() -> None:
    """It may depend on unannotated work, so that is left where the rest is enough."""
    story = Story()
    for number in range(10):
        story.expl(f"find{number}", ("grep", "found " * 20)).act(f"do{number}", f"find{number}").say("w " * 8).user()
    wanted = budget(860, 700)
    meter, state = prepared(wanted, story.messages)
    story.start("new", "find9", text="w " * 80)
    state = meter.follow(adopt(state, story.messages).state)
    assert meter.exceeds(wanted)
    plan = kept_plan(meter, state, wanted)
    assert plan is not None
    assert plan.num_before - plan.num_after >= 160


def test_a_plan_that_takes_little_is_not_made_before_there_is_more() -> None:
    story, wanted = Story().user("w " * 300), budget(520, 300)
    story.expl("first", ("grep", "found " * 20))
    story.start("long", text="w " * 60)
    meter = new_meter()
    state = meter.follow(state_of(story.messages))
    serve(meter)
    assert meter.num_tokens > prepare_mark(meter, wanted, MEASURED)
    plan_precompute(meter, state, view(wanted), WORDS)
    assert meter.turn_stats.kept is None
    story.end("found nothing")
    state = meter.follow(adopt(state, story.messages).state)
    serve(meter)
    plan_precompute(meter, state, view(wanted), WORDS)
    assert meter.turn_stats.kept is not None


def test_a_plan_that_took_too_little_is_exchanged_when_there_is_more() -> None:
    story, wanted = Story().user("w " * 200), budget(450, 250)
    story.expl("first", ("grep", "found " * 110))
    story.start("long", text="w " * 25)
    meter, state = prepared(wanted, story.messages)
    first = meter.turn_stats.kept
    assert first is not None
    assert first.plan.num_after > first.plan.target
    story.end("found nothing")
    state = meter.follow(adopt(state, story.messages).state)
    serve(meter)
    plan_precompute(meter, state, view(wanted), WORDS)
    second = meter.turn_stats.kept
    assert second is not None
    assert second.plan.num_after < first.plan.num_after - 20
    plan_precompute(meter, state, view(wanted), WORDS)
    assert meter.turn_stats.kept is second


def test_where_the_next_turn_may_end_its_act_and_need_the_room_that_eviction_is_foreseen() -> None:
    """An act and what it uses fill the context: nothing can be taken before it ends, and then all of it is."""
    story = Story().expl("find", ("read", "found " * 200))
    story.start("do", "find", text="w " * 30).step(("edit", "w " * 40)).step(("bash", "w " * 20), answered=False)
    meter = new_meter()
    state = meter.follow(state_of(story.messages))
    serve(meter)
    wanted = budget(meter.num_tokens + meter.reserve + 15, 40)
    found = look(meter, state, view(wanted))
    assert meter.turn_stats.kept is None
    candidates = found[Reason.ACT_END]
    assert candidates.probability < 1
    assert Reason.ACT_END not in look(meter, state, view(replace(wanted, max_tokens=wanted.max_tokens + 20)))
    came = [*story.messages, {"role": "tool", "tool_call_id": f"call_{story.num_calls}", "content": "w " * 20}]
    later = Story(prologue=False)
    later.scope, later.num_calls = story.scope, story.num_calls
    came += later.end(text="That was all .").messages
    state = meter.follow(adopt(state, came).state)
    assert meter.exceeds(wanted)
    assert kept_plan(meter, state, wanted) is None
    state = meter.carry_out(meter.plan(wanted, MEASURED), state)
    known, shown = render(candidates.state), render(state)
    assert known[:-1] == shown, "the step that ran goes, too"
    assert candidates.num_open == meter.token_counts.size(len(story.messages) - 1).total


def test_a_clearing_that_will_be_worth_it_once_results_slide_is_foreseen_before_it_is() -> None:
    """Its trigger is exceeded, and `clear_at_least` met when two more results have come."""
    story = tool_story(5, is_open=False)
    for size in (200, 10):
        story.step(("read", "r " * size))
    meter, state = new_meter(), state_of(story.messages)
    state = meter.follow(state)
    wanted = [ClearToolUses(50, None, keep=3, clear_at_least=250)]
    assert meter.edit(wanted, state) is state
    [candidates] = plan_precompute(meter, state, View(None, None, wanted), WORDS)
    assert (candidates.reason, candidates.num_open) == (Reason.CLEARING, 0)
    for number in range(2):
        assert meter.edit(wanted, state) is state, number
        story.step(("read", "r " * 20))
        state = meter.follow(adopt(state, story.messages).state)
    cleared = meter.edit(wanted, state)
    known, came = render(candidates.state), render(cleared)
    assert known == came[: len(known)]


def tool_story(num_uses: int, *, is_open: bool) -> Story:
    story = Story()
    for _ in range(num_uses):
        story.step(("read", "r " * 30))
    return story.step(("read", "r " * 30), ("grep", "g " * 10), answered=False) if is_open else story


@pytest.mark.parametrize("is_open", [False, True], ids=["an answer ends the turn", "calls end the turn"])
@pytest.mark.parametrize("trigger", ["tokens", "uses"])
def test_the_clearing_that_was_foreseen_is_the_one_that_comes(is_open: bool, trigger: str) -> None:
    """The results that come count in `keep`, so the clearing is the vendor's own to the byte."""
    story = tool_story(8, is_open=is_open)
    tokens, uses = (100, None) if trigger == "tokens" else (None, 8 if is_open else 7)
    wanted = (ClearToolUses(tokens, uses, keep=3), ClearThinking())
    meter = new_meter()
    state = meter.follow(state_of(story.messages))
    assert pending_uses(meter.graph.outline) == 2 * is_open
    candidates = look(meter, state, view(edits=wanted))[Reason.CLEARING]
    assert candidates.probability == 1
    came = list(story.messages)
    if is_open:
        calls = came[-1]["tool_calls"]
        came += [{"role": "tool", "tool_call_id": call["id"], "content": "r " * 30} for call in calls]
    came.append({"role": "user", "content": "And ?"})
    state = meter.follow(adopt(state, came).state)
    assert meter.edit(wanted, state).omissions == candidates.state.omissions
    assert len(candidates.state.omissions.entries) == (7 if is_open else 5)


def test_a_trigger_that_is_near_is_foreseen_before_it_is_reached() -> None:
    meter, state = new_meter(), state_of(tool_story(8, is_open=False).messages)
    state = meter.follow(state)
    wanted = [ClearToolUses(meter.num_tokens + 30, None, keep=3)]
    seen = View(budget(10_000), MEASURED, wanted)
    [candidates] = plan_precompute(meter, state, seen, WORDS)
    assert (candidates.reason, candidates.probability < 1) == (Reason.CLEARING, True)
    assert meter.edit(wanted, state) is state
    assert plan_precompute(meter, state, replace(seen, edits=[ClearToolUses(meter.num_tokens + 50)]), WORDS) == ()


@pytest.mark.parametrize("is_open", [False, True], ids=["an answer ends the turn", "calls end the turn"])
def test_of_a_clearing_that_is_further_off_what_is_sure_is_foreseen(is_open: bool) -> None:
    """Nobody knows what the last results in `keep` are when the trigger is reached. All in front of them stays."""
    story = tool_story(8, is_open=is_open)
    meter = new_meter()
    state = meter.follow(state_of(story.messages))
    meter.turn_stats = turn_stats_of([*[10] * 40, 200])
    meter.turn_stats.end_turn(meter.token_counts.num_tokens)
    growth = meter.turn_stats.growth(0.0)
    wanted = [ClearToolUses(meter.num_tokens + math.floor(2 * growth) + 100, None, keep=4, clear_at_least=150)]
    [candidates] = plan_precompute(meter, state, view(edits=wanted), WORDS)
    assert (candidates.reason, candidates.num_open > 0) == (Reason.CLEARING, True)
    assert 0 < candidates.num_open < candidates.num_new
    come = list(story.messages)
    if is_open:
        come += [{"role": "tool", "tool_call_id": call["id"], "content": "r"} for call in come[-1]["tool_calls"]]
    later = Story(prologue=False)
    later.num_calls = 100
    for _ in range(3):
        later.step(("read", "r " * 100))
    come += later.messages
    state = meter.follow(adopt(state, come).state)
    cleared = meter.edit(wanted, state)
    assert cleared.omissions != state.omissions
    known, came = render(candidates.state), render(cleared)
    num_same = next(n for n, (mine, its) in enumerate(zip(known, came, strict=False)) if mine != its)
    num_behind = sum(meter.token_counts.size(n).total for n in range(num_same, len(known)))
    assert abs(num_behind - candidates.num_open) <= 10, (num_same, len(known), num_behind)


def test_fragments_are_foreseen_folded_the_newest_first() -> None:
    messages = [{"role": "user", "content": f"part {n} . " * 30} for n in range(6)]
    meter, state = new_meter(), state_of(messages)
    ids = []
    for index in range(5):
        state = cut_messages(state, index, index + 1, WORDS).state
        ids.append(state.fragments[-1].fragment_id)
    state = edits.fold(state, ids[4], "sculptor", WORDS)
    meter.follow(state)
    found = plan_precompute(meter, state, view(), WORDS)
    assert [item.reason for item in found] == [Reason.FOLD] * MAX_FOLDS
    assert [item.state for item in found] == [edits.fold(state, ids[n], "sculptor", WORDS) for n in (3, 2, 1)]
    assert [item.probability for item in found] == [0.5, 0.25, 0.125]
    assert found[0].num_new < found[1].num_new < found[2].num_new


def test_a_short_fragment_that_a_fold_would_lengthen_is_passed_over() -> None:
    state = cut_messages(state_of([{"role": "user", "content": "Hi ."}]), 0, 1, WORDS).state
    meter = new_meter()
    meter.follow(state)
    assert plan_precompute(meter, state, view(), WORDS) == ()


def test_a_context_with_moved_kv_is_healed_unless_it_is_about_to_change() -> None:
    meter, state = new_meter(), state_of(worked(6))
    state = meter.follow(state)
    serve(meter)
    assert heal(state, 0) == ()
    [healed] = heal(state, 40)
    assert (healed.state, healed.reason, healed.num_new) == (state, Reason.AS_IT_IS, 40)
    assert look(meter, state, view(num_stale=40)) == {Reason.AS_IT_IS: healed}
    near = look(meter, state, view(budget(meter.num_tokens + 10, 100, "recency"), num_stale=40))
    assert near[Reason.AS_IT_IS].probability == pytest.approx(1 - near[Reason.EVICTION].probability)
    over = look(meter, state, view(budget(meter.num_tokens - 10, 100, "recency"), num_stale=40))
    assert list(over) == [Reason.EVICTION]


@settings(deadline=None, max_examples=60)
@given(histories(), st.integers(20, 200), st.sampled_from(POLICIES))
def test_a_plan_ahead_is_valid_and_takes_nothing_that_is_needed(
    messages: list[Message], max_tokens: int, policy: str
) -> None:
    meter = new_meter()
    state = meter.follow(state_of(messages))
    plan = plan_next_eviction(
        meter, budget(max_tokens, policy=policy), MEASURED, state.omissions, pending_uses(meter.graph.outline)
    )
    check_valid(messages, render(replace(state, omissions=plan.omissions)))
    if policy in ("cwl", "pi-cwl"):
        assert not takes_what_is_needed(meter.view.with_omissions(state.omissions), plan.omissions)
    plan.omissions.check_integrity()
