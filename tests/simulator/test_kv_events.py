"""What a cache-aware router learns from the engine: exact blocks alone, under the hashes of their tokens."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
from vllm.distributed.kv_events import BlockRemoved, BlockStored, KVEventBatch
from vllm.utils.hashing import sha256
from vllm.v1.core.block_pool import BlockPool
from vllm.v1.core.kv_cache_utils import maybe_convert_block_hash
from vllm.v1.request import Request

from acmserve.engine.vllm import block_pool, kv_events
from acmserve.engine.vllm.hidden_hasher import HiddenHasher
from acmserve.engine.vllm.kv_events import hide_moved_blocks
from acmserve.engine.vllm.lineage_hasher import LineageHasher
from acmserve.plan.lineage import LineageMark
from tests.support.simulator.machine import Factory, Machine, block_hasher
from tests.support.simulator.requests.engine_request import as_request
from tests.support.simulator.scripts import Script, Turn
from tests.support.simulator.simulation import Simulation

BLOCK_SIZE = 4
FULL = tuple(range(10, 110))
FOLDED = (*range(10, 43), 7, 8, *range(61, 110))
AGAIN = (*FOLDED, *range(300, 340))
STRANGER = tuple(range(400, 500))


def _announced(factory: Factory, num_blocks: int = 300, **fields: Any) -> tuple[Simulation, list[BlockStored]]:
    """A fold and an append behind it, each behind what somebody else sent. The events that went out."""
    machine = Machine(
        False, False, block_size=BLOCK_SIZE, num_blocks=num_blocks, connector={"min_move_tokens": 4}, kv_events=True
    )
    turns = (
        Turn("full", FULL, 1, session="s", fidelity="reuse"),
        Turn("stranger", STRANGER, 1, after="full"),
        Turn("folded", FOLDED, 1, session="s", fidelity="reuse", after="stranger"),
        Turn("stranger again", STRANGER, 1, after="folded"),
        Turn("again", AGAIN, 1, session="s", fidelity="reuse", after="stranger again"),
    )
    simulation = Simulation(Script(0, replace(machine, **fields), turns), factory)
    events: list[BlockStored] = []

    class Publisher:
        def publish(self, batch: KVEventBatch) -> None:
            events.extend(event for event in batch.events if isinstance(event, BlockStored))

        def shutdown(self) -> None:
            """Nothing is open."""

    scheduler: Any = simulation.scheduler
    scheduler.kv_event_publisher = Publisher()
    simulation.run()
    assert simulation.receipts["folded"]["moved_tokens"] > 0
    return simulation, events


def _false_blocks(events: list[BlockStored]) -> int:
    """Blocks announced for other tokens than a stranger would find there."""
    exact = _exact_blocks()
    num_false = 0
    for event in events:
        assert len(event.token_ids) == len(event.block_hashes) * BLOCK_SIZE
        assert event.block_hashes
        for index, block_hash in enumerate(event.block_hashes):
            tokens = event.token_ids[index * BLOCK_SIZE : (index + 1) * BLOCK_SIZE]
            num_false += exact.get(block_hash) != tuple(tokens)
    return num_false


def _exact_blocks() -> dict[Any, tuple[int, ...]]:
    """The tokens of each block by the hash that a router knows."""
    found = {}
    for prompt in (FULL, FOLDED, AGAIN, STRANGER):
        for index, block_hash in enumerate(_request(prompt).block_hashes):
            found[maybe_convert_block_hash(block_hash)] = prompt[index * BLOCK_SIZE : (index + 1) * BLOCK_SIZE]
    return found


def _request(prompt: tuple[int, ...]) -> Request:
    return as_request(Turn("r", prompt, 1), block_hasher(BLOCK_SIZE))


def test_moved_blocks_are_not_announced(factory: Factory) -> None:
    _, events = _announced(factory)
    assert _false_blocks(events) == 0
    announced = {block_hash for event in events for block_hash in event.block_hashes}
    assert announced >= {maybe_convert_block_hash(block_hash) for block_hash in _request(FULL).block_hashes}


def test_negative_control(factory: Factory, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the filter the router hears of blocks that only the session can use."""
    monkeypatch.setattr(kv_events, "_build_exact", lambda pool, build, request, **fields: build(request, **fields))
    assert _false_blocks(_announced(factory)[1]) > 0


