"""Repeated tool calls of a recording, and those whose earlier result a policy had taken out. Without a server."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from acmserve.bench.agent.plain_prompt import PromptWriter
from acmserve.bench.agent.recording import RecordedStep, Recording
from acmserve.bench.agent.result_table import told_by
from acmserve.bench.trace.prompts import BUDGET_POLICIES, COMPACTION, NO_POLICY, Limits, plan_prompts
from acmserve.bench.trace.repeats import NO_CALLS, CallRepeats, add_up, find_repeats
from acmserve.bench.trace.table import REPEATS
from acmserve.context.transcript.message import Message
from tests.bench.trace.test_policy import WORDS

START: list[Message] = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Fix it."}]
Step = list[Message]


def step_of(number: int, *calls: tuple[str, str], result: str = "found") -> Step:
    """What the assistant calls, and the results."""
    made = [
        {"id": f"c{number}-{index}", "type": "function", "function": {"name": name, "arguments": arguments}}
        for index, (name, arguments) in enumerate(calls)
    ]
    results = [{"role": "tool", "tool_call_id": call["id"], "content": result} for call in made]
    return [{"role": "assistant", "content": "", "tool_calls": made}, *results]


def session_of(*calls: str) -> list[Step]:
    """A session with one call of `read` in each step: entries 2 and 3, 4 and 5, and so on."""
    return [START, *(step_of(number, ("read", json.dumps({"path": path}))) for number, path in enumerate(calls))]


NOTHING: frozenset[int] = frozenset()


def test_a_repeat_is_a_re_exploration_where_its_result_was_taken_out() -> None:
    steps = session_of("a", "b", "a")
    kept = find_repeats(steps, [NOTHING] * 4)
    assert kept == [CallRepeats(1), CallRepeats(1), CallRepeats(1, num_shown=1), NO_CALLS]
    taken = find_repeats(steps, [NOTHING, NOTHING, frozenset({3}), NOTHING])
    assert taken[2] == CallRepeats(1, num_removed=1)
    # The call alone is gone, or the result of another one, or the result later on: it is still no re-exploration.
    for removed in ([NOTHING, NOTHING, frozenset({2, 5}), NOTHING], [NOTHING, NOTHING, NOTHING, frozenset({3})]):
        assert find_repeats(steps, removed) == kept


def test_one_result_of_several_earlier_ones_is_enough() -> None:
    steps = session_of("a", "a", "a")
    (*_, third, _) = find_repeats(steps, [NOTHING, frozenset({3}), frozenset({3}), NOTHING])
    assert third == CallRepeats(1, num_shown=1)
    (*_, third, _) = find_repeats(steps, [NOTHING, frozenset({3}), frozenset({3, 5}), NOTHING])
    assert third == CallRepeats(1, num_removed=1)


@pytest.mark.parametrize(
    ("first", "second", "is_repeat"),
    [
        (("read", '{"a": 1, "b": 2}'), ("read", '{"b":2,"a":1}'), True),
        (("read", '{"a": 1}'), ("read", '{"a": 2}'), False),
        (("read", '{"a": 1}'), ("grep", '{"a": 1}'), False),
        (("read", "no json"), ("read", "no json"), True),
        (("read", '"1"'), ("read", "1"), False),
        (("delimiter", '{"action": "end"}'), ("delimiter", '{"action": "end"}'), False),
    ],
)
def test_calls_are_equal_by_name_and_arguments(
    first: tuple[str, str], second: tuple[str, str], is_repeat: bool
) -> None:
    steps = [START, step_of(0, first), step_of(1, second)]
    assert find_repeats(steps, [NOTHING] * 3)[1].num_shown == int(is_repeat)


def test_a_call_beside_its_twin_or_before_the_result_came_repeats_nothing() -> None:
    twice = ("read", "{}")
    assert find_repeats([START, step_of(0, twice, twice)], [NOTHING] * 2)[0] == CallRepeats(2)
    without_result = step_of(0, twice)[:1]
    assert find_repeats([START, without_result, step_of(1, twice)], [NOTHING] * 3)[1] == CallRepeats(1)


def test_as_many_removals_as_steps_are_needed() -> None:
    with pytest.raises(ValueError, match="argument 2 is"):
        find_repeats(session_of("a"), [NOTHING])


@given(st.lists(st.sampled_from("abcd"), max_size=12), st.data())
def test_every_repeat_is_either_shown_or_explored_again(paths: list[str], data: st.DataObject) -> None:
    """And what is taken out decides between these two alone."""
    steps = session_of(*paths)
    entries = st.frozensets(st.integers(0, 2 + 2 * len(paths)))
    removed = data.draw(st.lists(entries, min_size=len(steps), max_size=len(steps)))
    found = find_repeats(steps, removed)
    sums = add_up(found)
    assert sums["num_calls"] == len(paths)
    assert sums["num_repeats_shown"] + sums["num_reexplored"] == len(paths) - len(set(paths))
    for number, path in enumerate(paths):
        known = [3 + 2 * earlier for earlier in range(number) if paths[earlier] == path]
        is_again = bool(known) and all(entry in removed[number] for entry in known)
        assert found[number].num_removed == int(is_again)
    assert add_up(find_repeats(steps, [NOTHING] * len(steps)))["num_reexplored"] == 0


def recording_of(*paths: str, num_words: int = 300) -> Recording:
    """Each result has words of its own."""
    steps = [START]
    for number, path in enumerate(paths):
        result = " ".join(f"{path}{number}w{word}" for word in range(num_words))
        steps.append(step_of(number, ("read", json.dumps({"path": path})), result=result))
    return Recording("made", (), tuple(RecordedStep(tuple(step)) for step in steps))


@pytest.mark.parametrize("policy", [NO_POLICY, *BUDGET_POLICIES, COMPACTION])
def test_a_policy_has_taken_out_what_its_prompt_does_not_show(policy: str) -> None:
    """Held against the words of the prompts themselves."""
    paths = [*"abcdefgh", "a", "h", "b"]
    recording = recording_of(*paths)
    prompts = plan_prompts(recording, policy, Limits(1_800, 900), PromptWriter(WORDS), WORDS)
    answered = [prompt for prompt in prompts if "Summarize the work" not in prompt.messages[-1]["content"]]
    assert len(answered) == len(recording.steps)
    expected = []
    for number, path in enumerate(paths):
        shown = "\n".join(message["content"] for message in answered[number].messages)
        known = [earlier for earlier in range(number) if paths[earlier] == path]
        # The last word: a summary has the beginnings of what it stands for.
        is_shown = any(f"{path}{earlier}w299" in re.findall(r"\w+", shown) for earlier in known)
        expected.append(CallRepeats(1, int(bool(known) and is_shown), int(bool(known) and not is_shown)))
    assert [prompt.repeats for prompt in answered] == [*expected, NO_CALLS]
    assert {prompt.repeats for prompt in prompts if prompt not in answered} <= {NO_CALLS}
    num_again = add_up([prompt.repeats for prompt in prompts])["num_reexplored"]
    assert (num_again == 0) is (policy == NO_POLICY)


def test_the_table_has_a_line_for_each_policy_and_none_of_files_without_counts() -> None:
    def row(policy: str, server: str, *counts: int) -> dict[str, Any]:
        names = ("num_calls", "num_repeats_shown", "num_reexplored")
        turns = [dict(zip(names, counts, strict=True)) if counts else {}, dict.fromkeys(names, 1) if counts else {}]
        return {"policy": policy, "server": server, "turns": turns}

    gate = {"gate": {"failures": []}}
    rows = [row("cwl", "exact", 9, 2, 3), row("cwl", "stock", 9, 2, 3), row("recency", "exact", 9, 0, 5)]
    shown = [" ".join(line.split()) for line in told_by(REPEATS)(gate | {"rows": rows})]
    assert [line for line in shown if line.endswith(("4", "6"))] == [
        "CWL in batches 10 3 4",
        "oldest first, in batches 10 1 6",
    ]
    assert told_by(REPEATS)(gate | {"rows": [row("cwl", "exact")]}) == ["", "gate green"]
