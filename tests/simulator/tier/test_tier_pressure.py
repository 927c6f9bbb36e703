"""Sessions that take turns under half the pool that all of them fill: how many folds find their source gone.

    round   every session appends an answer, then every session folds a paragraph in the middle

Between two turns of a session all others have theirs, so what it was served has left the pool.
"""

from __future__ import annotations

import random

import pytest

from tests.support.simulator.machine import Factory, Machine
from tests.support.simulator.report import Report
from tests.support.simulator.scripts import Script, Turn
from tests.support.simulator.simulation import Simulation
from tests.support.simulator.suite import MODES, Mode

NUM_SESSIONS, NUM_ROUNDS, PARAGRAPH, BLOCK = 8, 4, 32, 4
FULL_POOL = NUM_SESSIONS * 6 * PARAGRAPH // BLOCK
MODE = pytest.mark.parametrize("mode", MODES, ids=str)


def pressure_trace(mode: Mode, num_blocks: int, tier_chunks: int) -> Script:
    """Random paragraphs, the same for every pool and every tier."""
    rng = random.Random("pressure")
    turns: list[Turn] = []

    def paragraph() -> tuple[int, ...]:
        return tuple(rng.randrange(800) for _ in range(PARAGRAPH))

    def ask(session: str, pieces: list[tuple[int, ...]]) -> None:
        after = turns[-1].request_id if turns else None
        prompt = tuple(token for piece in pieces for token in piece)
        name = f"{session}-{len(turns)}"
        turns.append(Turn(name, prompt, max_tokens=1, session=session, fidelity="reuse", after=after))

    contexts = {f"s{index}": [paragraph() for _ in range(5)] for index in range(NUM_SESSIONS)}
    for session, pieces in contexts.items():
        ask(session, pieces)
    for _ in range(NUM_ROUNDS):
        for session, pieces in contexts.items():
            pieces[1] = paragraph()[:6]
            ask(session, pieces)
        for session, pieces in contexts.items():
            pieces[1:2] = []
            pieces.append(paragraph())
            ask(session, pieces)
    machine = Machine(
        mode.async_scheduling,
        mode.runner_v2,
        block_size=BLOCK,
        num_blocks=num_blocks,
        max_num_batched_tokens=64,
        connector={"min_move_tokens": 8},
        tier_chunks=tier_chunks,
    )
    return Script(0, machine, tuple(turns))


def report_of(factory: Factory, mode: Mode, num_blocks: int, tier_chunks: int) -> Report:
    return Simulation(pressure_trace(mode, num_blocks, tier_chunks), factory).run()


@MODE
def test_most_evicted_sources_come_back_at_half_the_pool(factory: Factory, mode: Mode) -> None:
    """At least four of five."""
    roomy = report_of(factory, mode, 4 * FULL_POOL, 0)
    without = report_of(factory, mode, FULL_POOL // 2, 0)
    tiered = report_of(factory, mode, FULL_POOL // 2, 4000)
    assert roomy.fallback_reasons["source_evicted"] == 0
    evicted = without.fallback_reasons["source_evicted"]
    assert evicted >= 20, without.fallback_reasons
    assert tiered.fallback_reasons["source_evicted"] <= 0.2 * evicted, (tiered.fallback_reasons, evicted)
    assert tiered.tokens["moved"] >= 0.9 * roomy.tokens["moved"], (tiered.tokens, roomy.tokens)