def test_blocks_that_come_back_from_a_tier_are_announced_with_their_own_tokens(factory: Factory) -> None:
    """A read of the tier has keys of any order and no text."""
    simulation, events = _announced(factory, num_blocks=35, tier_chunks=4000)
    connector: Any = simulation.scheduler.connector
    assert connector.reads.num_blocks >= 8
    assert _false_blocks(events) == 0


PROMPT = tuple(range(1, 41))
MARK = 22
"""The first token of moved KV. It stands in the midst of block 5."""


def _moved(*, is_moved: bool = True) -> Request:
    """Ten blocks, and KV that was moved from `MARK` on."""
    request = _request(PROMPT)
    if is_moved:
        hasher = LineageHasher(sha256, BLOCK_SIZE, [LineageMark(MARK, b"key", 10)])
        block_pool.set_hasher(request, hasher, hasher.extended(request, ()))
    return request


def _cached(
    request: Request, end: int, mask: Sequence[bool] | None = None, first: int = 0, size: int = BLOCK_SIZE
) -> list[BlockStored]:
    """What a pool tells when it caches blocks `[first, end)` of `size` tokens, but for the masked ones."""
    pool = _pool()
    blocks = pool.get_new_blocks(len(PROMPT) // size)
    pool.cache_full_blocks(request, blocks, first, end, size, 0, None if mask is None else list(mask[first:end]))
    return list(pool.take_events())


def _pool() -> Any:
    pool = BlockPool(num_gpu_blocks=40, enable_caching=True, hash_block_size=BLOCK_SIZE, enable_kv_cache_events=True)
    hide_moved_blocks(pool)
    return pool


@pytest.mark.parametrize(
    "mask",
    [
        [True] * 10,
        [False] * 4 + [True] * 6,
        [True, False] * 5,
        [False] * 7 + [True] * 3,
    ],
    ids=["all", "behind a gap", "every other", "moved alone"],
)
@pytest.mark.parametrize("first", [0, 4])
def test_a_window_tells_of_what_stands_in_front_of_the_mark(factory: Factory, mask: list[bool], first: int) -> None:
    """As vLLM tells it of a request that ends there: its list of hashes has none of a masked block."""
    num_exact = MARK // BLOCK_SIZE
    expected = _cached(_moved(is_moved=False), num_exact, mask, first)
    assert _cached(_moved(), 10, mask, first) == (expected if any(mask[first:num_exact]) else [])


def test_a_window_of_larger_blocks_tells_of_whole_ones(factory: Factory) -> None:
    expected = _cached(_moved(is_moved=False), 2, size=2 * BLOCK_SIZE)
    assert _cached(_moved(), 5, size=2 * BLOCK_SIZE) == expected


@pytest.mark.parametrize("is_moved", [True, False], ids=["moved", "exact"])
def test_a_forgotten_request_announces_nothing_more(factory: Factory, is_moved: bool) -> None:
    """It is still answered, and its text has been redacted."""
    pool, request = _pool(), _moved(is_moved=is_moved)
    blocks = pool.get_new_blocks(10)
    pool.cache_full_blocks(request, blocks, 0, 5, BLOCK_SIZE, 0)
    assert len(pool.take_events()) == 1
    block_pool.hide(request, HiddenHasher(BLOCK_SIZE), 5)
    pool.cache_full_blocks(request, blocks, 5, 10, BLOCK_SIZE, 0)
    pool.emit_cached_block_events(request, 10, BLOCK_SIZE, 0)
    assert pool.take_events() == []


@pytest.mark.parametrize(
    ("num_tokens", "is_hidden", "is_told"),
    [(20, False, True), (36, False, False), (20, True, False)],
    ids=["exact", "moved", "forgotten"],
)
def test_a_part_of_a_block_is_announced_in_front_of_the_mark(
    factory: Factory, num_tokens: int, is_hidden: bool, is_told: bool
) -> None:
    """Groups of larger blocks cache the end of a prompt so. What the block held until then is told to be gone."""
    pool, request = _pool(), _moved()
    if is_hidden:
        block_pool.hide(request, HiddenHasher(BLOCK_SIZE), 3)
    (block,) = pool.get_new_blocks(1)
    pool.cache_partial_block(_request(STRANGER), block, num_tokens - 2 * BLOCK_SIZE, 0, 2 * BLOCK_SIZE)
    pool.take_events()
    pool.cache_partial_block(request=request, block=block, num_tokens=num_tokens, kv_cache_group_id=0, block_size=8)
    removed, *stored = pool.take_events()
    assert isinstance(removed, BlockRemoved)
    assert [event.token_ids for event in stored] == [list(PROMPT[num_tokens - 4 : num_tokens])] * is_told
