"""What a tier may cost a step: looks at keys, and requests that bring blocks back. Counts, no times.

first     one long text, in pieces          its blocks leave the pool
holder    decodes, and has half the pool    so the edit waits for free blocks
edit      a token of every piece is gone    one move for each piece
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from tests.support.simulator.machine import Factory, Machine
from tests.support.simulator.scripts import Script, Turn
from tests.support.simulator.simulation import Simulation
from tests.support.simulator.suite import MODES, Mode

BLOCK, NUM_PIECES, PIECE, NUM_HELD = 4, 12, 16, 30
PIECES = [tuple(range(100 + 20 * number, 100 + 20 * number + PIECE)) for number in range(NUM_PIECES)]
FULL = tuple(token for piece in PIECES for token in piece)
EDITED = tuple(token for piece in PIECES for token in piece[1:])
NUM_KEYS = len(FULL) // BLOCK

modes = pytest.mark.parametrize("mode", MODES, ids=str)


def simulate(factory: Factory, mode: Mode, *, is_crowded: bool) -> tuple[Simulation, int]:
    """The script, and how many keys the reads have looked at."""
    machine = Machine(
        mode.async_scheduling,
        mode.runner_v2,
        block_size=BLOCK,
        num_blocks=NUM_KEYS + NUM_HELD if is_crowded else 3 * NUM_KEYS,
        max_num_batched_tokens=256,
        connector={"min_move_tokens": 4},
        tier_chunks=4000,
    )
    floods = tuple(
        Turn(f"flood-{number}", tuple(range(500 + number, 700 + number)), max_tokens=1, salt=f"{number}", after="first")
        for number in range(4)
    )
    holder = Turn("holder", tuple(range(20, 60)), max_tokens=80, salt="h", after="flood-3")
    edit = Turn("edit", EDITED, max_tokens=1, session="s", fidelity="reuse", after="flood-3", at_step=30)
    first = replace(edit, request_id="first", prompt=FULL, after=None, at_step=0)
    turns = (first, *floods, holder, edit) if is_crowded else (first, *floods, edit)
    simulation = Simulation(Script(0, machine, turns), factory)
    connector: Any = simulation.scheduler.connector
    holds, num_looks = connector.tier.holds, 0

    def counted(key: bytes) -> bool:
        nonlocal num_looks
        num_looks += 1
        return bool(holds(key))

    connector.tier.holds = counted
    simulation.run()
    return simulation, num_looks


@modes
def test_all_pieces_of_an_edit_come_back_in_one_read(factory: Factory, mode: Mode) -> None:
    simulation, _ = simulate(factory, mode, is_crowded=False)
    receipt = simulation.receipts["edit"]
    assert len(receipt["moves"]) == NUM_PIECES, "the control: a piece is a move"
    assert receipt["fallback_reason"] is None
    assert receipt["moved_tokens"] == len(EDITED) - 1, "the first piece, too, which stands at the very front"
    found: Any = simulation.scheduler.connector
    assert found.reads.num_blocks == NUM_KEYS
    assert receipt["loaded_tokens"] == receipt["moved_tokens"]
    assert found.reads.num_made <= 2


@modes
def test_an_edit_that_waits_for_blocks_is_looked_at_twice(factory: Factory, mode: Mode) -> None:
    """Not in each of the steps that it waits."""
    simulation, num_looks = simulate(factory, mode, is_crowded=True)
    assert NUM_KEYS <= num_looks <= 2 * NUM_KEYS
    assert simulation.receipts["edit"]["moved_tokens"] > 0
