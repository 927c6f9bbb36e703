"""The rules of `SlotMemory`, one example each: what may be read, what may be copied, and what stays exact."""

from __future__ import annotations

import pytest

from acmserve.engine.worker.copies import KVCopy
from tests.support.simulator.failure import Kind, SimulationFailure
from tests.support.simulator.slots import Reader, SlotMemory
from tests.support.simulator.truth import MIXED, Owner, Record, Sequence, Truth

BLOCK_SIZE = 4
MINE: Owner = ("mine", None, 0)

#   block            0          1          2          3
SOURCE_TEXT = (1, 2, 3, 4, 5, 6, 7, 8)
FOLDED_TEXT = (9, 5, 6, 7, 8)
SAME_LENGTH = (9, 9, 9, 9, 5, 6, 7, 8)


class Scene:
    """A memory in which session `mine` has served `SOURCE_TEXT` in blocks 0 and 1. Blocks 2 and 3 are poison."""

    def __init__(self) -> None:
        self.truth = Truth()
        self.memory = SlotMemory(num_blocks=8, block_size=BLOCK_SIZE)
        self.source = self.reader(SOURCE_TEXT)
        self.compute(self.source, [0, 1], 0)
        self.memory.remember(self.source, len(SOURCE_TEXT))

    def reader(self, text: tuple[int, ...], owner: Owner | None = MINE, reuse: bool = True) -> Reader:
        salt = owner[1] if owner else None
        return Reader("request", Sequence(self.truth, salt, text), owner, reuse)

    def compute(self, reader: Reader, table: list[int], start: int) -> None:
        for position in range(start, reader.sequence.num_prompt_tokens):
            slot = table[position // BLOCK_SIZE] * BLOCK_SIZE + position % BLOCK_SIZE
            self.memory.slots[slot] = reader.sequence.exact(position)

    def copy(
        self, reader: Reader, src_start: int, dst_start: int, num_tokens: int, src: list[int], dst: list[int]
    ) -> None:
        copy = KVCopy(reader.request_id, src_start, dst_start, num_tokens, tuple(src), tuple(dst))
        for _, slot, record in self.memory.moved(reader, copy):
            self.memory.slots[slot] = record

    def fold(self, reader: Reader) -> None:
        """Blocks 2 and 3 become `FOLDED_TEXT`: token 9 computed, the rest moved by -3."""
        self.memory.slots[2 * BLOCK_SIZE] = reader.sequence.exact(0)
        self.copy(reader, 4, 1, 4, [1], [2, 3])


@pytest.fixture
def scene() -> Scene:
    return Scene()


def _kind_of_reading(scene: Scene, reader: Reader, table: list[int], end: int) -> Kind:
    with pytest.raises(SimulationFailure) as failure:
        scene.memory.read(reader, table, end)
    return failure.value.kind


def test_exact_kv_is_shared_with_everybody_of_the_same_salt(scene: Scene) -> None:
    stranger = scene.reader(SOURCE_TEXT, owner=None, reuse=False)
    assert [record.token for record in scene.memory.read(stranger, [0, 1], 8)] == list(SOURCE_TEXT)


def test_exact_kv_of_another_salt_leaks(scene: Scene) -> None:
    assert _kind_of_reading(scene, scene.reader(SOURCE_TEXT, ("mine", "salt")), [0, 1], 8) == "leak"


def test_unwritten_slot_is_poison(scene: Scene) -> None:
    assert _kind_of_reading(scene, scene.source, [0, 2], 8) == "poison"


def test_block_that_was_handed_out_again_is_poison(scene: Scene) -> None:
    scene.memory.poison([1])
    assert _kind_of_reading(scene, scene.source, [0, 1], 8) == "poison"


def test_table_that_is_too_short(scene: Scene) -> None:
    assert _kind_of_reading(scene, scene.source, [0], 8) == "table"


def test_stale_text(scene: Scene) -> None:
    assert _kind_of_reading(scene, scene.reader((1, 2, 3, 5)), [0], 4) == "token"


def test_kv_at_another_position(scene: Scene) -> None:
    reader = scene.reader(FOLDED_TEXT)
    scene.fold(reader)
    scene.memory.slots[2 * BLOCK_SIZE + 1] = Record(5, 4, MIXED, frozenset({MINE}))
    assert _kind_of_reading(scene, reader, [2, 3], 5) == "position"


def test_moved_kv_answers_its_own_session(scene: Scene) -> None:
    reader = scene.reader(FOLDED_TEXT)
    scene.fold(reader)
    records = scene.memory.read(reader, [2, 3], 5)
    assert [record.taint for record in records] == [frozenset(), *[frozenset({MINE})] * 4]


@pytest.mark.parametrize(
    ("owner", "reuse"),
    [(None, False), (("other", None, 0), True), (("mine", None, 1), True), (MINE, False)],
    ids=["nobody", "other", "forgotten", "exact"],
)
def test_moved_kv_answers_nobody_else(scene: Scene, owner: Owner | None, reuse: bool) -> None:
    scene.fold(scene.reader(FOLDED_TEXT))
    assert _kind_of_reading(scene, scene.reader(FOLDED_TEXT, owner, reuse), [2, 3], 5) == "leak"


def test_computed_in_wrong_context_and_moved_by_nobody_leaks(scene: Scene) -> None:
    scene.memory.slots[1 * BLOCK_SIZE] = Record(5, 4, MIXED)
    assert _kind_of_reading(scene, scene.source, [0, 1], 8) == "leak"


def test_copy_at_delta_0_behind_the_same_prefix_is_exact(scene: Scene) -> None:
    reader = scene.reader(SOURCE_TEXT, reuse=False)
    scene.copy(reader, 4, 4, 3, [1], [2])
    assert scene.memory.read(reader, [0, 2], 7)[4:] == [reader.sequence.exact(p) for p in (4, 5, 6)]


def test_copy_at_delta_0_behind_another_prefix_is_not_exact_until_it_returns(scene: Scene) -> None:
    edited = scene.reader(SAME_LENGTH)
    for position in range(4):
        scene.memory.slots[2 * BLOCK_SIZE + position] = edited.sequence.exact(position)
    scene.copy(edited, 4, 4, 4, [1], [3])
    assert all(record.taint == {MINE} for record in scene.memory.read(edited, [2, 3], 8)[4:])
    exact = scene.reader(SAME_LENGTH, reuse=False)
    assert _kind_of_reading(scene, exact, [2, 3], 8) == "leak"
    restored = scene.reader(SOURCE_TEXT, reuse=False)
    scene.copy(restored, 4, 4, 4, [3], [4])
    assert all(not record.taint for record in scene.memory.read(restored, [0, 4], 8))


def test_turning_there_and_back_is_never_exact_again(scene: Scene) -> None:
    scene.fold(scene.reader(FOLDED_TEXT))
    restored = scene.reader(SOURCE_TEXT)
    scene.copy(restored, 1, 4, 4, [2, 3], [4])
    assert all(record.origin == MIXED for record in scene.memory.read(restored, [0, 4], 8)[4:])


def _kind_of_copying(scene: Scene, reader: Reader, src_start: int, src: list[int]) -> Kind:
    with pytest.raises(SimulationFailure) as failure:
        scene.copy(reader, src_start, 1, 3, src, [2])
    return failure.value.kind


def test_copy_from_poison(scene: Scene) -> None:
    assert _kind_of_copying(scene, scene.reader(FOLDED_TEXT), 4, [5]) == "poison"


def test_copy_of_other_tokens(scene: Scene) -> None:
    assert _kind_of_copying(scene, scene.reader((9, 5, 6, 8, 8)), 4, [1]) == "token"


def test_copy_that_names_the_wrong_source_position(scene: Scene) -> None:
    assert _kind_of_copying(scene, scene.reader(FOLDED_TEXT), 0, [1]) == "position"


def test_copy_with_the_wrong_number_of_blocks(scene: Scene) -> None:
    assert _kind_of_copying(scene, scene.reader(FOLDED_TEXT), 4, [1, 5]) == "table"


def test_copy_of_text_that_the_session_never_served(scene: Scene) -> None:
    assert _kind_of_copying(scene, scene.reader(FOLDED_TEXT, ("other", None)), 4, [1]) == "leak"


def test_copy_of_what_another_session_moved(scene: Scene) -> None:
    scene.fold(scene.reader(FOLDED_TEXT))
    thief = scene.reader((7, 5, 6, 7, 8), ("other", None))
    with pytest.raises(SimulationFailure, match="leak"):
        scene.copy(thief, 1, 1, 3, [2], [4])


def test_move_for_a_request_that_asked_for_exact(scene: Scene) -> None:
    assert _kind_of_copying(scene, scene.reader(FOLDED_TEXT, reuse=False), 4, [1]) == "leak"


def test_move_for_a_request_without_session(scene: Scene) -> None:
    assert _kind_of_copying(scene, scene.reader(FOLDED_TEXT, owner=None, reuse=False), 4, [1]) == "leak"
