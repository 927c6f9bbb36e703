"""The rollout record: prompts come back as they were served, its lines stay linear in tokens, damage is found."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from acmserve.context.edits.cut import cut_messages
from acmserve.context.edits.fragments import redact
from acmserve.context.session.branches.fork import fork
from acmserve.context.session.rollout.lines import record_from, rollout_lines, rollout_rows, row_value
from acmserve.context.session.rollout.record import NO_ROLLOUT, Initiator, RolloutRecord, Sampled, num_common
from acmserve.context.storage.codecs.rows import pack, unpack
from acmserve.errors import Conflict, IntegrityError
from tests.support.context.conversation import Characters
from tests.support.context.states import conversation, rollouts

TOKENS = st.lists(st.integers(0, 2), max_size=8)


def record(*turns: tuple[list[int], list[int]], threads: Sequence[str] = "") -> RolloutRecord:
    """Prompts with what was sampled. The thread of number n is `threads[n]`, m without."""
    made = RolloutRecord().begun("m", None)
    for number, (prompt, sampled) in enumerate(turns):
        made = made.completed(prompt, Sampled(tuple(sampled)), threads[number] if threads else "m")
    return made


def links(made: RolloutRecord) -> list[tuple[int | None, int, list[int]]]:
    return [(one.parent, one.num_kept, list(one.tail)) for one in made.completions]


@given(st.lists(st.tuples(TOKENS, TOKENS), max_size=8))
def test_prompts_come_back_as_they_were_served_and_no_other_parent_has_more_in_common(
    turns: list[tuple[list[int], list[int]]],
) -> None:
    made = record(*turns)
    made.check_integrity()
    assert [made.prompt(number) for number in range(len(turns))] == [prompt for prompt, _ in turns]
    for number, one in enumerate(made.completions):
        shared = [num_common([*before, *sampled], turns[number][0]) for before, sampled in turns[:number]]
        assert one.num_kept == max(shared, default=0)


@pytest.mark.parametrize("num", [0, 1, 1023, 1024, 1025, 4000])
def test_what_two_long_sequences_have_in_common(num: int) -> None:
    one, other = (7,) * 4000, [5, *(7,) * num, *(8,) * 50]
    assert num_common(one, other, 1) == num
    assert num_common(one[:num], other, 1) == num
    assert num_common(one, other[: num + 1], 1) == num


class WatchedPrompt(list[int]):
    """Counts the tokens that are read of it."""

    num_read = 0

    def __getitem__(self, where: Any) -> Any:
        found = super().__getitem__(where)
        self.num_read += len(found) if isinstance(where, slice) else 1
        return found


def test_of_prompts_that_differ_early_little_is_read() -> None:
    """A model that edits the beginning at every step leaves a long tail each time."""
    made, length = RolloutRecord().begun("m", None), 6000
    for number in range(40):
        prompt = WatchedPrompt(range(length))
        prompt[number] = -1
        made = made.completed(prompt, Sampled((1,)), "m")
    assert prompt.num_read < 40 * 1100 + length


def test_a_turn_an_edit_and_a_branch_name_where_they_leave() -> None:
    made = record(
        ([1, 2, 3, 4], [5, 6]),
        ([1, 2, 3, 4, 5, 6, 7], [8]),
        ([1, 2, 9, 4, 5, 6, 7, 8, 0], [1]),
        ([1, 2, 9, 4, 5, 6, 7, 8, 0, 1, 3], [4]),
        ([1, 2, 9, 4, 5, 6, 7, 8, 0, 1, 2], [2]),
        threads="mmmbm",
    )
    assert links(made) == [
        (None, 0, [1, 2, 3, 4]),
        (0, 6, [7]),
        (1, 2, [9, 4, 5, 6, 7, 8, 0]),
        (2, 10, [3]),
        (2, 10, [2]),
    ]


def test_among_equal_parents_the_own_thread_wins_then_the_latest() -> None:
    assert links(record(([1], [2]), ([1], [3]), ([1, 9], []), threads="abm"))[2] == (1, 1, [9])
    assert links(record(([1], [2]), ([1], [3]), ([1, 9], []), threads="mbm"))[2] == (0, 1, [9])
    assert links(record(([1], [2]), ([1], [9]), ([1, 9], []), threads="mbm"))[2] == (0, 1, [9])
    assert links(record(([1], [2]), ([1], [9]), ([1, 9], []), threads=("m", "m#1", "m")))[2] == (1, 2, [])


@given(rollouts())
def test_lines_come_back_equal(made: RolloutRecord) -> None:
    rows = [unpack(pack(row_value(row))) for row in rollout_rows(made)]
    assert record_from(rows) == made
    head, *rest = rollout_lines(made, "s")
    assert list(head)[:3] == ["kind", "version", "session_id"]
    assert [line["kind"] for line in rest].count("completion") == len(made.completions)


def test_a_record_is_linear_in_tokens() -> None:
    """200 turns of 50 tokens over a prompt of 20,000, a fold near the end in every tenth: no prompt comes twice."""
    prompt = list(range(20_000))
    made, num_new = RolloutRecord().begun("m", None), len(prompt)
    for turn in range(200):
        made = made.completed(prompt, Sampled((turn,) * 50), "m")
        prompt += [turn] * 50
        num_new += 50
        if turn % 10 == 9:
            prompt[-200:-150] = [-turn]
            num_new += 151
    num_kept = sum(len(one.tail) + len(one.sampled.token_ids) for one in made.completions)
    assert num_kept <= num_new


def test_operations_stand_behind_the_completion_before_them() -> None:
    made = RolloutRecord().begun("m", "sculptor").operated(Initiator.POLICY, "cwl", {}, 12)
    made = made.completed([1], Sampled((2,)), "m").operated(Initiator.MODEL, "fold_fragment", {"fragment_id": "f"}, 3)
    told = [line for line in rollout_lines(made, "s") if line["kind"] == "operation"]
    assert [(line["number"], line["after"], line["by"], line["saved_tokens"]) for line in told] == [
        (0, -1, "policy", 12),
        (1, 0, "model", 3),
    ]


def test_a_record_is_of_one_model_and_one_suite() -> None:
    made = RolloutRecord().begun("m", None)
    assert made.begun("m", "sculptor").begun("m", None) == RolloutRecord().begun("m", "sculptor")
    for model, suite, words in (("n", None, "the model 'm', this request has 'n'"), ("m", "cwl", "has 'cwl'")):
        with pytest.raises(Conflict, match=words):
            made.begun("m", "sculptor").begun(model, suite)


def test_a_redaction_empties_the_record_and_a_branch_begins_without_one() -> None:
    state = cut_messages(conversation(["hello", "the code is 0451", "bye"]), 1, 2, Characters()).state
    state = replace(state, rollout=record(([1, 2], [3])))
    assert redact(state, state.fragments[0].fragment_id).rollout == RolloutRecord().begun("m", None)
    assert fork(state, "s", "d", "p").rollout == NO_ROLLOUT


SOUND = record(([1, 2], [3]), ([1, 2, 3, 4], [5])).operated(Initiator.MODEL, "x", {}, None)


def second(**changes: object) -> RolloutRecord:
    return replace(SOUND, events=(SOUND.events[0], replace(SOUND.events[1], **changes), SOUND.events[2]))  # type: ignore[arg-type]


DAMAGE: dict[str, tuple[Callable[[], RolloutRecord], str]] = {
    "no header": (lambda: replace(SOUND, header=None), "3 events without a header"),
    "a number": (lambda: second(number=4), "completion 4 stands as number 1"),
    "a parent": (lambda: second(parent=1), "completion 1 has the parent 1"),
    "too much kept": (lambda: second(num_kept=4), "completion 1 keeps 4 of 3 tokens"),
    "logprobs": (lambda: second(sampled=Sampled((5,), (-1.0, -2.0))), "1 tokens and 2 logprobs"),
    "an operation": (
        lambda: replace(SOUND, events=(*SOUND.events, SOUND.events[2])),
        "operation 0 after completion 1 stands as number 1",
    ),
}


@pytest.mark.parametrize("name", DAMAGE)
def test_damage_is_named(name: str) -> None:
    SOUND.check_integrity()
    make, words = DAMAGE[name]
    with pytest.raises(IntegrityError, match=words):
        make().check_integrity()
