"""What a session's predictions are worth, by what became of those before."""

from __future__ import annotations

from dataclasses import replace

import pytest

from acmserve.context.edits import fragments as edits
from acmserve.context.edits.cut import cut_messages
from acmserve.context.precompute.candidate import PrecomputeCandidate, Reason
from acmserve.context.precompute.use_record import LEAST_CHANCE, NUM_TRIES, UseRecord
from acmserve.context.session.history import adopt
from acmserve.context.session.render import render
from acmserve.context.session.state import SessionState
from acmserve.context.transcript.message import Message
from acmserve.errors import IntegrityError
from tests.context.precompute.test_planner import WORDS


def conversation(num_messages: int) -> list[Message]:
    return [{"role": "user", "content": f"part {n} . " * 30} for n in range(num_messages)]


def cut_state() -> SessionState:
    return cut_messages(adopt(SessionState(), conversation(4)).state, 1, 2, WORDS).state


def folded(state: SessionState) -> SessionState:
    return edits.fold(state, state.fragments[0].fragment_id, "sculptor", WORDS)


def grown(state: SessionState, num: int) -> SessionState:
    return adopt(state, [*render_whole_client(state), *conversation(num)]).state


def render_whole_client(state: SessionState) -> list[Message]:
    return [entry.message for entry in state.entries]


def candidate(state: SessionState, reason: Reason = Reason.FOLD, probability: float = 0.5) -> PrecomputeCandidate:
    return PrecomputeCandidate(state, reason, probability, 1, 100)


def watch(record: UseRecord, state: SessionState, *found: PrecomputeCandidate) -> None:
    record.judge(state)
    record.note(found, state)
    record.check_integrity()


def test_a_fold_that_never_comes_is_not_computed_until_it_came_once() -> None:
    record, state = UseRecord(), cut_state()
    fold = candidate(folded(state))
    assert record.worth_computing([fold]) == [fold]
    for _ in range(3 * NUM_TRIES + 1):
        watch(record, state, fold)
    assert (record.missed, record.came) == ({Reason.FOLD: NUM_TRIES}, {})
    assert record.worth_computing([fold]) == []
    watch(record, grown(folded(state), 1))
    assert record.came == {Reason.FOLD: 1}
    assert record.worth_computing([fold]) == [fold]
    assert LEAST_CHANCE < record.chance(fold) < 0.5


def test_what_comes_is_rated_above_what_was_predicted_alike() -> None:
    record, state = UseRecord(), cut_state()
    fold, eviction = candidate(folded(state)), candidate(state, Reason.EVICTION)
    for _ in range(3):
        watch(record, state, fold)
        watch(record, grown(folded(state), 1))
    assert record.chance(fold) > record.chance(eviction) == 0.5
    assert record.worth_computing([eviction, fold]) == [fold, eviction]


def test_what_is_certain_comes_first() -> None:
    record, state = UseRecord(), cut_state()
    record.came = {Reason.FOLD: 1000}
    fold = candidate(folded(state), probability=1.0)
    thoughts = candidate(state, Reason.NEXT_MESSAGE, 1.0)
    record.came[Reason.CLEARING], record.missed[Reason.CLEARING] = 1, 3
    clearing = candidate(state, Reason.CLEARING, 1.0)
    far = replace(clearing, probability=0.1)
    assert record.worth_computing([fold, far, clearing, thoughts]) == [thoughts, clearing, fold, far]


def test_a_context_that_was_edited_otherwise_did_not_come() -> None:
    """The control of what counts as having come: the same messages up to where the candidate differs are not enough."""
    record, state = UseRecord(), cut_state()
    watch(record, state, candidate(folded(state)))
    other = cut_messages(state, 0, 1, WORDS).state
    other = edits.fold(other, other.fragments[-1].fragment_id, "sculptor", WORDS)
    assert render(other) != render(state)
    for _ in range(3):
        watch(record, other)
    assert (record.missed, record.came) == ({Reason.FOLD: 1}, {})


def test_integrity() -> None:
    record, state = UseRecord(), cut_state()
    watch(record, state, candidate(folded(state)))
    key, expected = next(iter(record._expected.items()))
    record._expected[key] = replace(expected, num_looks=0)
    with pytest.raises(IntegrityError, match="1 candidates are expected after their time"):
        record.check_integrity()
