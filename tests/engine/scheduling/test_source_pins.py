"""Pins are all or nothing, bounded in a step, and none outlives it."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from vllm.v1.core.block_pool import BlockPool

from acmserve.engine.groups.facts import GroupFacts
from acmserve.engine.requests.receipt import KVOrigin
from acmserve.engine.requests.session_request import ReusableRange
from acmserve.engine.scheduling import jump as jumping
from acmserve.engine.scheduling.leaps.runs import BlockRun, Jump, SegmentRun
from acmserve.engine.scheduling.source_pins import SourcePins
from acmserve.errors import IntegrityError
from acmserve.plan.source import ServedSequence


def _jump(pool: BlockPool, *block_ids: int) -> Jump:
    source = ServedSequence(np.arange(160, dtype=np.int32), 16, ())
    num_tokens = 16 * len(block_ids)
    blocks: Any = tuple(pool.blocks[block_id] for block_id in block_ids)
    segment = ReusableRange(0, num_tokens, 0, source, KVOrigin.MOVED)
    read = BlockRun(segment, 0, num_tokens, blocks, GroupFacts(0, 16))
    return Jump((SegmentRun(segment, 0, num_tokens),), (read,))


@pytest.fixture
def pool() -> BlockPool:
    """Eight blocks, of which vLLM keeps one as its null block."""
    return BlockPool(8, enable_caching=True, hash_block_size=16)


def test_a_jump_is_pinned_when_its_request_still_finds_its_own_blocks(pool: BlockPool) -> None:
    pins = SourcePins(pool)
    pins.begin_step(num_reserved=1)
    assert not pins.pin(_jump(pool, 1, 2, 3), num_needed=4), "3 sources, 4 blocks and 1 reserved do not fit into 7"
    assert pins.take() == []
    assert pins.pin(_jump(pool, 1, 2, 3), num_needed=3)
    assert [block.block_id for block in pins.take()] == [1, 2, 3]
    assert [pool.blocks[block_id].ref_cnt for block_id in (1, 2, 3, 4)] == [1, 1, 1, 0]


def test_a_jump_that_does_not_fit_ends_the_pins_of_its_step(pool: BlockPool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jumping, "MAX_BLOCKS", 3)
    pins = SourcePins(pool)
    pins.begin_step(0)
    assert pins.pin(_jump(pool, 1, 2), 0)
    assert not pins.fits(_jump(pool, 3, 4))
    assert pins.is_spent, "a short jump behind it waits, too"
    pins.take()
    pins.begin_step(0)
    assert pins.fits(_jump(pool, 3, 4))


def test_a_pin_between_steps_is_noticed(pool: BlockPool) -> None:
    pins = SourcePins(pool)
    pins.begin_step(0)
    pins.check_integrity()
    assert pins.pin(_jump(pool, 1), 0)
    with pytest.raises(IntegrityError, match="1 blocks pinned"):
        pins.check_integrity()
