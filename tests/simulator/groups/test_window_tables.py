"""The block table of a window group while its request leaps: padded, rolled back, committed."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from acmserve.engine.vllm.window_tables import WindowTables
from acmserve.errors import IntegrityError
from tests.support.simulator.machine import Factory, Machine, block_hasher
from tests.support.simulator.scripts import Turn
from tests.support.simulator.simulation import as_request

BS, WINDOW, NUM_COMPUTED, END = 4, 8, 60, 200
NUM_SKIPPED = (END - WINDOW + 1) // BS


@pytest.fixture
def scheduler(factory: Factory) -> Iterator[Any]:
    """A scheduler with one request, of which 60 tokens are scheduled."""
    machine = Machine(False, False, BS, 100, max_num_batched_tokens=NUM_COMPUTED, connector={}, windows=(WINDOW,))
    started = factory.scheduler(machine)
    started.add_request(as_request(Turn("r", tuple(range(240)), 1), block_hasher(BS)))
    started.schedule()
    yield started
    started.shutdown()


def tables(scheduler: Any) -> WindowTables:
    found: WindowTables = scheduler.connector.move_executor.windows
    return found


def blocks(scheduler: Any) -> list[Any]:
    return list(scheduler.kv_cache_manager.get_blocks("r").blocks[1])


def test_a_leap_that_is_rolled_back_leaves_the_table_as_it_was(scheduler: Any) -> None:
    before = blocks(scheduler)
    tables(scheduler).pad("r", NUM_COMPUTED, END)
    assert blocks(scheduler)[: len(before)] == before
    assert [block.is_null for block in blocks(scheduler)[len(before) :]] == [True] * (NUM_SKIPPED - len(before))
    scheduler.kv_cache_manager.remove_skipped_blocks("r", END)
    assert blocks(scheduler)[: len(before)] == before, "vLLM frees what a request may have to come back to"
    tables(scheduler).roll_back("r")
    assert blocks(scheduler) == before


def test_a_leap_that_is_rolled_back_withholds_no_block_from_the_cache(scheduler: Any) -> None:
    """What it would have passed over is computed, so it may be cached. An earlier leap's head still may not."""
    group = scheduler.connector.move_executor.groups.windows[0]
    tables(scheduler).pad("r", NUM_COMPUTED, END)
    assert not tables(scheduler).is_whole("r", group, NUM_SKIPPED)
    tables(scheduler).roll_back("r")
    assert tables(scheduler).is_whole("r", group, NUM_SKIPPED)
    tables(scheduler).expect("r", NUM_COMPUTED, 101)
    tables(scheduler).commit("r", 101)
    tables(scheduler).pad("r", 120, END)
    tables(scheduler).roll_back("r")
    assert tables(scheduler).is_whole("r", group, NUM_SKIPPED)
    assert not tables(scheduler).is_whole("r", group, (101 - WINDOW + 1) // BS)
    tables(scheduler).check_integrity()


def test_a_leap_that_is_committed_gives_back_what_it_passed_over(scheduler: Any) -> None:
    before = blocks(scheduler)
    tables(scheduler).pad("r", NUM_COMPUTED, END)
    padding, passed = tables(scheduler).commit("r", END)
    assert padding == (0, NUM_SKIPPED - len(before))
    assert all(block.is_null for block in blocks(scheduler))
    assert passed == [block for block in before if not block.is_null]
    assert [block.ref_cnt for block in passed] == [1] * len(passed), "they are freed behind the fence"
    scheduler.kv_cache_manager.block_pool.free_blocks(passed)


def test_a_leap_between_steps_is_noticed(scheduler: Any) -> None:
    tables(scheduler).check_integrity()
    tables(scheduler).pad("r", NUM_COMPUTED, END)
    with pytest.raises(IntegrityError, match="1 leaps pending"):
        tables(scheduler).check_integrity()
    tables(scheduler).roll_back("r")
    tables(scheduler).expect("r", NUM_COMPUTED, END)
    with pytest.raises(IntegrityError, match="1 leaps pending"):
        tables(scheduler).check_integrity()


def test_a_block_whose_head_was_not_copied_is_never_cached(scheduler: Any) -> None:
    """The window of a query at 200 begins at token 193, inside block 48."""
    group = scheduler.connector.move_executor.groups.windows[0]
    tables(scheduler).expect("r", NUM_COMPUTED, END)
    assert not tables(scheduler).is_whole("r", group, NUM_SKIPPED)
    assert tables(scheduler).is_whole("r", group, NUM_SKIPPED + 1)
    tables(scheduler).expect("r", NUM_COMPUTED, END)
    tables(scheduler).drop("r")
    assert tables(scheduler).is_whole("r", group, NUM_SKIPPED)


def test_a_block_in_which_a_leap_begins_is_never_cached(scheduler: Any) -> None:
    """The window of a query at 67 begins at token 60, where a block does. Tokens 58 and 59 are left out."""
    group = scheduler.connector.move_executor.groups.windows[0]
    tables(scheduler).expect("r", 58, 67)
    assert not tables(scheduler).is_whole("r", group, 14)
    assert tables(scheduler).is_whole("r", group, 15)
    tables(scheduler).drop("r")
    tables(scheduler).expect("r", 60, 67)
    assert tables(scheduler).is_whole("r", group, 14), "nothing is left out"
