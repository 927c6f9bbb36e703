"""The running account of a session agrees with one that is built anew, whatever the client sends next."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from acmserve.context.edits import fragments as edits
from acmserve.context.edits.cut import cut_messages
from acmserve.context.episodes.episode import Episode
from acmserve.context.eviction import context_meter
from acmserve.context.eviction.budget_json import parse_budget
from acmserve.context.eviction.context_meter import ContextMeter
from acmserve.context.eviction.protected import is_evicted
from acmserve.context.session.history import adopt
from acmserve.context.session.low_watermark import Measured
from acmserve.context.session.render import render
from acmserve.context.session.state import SessionState
from acmserve.context.transcript.message import Message
from acmserve.context.transcript.omissions import Omissions
from acmserve.context.transcript.parts import Parts, read_parts
from acmserve.context.transcript.template_rules import Overheads
from acmserve.errors import IntegrityError, InvalidRequest
from tests.support.context.annotated import Story, count, histories
from tests.support.context.conversation import KEY
from tests.support.context.valid_chat import check_valid, orphans

MEASURED = Measured(growth=20.0, prefill_rate=1000.0, move_rate=10_000.0)
POLICIES = ("chain", "cwl", "pi-cwl", "recency", "clear_tool_uses")


class SpaceWords:
    """A token is a word between spaces, as in the stories."""

    def starts(self, text: str) -> list[int]:
        return list(range(len(text.split())))


def new_meter() -> ContextMeter:
    return ContextMeter(SpaceWords(), Overheads(2, 3, 2))


def budget(max_tokens: int, low: int | str = "auto", policy: str = "cwl", **options: Any) -> Any:
    value = {"max_tokens": max_tokens, "low_watermark": low, "policy": policy} | options
    return parse_budget(value, window=1_000_000)


def state_of(messages: list[Message]) -> SessionState:
    return adopt(SessionState(digest_key=KEY), messages).state


def resent(messages: list[Message]) -> list[Message]:
    """The same history as other objects."""
    return [dict(message) for message in messages]


def waiting(meter: ContextMeter) -> list[Episode]:
    """The ended episodes of which something is left."""
    graph = meter.graph
    return [episode for episode in graph.live.values() if not is_evicted(episode, meter.omissions)]


def evicted(meter: ContextMeter, state: SessionState, wanted: Any) -> SessionState:
    state = meter.follow(state)
    return meter.carry_out(meter.plan(wanted, MEASURED), state)


def worked(num_tasks: int = 6) -> list[Message]:
    story = Story()
    for number in range(num_tasks):
        story.expl(f"find{number}", ("grep", "found " * 20), ("read", "text " * 10))
        story.act(f"do{number}", f"find{number}", results=(("edit", "done " * 5),)).user()
    return story.messages


@settings(deadline=None)
@given(histories(), st.data())
def test_following_step_by_step_is_reading_at_once(messages: list[Message], data: st.DataObject) -> None:
    """Also when the history diverges on the way, and when things were taken out."""
    meter, state = new_meter(), SessionState(digest_key=KEY)
    for _ in range(4):
        end = data.draw(st.integers(0, len(messages)))
        part = resent(messages[:end])
        if part and data.draw(st.booleans()):
            part[-1] = {**part[-1], "content": "Something else ."}
        state = meter.follow(adopt(state, part).state)
        meter.check_integrity()
        if data.draw(st.booleans()):
            wanted = budget(data.draw(st.integers(1, 200)), policy=data.draw(st.sampled_from(POLICIES)))
            state = meter.carry_out(meter.plan(wanted, MEASURED), state)
        meter.check_integrity()
        check_valid(part, render(state))
        fresh = new_meter()
        fresh.follow(state)
        assert fresh.num_tokens == meter.num_tokens
        assert fresh.graph.outline.lines == meter.graph.outline.lines
        assert waiting(fresh) == waiting(meter)
        assert fresh.graph.scope() == meter.graph.scope()
        state.check_integrity()


def test_the_tokens_are_those_of_the_rendered_conversation() -> None:
    meter = new_meter()
    state = evicted(meter, state_of(worked()), budget(200, 150))
    weighed = new_meter()
    weighed.follow(state_of(render(state)))
    notes = sum(len(kept.notes) for kept in state.omissions.entries.values())
    assert notes > 0
    assert meter.num_tokens == weighed.num_tokens <= 150


def test_a_fold_and_its_restore_are_counted_again() -> None:
    meter, messages = new_meter(), worked(1)
    state = meter.follow(state_of(messages))
    before = meter.num_tokens
    cut = cut_messages(state, 5, 6, SpaceWords()).state
    folded = edits.fold(cut, cut.fragments[0].fragment_id, "sculptor", SpaceWords())
    meter.follow(folded)
    assert before - meter.num_tokens > 5
    meter.check_integrity()
    meter.follow(edits.restore(folded, cut.fragments[0].fragment_id))
    assert meter.num_tokens == before


def test_a_client_that_drops_the_reasoning_is_no_other_client() -> None:
    meter = new_meter()
    messages = Story().say("Well .", reasoning="I think a lot about it .").user().messages
    meter.follow(state_of(messages))
    without = [{k: v for k, v in message.items() if k != "reasoning"} for message in messages]
    meter.follow(adopt(state_of(messages), without).state)
    fresh = new_meter()
    fresh.follow(state_of(without))
    assert meter.num_tokens == fresh.num_tokens
    assert meter.graph.outline.lines == fresh.graph.outline.lines


def test_an_episode_that_a_rewind_opens_again_is_whole() -> None:
    """Its end is gone from the history, so it is active, and nothing may be missing from it."""
    messages = worked(2)
    meter = new_meter()
    state = evicted(meter, state_of(messages), budget(60, 50))
    assert state.omissions
    end = next(i for i, m in enumerate(messages) if "found find0" in str(m.get("tool_calls")))
    state = meter.follow(adopt(state, [*messages[:end], {"role": "user", "content": "Stop ."}]).state)
    assert meter.graph.active is not None
    assert meter.graph.active.name == "find0"
    assert len(render(state)) == end + 1
    meter.check_integrity()


def test_a_rewind_keeps_what_was_taken_out_before_it() -> None:
    messages = [*worked(6), {"role": "assistant", "content": "All done ."}, {"role": "user", "content": "And ?"}]
    meter = new_meter()
    state = evicted(meter, state_of(messages), budget(500, 400))
    num_gone = len(messages) - len(render(state))
    state = meter.follow(adopt(state, [*messages[:-1], {"role": "user", "content": "Now else ."}]).state)
    assert len(messages) - len(render(state)) == num_gone > 5


def test_calibration_learns_the_template_and_what_a_message_may_have_besides() -> None:
    meter = new_meter()
    meter.expect(100)
    state = meter.follow(state_of(worked(1)))
    counted = meter.counted()
    meter.calibrate(counted, counted.num_tokens + 40)
    assert meter.num_tokens == counted.num_tokens + 40
    meter.expect(100)
    assert meter.num_tokens == counted.num_tokens + 40
    meter.follow(adopt(state, [*worked(1), {"role": "user", "content": "a b"}, {"role": "user", "content": "c"}]).state)
    before, again = meter.reserve, meter.counted()
    meter.calibrate(again, again.num_tokens + 20)
    meter.follow(adopt(state, worked(1)[:3]).state)
    assert before == 4
    assert meter.reserve >= 10
    meter.check_integrity()


def test_what_is_set_aside_fits_into_the_budget_too() -> None:
    """Where the watermark is the budget itself, an eviction stops early enough for the reserve."""
    meter = new_meter()
    meter.follow(state_of(worked()))
    wanted = budget(300, 300)
    assert meter.exceeds(wanted)
    plan = meter.plan(wanted, MEASURED)
    assert plan.num_after + meter.reserve <= 300
    assert plan.unmet is None


@pytest.mark.parametrize("policy", POLICIES)
def test_a_budget_that_cannot_be_met_says_what_is_in_the_way(policy: str) -> None:
    meter = new_meter()
    meter.follow(state_of([{"role": "user", "content": "word " * 400}, *worked()]))
    plan = meter.plan(budget(300, policy=policy), MEASURED)
    assert plan.unmet is not None
    assert plan.unmet.num_over == plan.num_after + meter.reserve - 300
    assert sum(item.num_tokens for item in plan.unmet.protected) == plan.num_after


def test_a_policy_that_calls_a_model_is_planned_in_two_steps() -> None:
    meter = new_meter()
    state = meter.follow(state_of(worked()))
    with pytest.raises(InvalidRequest, match=r"budget\.policy: compact calls a model"):
        meter.plan(budget(300, policy="compact"), MEASURED)
    compaction = meter.compaction(200, 20)
    assert compaction is not None
    predicted = meter.summarized(compaction, None)
    plan = meter.summarized(compaction, "What was found is found .")
    assert plan.num_after < predicted.num_after <= 200
    meter.carry_out(plan, state)
    meter.check_integrity()
    assert meter.num_tokens == plan.num_after


def test_episodes_that_are_gone_are_forgotten_until_the_state_has_them_back() -> None:
    meter, state = new_meter(), state_of(worked())
    after = evicted(meter, state, budget(150, 100))
    assert meter.graph.num_forgotten > 0
    meter.follow(state)
    assert meter.graph.num_forgotten == 0
    meter.follow(after)
    meter.check_integrity()
    assert meter.graph.num_forgotten > 0
    assert orphans(render(after)) == []


def break_token_counts(meter: ContextMeter) -> None:
    meter.token_counts.extend([{"role": "user", "content": "more"}])


def break_tokens(meter: ContextMeter) -> None:
    meter.token_counts.remember(meter.omissions, 5)


def break_omissions(meter: ContextMeter) -> None:
    meter.omissions = Omissions(((3, 3),))


@pytest.mark.parametrize(
    ("damage", "said"),
    [
        (break_token_counts, r"meter: 17 entries, 17 rendered, 17 in the graph, 18 counted"),
        (break_tokens, r"meter: \d+ tokens remembered, \d+ counted"),
        (break_omissions, r"omissions: range \[3, 3\)"),
    ],
)
def test_a_broken_account_is_found(damage: Callable[[ContextMeter], None], said: str) -> None:
    meter = new_meter()
    meter.follow(state_of(worked(1)))
    meter.check_integrity()
    damage(meter)
    with pytest.raises(IntegrityError, match=said):
        meter.check_integrity()


def test_the_growth_of_the_turns_is_measured() -> None:
    meter, wanted = new_meter(), budget(1000)
    assert meter.measure(wanted, 100.0, None).growth == 50.0
    state = SessionState(digest_key=KEY)
    messages = worked(1)
    for number in range(4):
        messages.append({"role": "user", "content": "word " * (10 + number % 2)})
        state = meter.follow(adopt(state, messages).state)
        counted = meter.counted()
        meter.calibrate(counted, counted.num_tokens)
    measured = meter.measure(wanted, 100.0, None)
    assert measured.growth == pytest.approx((13 + 12 + 13) / 3)
    assert measured.growth_variation > 0
    assert measured.protected == meter.token_counts.between(0, 2)
    assert count("a b") == 2
    assert replace(measured, move_rate=5.0).move_rate == 5.0


def test_the_pieces_of_evictions_are_measured() -> None:
    """What one level of an episode freed. A turn is the piece as long as nothing was evicted."""
    meter, wanted = new_meter(), budget(500, 300)
    state = meter.follow(state_of(worked(12)))
    before = meter.measure(wanted, 100.0, None)
    plan = meter.plan(wanted, before)
    meter.carry_out(plan, state)
    measured = meter.measure(wanted, 100.0, None)
    sizes = [step.num_tokens for step in plan.steps]
    assert before.piece is None
    assert before.undershoot == before.overshoot
    assert len(sizes) > 5
    assert measured.piece == pytest.approx(sum(sizes) / len(sizes))
    assert measured.undershoot == pytest.approx(sum(size**2 for size in sizes) / sum(sizes) / 2)


def test_where_nothing_is_marked_all_but_the_beginning_may_go() -> None:
    """Else `auto` would stop right at the budget, and every turn would evict."""
    story = Story()
    for _ in range(60):
        story.step(("read", "r " * 40), text="Look .")
    meter, wanted = new_meter(), budget(1000)
    meter.follow(state_of(story.messages))
    measured = meter.measure(wanted, 100.0, None)
    assert measured.protected == meter.token_counts.between(0, 2)
    assert meter.watermark(wanted, measured) < 900


def test_a_users_message_where_an_observation_stood_is_read_anew() -> None:
    seen = {"role": "user", "content": "<output>" + "x " * 30 + "</output>"}
    said = {"role": "user", "content": "No, stop. " + "please do this instead " * 10}
    begun = [{"role": "user", "content": "Fix it"}, {"role": "assistant", "content": "I look. ```bash\nls\n```"}]
    state = state_of([*begun, seen])
    assert state.observations == {2}
    meter, fresh = new_meter(), new_meter()
    meter.follow(state)
    changed = adopt(state, [*begun, said, {"role": "assistant", "content": "ok"}, said]).state
    meter.follow(changed)
    fresh.follow(changed)
    assert changed.observations == frozenset()
    assert meter.graph.outline.lines == fresh.graph.outline.lines


def test_observations_are_looked_up_in_a_set(monkeypatch: pytest.MonkeyPatch) -> None:
    """A list of them would be gone through for each message."""
    state, asked = state_of(Story().say("Run ls .").user("a b c").messages), list[Collection[int]]()
    last = len(state.entries) - 1
    entries = (*state.entries[:last], replace(state.entries[last], is_observation=True))

    def noted(messages: Iterable[Message], observations: Collection[int] = ()) -> list[Parts]:
        asked.append(observations)
        return read_parts(messages, observations)

    monkeypatch.setattr(context_meter, "read_parts", noted)
    new_meter().follow(replace(state, entries=entries))
    assert asked == [{last}]
