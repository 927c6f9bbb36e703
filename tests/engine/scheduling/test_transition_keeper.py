"""Which steps record a transition, which one they go on with, and where it ends."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from acmserve.engine.groups.facts import GroupFacts, KVGroups
from acmserve.engine.requests.live_requests import LiveRequests
from acmserve.engine.requests.receipt import ReceiptBuilder
from acmserve.engine.requests.session_request import SessionRequest
from acmserve.engine.scheduling.transition_keeper import TransitionKeeper
from acmserve.engine.worker.copies import RecordedTransition, TransitionRecord
from acmserve.errors import IntegrityError
from acmserve.plan.owner import Owner
from acmserve.plan.source import KeptState, ServedSequence

SIZE, NUM_PROMPT = 16, 70
GROUPS = KVGroups((GroupFacts(0, SIZE), GroupFacts(1, SIZE, 0, mixed=3, is_composed=True)), SIZE)
HASHES = tuple(bytes([number]) * 4 for number in range(8))
ENDED = KeptState(53, b"an earlier turn")


class Turn:
    """A request of 70 tokens whose first foldable piece ends at 30. Its blocks of states are 100, 101, and so on."""

    def __init__(self, foldable: tuple[tuple[int, int], ...] = ((20, 30),)) -> None:
        table = [SimpleNamespace(block_id=100 + index) for index in range(8)]
        manager: Any = SimpleNamespace(get_blocks=lambda request_id: SimpleNamespace(blocks=([], table)))
        live = LiveRequests()
        self.keeper = TransitionKeeper(manager, GROUPS, live, 1000, lambda: True)
        self.request: Any = SimpleNamespace(
            request_id="r",
            num_computed_tokens=0,
            num_prompt_tokens=NUM_PROMPT,
            block_hashes=HASHES,
            is_finished=lambda: False,
        )
        prompt = np.arange(NUM_PROMPT, dtype=np.int32)
        self.session = SessionRequest("r", Owner("s"), "reuse", ReceiptBuilder(NUM_PROMPT), prompt, foldable=foldable)
        self.session.states = (ENDED,)
        live.add(self.session, self.request)
        self._live = live

    def step(self, start: int, num_tokens: int) -> TransitionRecord | None:
        """What a step records that computes these tokens, once its workers have answered."""
        self.request.num_computed_tokens = start
        self.keeper.finish_step({"r": num_tokens})
        records, _ = self.keeper.take()
        self.keeper.index.confirm({record.number: RecordedTransition(0.5, 10) for record in records})
        self.keeper.check_integrity()
        return records[0] if records else None

    def end(self, num_tokens: int, *, is_kept: bool = True) -> ServedSequence:
        """The turn ends behind `num_tokens`. Where the state there was kept, the source says so."""
        states = (ENDED, KeptState(num_tokens, b"this turn")) if is_kept else (ENDED,)
        tokens = np.arange(num_tokens, dtype=np.int32)
        source = ServedSequence(tokens, SIZE, HASHES[: num_tokens // SIZE], states=states)
        self._live.remove("r")
        self.keeper.finish("r", source)
        self.keeper.drop("r")
        self.keeper.check_integrity()
        return source


def test_an_answer_goes_to_what_the_end_of_its_prompt_began() -> None:
    turn = Turn()
    assert turn.step(0, 32) is None, "no move begins in front of a piece"
    assert turn.step(32, 32) == TransitionRecord(1, ((1, 103),), 32, is_whole=True)
    assert turn.step(64, 6) == TransitionRecord(2, ((1, 104),), 6, is_whole=False)
    assert [turn.step(70 + n, 1) for n in range(11)] == [
        TransitionRecord(2, ((1, 104 if n < 10 else 105),), 7 + n, is_whole=False) for n in range(11)
    ]
    source = turn.end(81)
    path = turn.keeper.index.find_path(source, 32, 81)
    assert path is not None
    assert path.numbers == (1, 2)


def test_an_answer_whose_front_was_kept_has_a_transition_of_its_own() -> None:
    """The end of the prompt leads up to it. Nothing of either is recorded where the step in front is not known."""
    turn = Turn()
    turn.session.answer_state = front = KeptState(NUM_PROMPT, b"front", is_before_answer=True)
    assert turn.step(64, 6) == TransitionRecord(1, ((1, 104),), 6, is_whole=False)
    assert [turn.step(70 + n, 1) for n in range(3)] == [
        TransitionRecord(2, ((1, 104),), 1 + n, is_whole=False) for n in range(3)
    ]
    source = replace(turn.end(73), states=(ENDED, front, KeptState(73, b"this turn")))
    index = turn.keeper.index
    paths = [index.find_path(source, start, end) for start, end in ((64, 70), (70, 73), (64, 73), (53, 73))]
    assert [path and path.numbers for path in paths] == [(1,), (2,), (1, 2), None]
    later = Turn()
    later.session.answer_state = front
    assert later.step(70, 1) == TransitionRecord(1, ((1, 104),), 1, is_whole=False)


@pytest.mark.parametrize(("computed", "is_kept"), [(80, True), (81, False)])
def test_a_turn_that_ends_elsewhere_leaves_nothing(computed: int, is_kept: bool) -> None:
    """No state was kept there, or it stands behind another number of tokens."""
    turn = Turn()
    turn.step(64, 6)
    for position in range(70, computed):
        turn.step(position, 1)
    source = turn.end(81, is_kept=is_kept)
    assert turn.keeper.index.find_path(source, 64, 81) is None
    assert turn.keeper.take() == ((), (1,)), "the workers forget it"


def test_a_transition_begins_where_an_earlier_turn_ended() -> None:
    turn = Turn()
    assert turn.step(52, 12) is None, "no state is known in the midst of that block"
    assert turn.step(53, 11) == TransitionRecord(1, ((1, 103),), 11, is_whole=True)
    assert turn.step(53, 11) is None, "it is known"


def test_what_jumps_or_loses_its_blocks_begins_anew() -> None:
    turn = Turn()
    assert turn.step(48, 1) == TransitionRecord(1, ((1, 103),), 1, is_whole=False)
    assert turn.step(53, 11) == TransitionRecord(2, ((1, 103),), 11, is_whole=True)
    turn.step(64, 3)
    turn.keeper.drop("r")
    assert turn.keeper.take() == ((), (3,))
    assert turn.step(67, 3) is None


def test_what_ran_out_of_room_is_not_gone_on_with() -> None:
    turn = Turn()
    turn.step(64, 3)
    turn.keeper.index.confirm({1: RecordedTransition(0.5, 1001)})
    assert 1 not in turn.keeper.index
    assert turn.step(67, 3) is None


def test_a_request_without_pieces_records_nothing() -> None:
    turn = Turn(foldable=())
    assert [turn.step(0, 64), turn.step(64, 6), turn.step(70, 1)] == [None] * 3
    assert not turn.keeper.is_noted


def test_integrity() -> None:
    turn = Turn()
    turn.step(64, 6)
    turn._live.remove("r")
    with pytest.raises(IntegrityError, match="1 finished requests are recorded"):
        turn.keeper.check_integrity()
    turn.keeper.drop("r")
    turn.keeper.check_integrity()
    turn.keeper._records.append(TransitionRecord(1, ((1, 104),), 6, is_whole=False))
    with pytest.raises(IntegrityError, match="1 records wait"):
        turn.keeper.check_integrity()
