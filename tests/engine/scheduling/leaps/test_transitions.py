"""Which transitions are known, for which tokens, under which budget."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from acmserve.engine.scheduling.leaps.transitions import TransitionIndex
from acmserve.engine.worker.copies import RecordedTransition
from acmserve.errors import IntegrityError
from acmserve.plan.source import KeptState, ServedSequence

BLOCK = 16
HASHES = tuple(bytes([number]) * 4 for number in range(8))
SOURCE = ServedSequence(np.arange(8 * BLOCK, dtype=np.int32), BLOCK, HASHES)


def fact(norm: float = 0.5) -> RecordedTransition:
    return RecordedTransition(norm, 100)


def begun(index: TransitionIndex, start: int, end: int) -> int:
    """The number of a transition that a step records from `start` to `end` of the source."""
    number = index.begin(start)
    index.go_on(number)
    index.name(number, HASHES[end // BLOCK - 1])
    return number


def known(*spans: tuple[int, int], max_bytes: int = 1000) -> TransitionIndex:
    """An index with the transitions over these tokens of the source."""
    index = TransitionIndex(max_bytes)
    for start, end in spans:
        index.confirm({begun(index, start, end): fact()})
    return index


def test_a_path_leads_over_adjacent_transitions() -> None:
    index = known((16, 32), (32, 64), (64, 96))
    path = index.find_path(SOURCE, 16, 64)
    assert path is not None
    assert (path.numbers, path.norm) == ((1, 2), 0.25)
    assert index.find_path(SOURCE, 32, 96) is not None
    assert index.find_path(SOURCE, 48, 96) is None, "a transition begins in front"
    assert index.find_path(SOURCE, 16, 112) is None
    other = ServedSequence(SOURCE.tokens, BLOCK, tuple(name + b"other" for name in HASHES))
    assert index.find_path(other, 16, 64) is None


def test_a_shorter_transition_is_taken_where_the_longest_leads_nowhere() -> None:
    """Nothing ends where the longest begins. Each place is tried once, so many ways cost no more than many places."""
    index = known((16, 48), (32, 64), (48, 64))
    path = index.find_path(SOURCE, 16, 64)
    assert path is not None
    assert path.numbers == (1, 3)
    assert index.find_path(SOURCE, 32, 64) is not None
    spans = [(a * BLOCK, b * BLOCK) for b in range(2, 8) for a in range(1, b)]
    assert known(*spans, max_bytes=10_000).find_path(SOURCE, 0, 7 * BLOCK) is None, "nothing begins at 0"


def test_a_path_leads_through_the_ends_of_turns() -> None:
    """A turn ended at token 40, in the midst of a block, and another one at 70."""
    source = replace(SOURCE, states=(KeptState(40, b"first"), KeptState(70, b"second")))
    index = known((16, 32), (40, 64))
    for start, key in ((32, b"first"), (64, b"second")):
        number = index.begin(start)
        index.go_on(number)
        index.name(number, key)
        index.confirm({number: fact()})
    path = index.find_path(source, 16, 70)
    assert path is not None
    assert path.numbers == (1, 3, 2, 4)
    assert index.find_path(SOURCE, 16, 70) is None, "the other source has no state there"


def test_what_is_not_confirmed_is_not_used() -> None:
    """Of each step the workers have to say something."""
    index = TransitionIndex(1000)
    number = index.begin(16)
    index.go_on(number)
    index.confirm({number: fact()})
    assert not index.knows(HASHES[1], 16), "it has come to no state"
    index.go_on(number)
    index.name(number, HASHES[1])
    assert index.knows(HASHES[1], 16)
    assert index.find_path(SOURCE, 16, 32) is None
    index.confirm({number: fact(0.25)})
    path = index.find_path(SOURCE, 16, 32)
    assert path is not None
    assert path.norm == 0.25
    index.check_integrity()


def test_what_a_worker_lacks_is_dropped_and_may_be_recorded_again() -> None:
    index = TransitionIndex(1000)
    lost, other = begun(index, 16, 32), begun(index, 32, 64)
    index.confirm({lost: None, other: fact()})
    assert lost not in index
    assert index.take_dropped() == (lost,)
    again = begun(index, 16, 32)
    index.confirm({again: fact()})
    assert index.find_path(SOURCE, 16, 64) is not None


def test_what_comes_to_a_state_that_is_known_is_dropped() -> None:
    index = known((16, 32))
    twice = begun(index, 16, 32)
    assert index.take_dropped() == (twice,)
    index.check_integrity()


def test_bytes_are_those_that_the_workers_said_last() -> None:
    index = TransitionIndex(150)
    number = index.begin(16)
    for _ in range(3):
        index.go_on(number)
        index.confirm({number: fact()})
    index.check_integrity()
    assert number in index
    index.confirm({number: RecordedTransition(0.5, 151)})
    assert number not in index
    index.check_integrity()


def test_what_was_used_longest_ago_goes_first() -> None:
    index = known((16, 32), (32, 48), max_bytes=200)
    assert index.find_path(SOURCE, 16, 32) is not None
    index.confirm({begun(index, 48, 64): fact()})
    assert index.take_dropped() == (2,)
    assert index.find_path(SOURCE, 16, 32) is not None
    assert index.find_path(SOURCE, 32, 48) is None
    index.check_integrity()
    index.clear()
    assert index.find_path(SOURCE, 16, 32) is None
    assert set(index.take_dropped()) == {1, 3}


def test_a_redacted_key_takes_its_transitions_along() -> None:
    """What is being recorded goes, too: no answer of a worker brings it back."""
    index = known((16, 32), (32, 64), (48, 64))
    pending = begun(index, 64, 96)
    assert pending == 4
    index.forget([HASHES[3], HASHES[5], b"nobody's"])
    assert set(index.take_dropped()) == {2, 3, 4}
    index.confirm({pending: fact()})
    assert index.find_path(SOURCE, 16, 32) is not None
    assert index.find_path(SOURCE, 16, 64) is None
    assert index.find_path(SOURCE, 64, 96) is None
    index.check_integrity()


def test_integrity() -> None:
    index = known((16, 32))
    index.check_integrity()
    index._num_bytes += 1
    with pytest.raises(IntegrityError, match="bytes"):
        index.check_integrity()
    index._by_end.clear()
    with pytest.raises(IntegrityError, match="named"):
        index.check_integrity()
