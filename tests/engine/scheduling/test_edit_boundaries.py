"""Exact edits of hybrid models on vLLM's real scheduler: an edit costs its suffix and less than a block."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from acmserve.engine.plugin.entry_point import register
from acmserve.engine.scheduling.edit_boundaries import MAX_POOL_SHARE
from acmserve.errors import IntegrityError
from tests.support.engine.edits import cut, text
from tests.support.engine.hybrid_scheduler import BLOCK, Hybrid, HybridScheduler
from tests.support.simulator.machine import Factory, write_model

HISTORY = text(1200, "history")
MARKER, NEW = text(8, "marker"), text(20, "new")
PIECES = [(205, 290), (320, 330), (335, 420), (700, 905), (1000, 1010)]
WINDOW = Hybrid(windows=(64,))
RECURRENT = Hybrid(num_recurrent=2)
HYBRIDS = {
    "window": WINDOW,
    "two windows": Hybrid(windows=(40, 128)),
    "recurrent": RECURRENT,
    "both": Hybrid(windows=(64,), num_recurrent=1),
    "an interval": Hybrid(windows=(64,), retention=512),
}

Start = Callable[[Hybrid], HybridScheduler]


@pytest.fixture(scope="module")
def factory(tmp_path_factory: pytest.TempPathFactory) -> Factory:
    register()
    return Factory(write_model(tmp_path_factory.mktemp("model")))


@pytest.fixture
def start(factory: Factory) -> Start:
    return partial(HybridScheduler, factory)


@pytest.mark.parametrize("hybrid", HYBRIDS.values(), ids=HYBRIDS)
@pytest.mark.parametrize("piece", range(len(PIECES)))
def test_a_fold_computes_its_suffix_and_less_than_a_block(start: Start, hybrid: Hybrid, piece: int) -> None:
    scheduler = start(hybrid)
    served = scheduler.ask(HISTORY, PIECES)
    assert served["edit_boundaries"]["kept"] == served["edit_boundaries"]["wanted"] > 0
    at, end = PIECES[piece]
    folded = [*cut(HISTORY, at, end, MARKER), *NEW]
    receipt = scheduler.ask(folded)
    assert at - BLOCK < receipt["kept_tokens"] <= at
    assert receipt["computed_tokens"] == len(folded) - receipt["kept_tokens"]


@pytest.mark.parametrize(
    "hybrid",
    [WINDOW, RECURRENT, replace(WINDOW, plugin={"max_boundary_mib": 0})],
    ids=["window, not named", "recurrent, not named", "off"],
)
def test_control_without_it_a_fold_costs_the_whole_prompt(start: Start, hybrid: Hybrid) -> None:
    scheduler = start(hybrid)
    served = scheduler.ask(HISTORY, PIECES if hybrid.plugin else ())
    assert served["edit_boundaries"] is None
    assert scheduler.ask([*cut(HISTORY, 335, 420, MARKER), *NEW])["kept_tokens"] == 0


def test_vllms_own_boundary_stays(start: Start) -> None:
    """What vLLM sees itself, that two prompts share a prefix, is kept as without the plugin."""
    scheduler = start(WINDOW)
    scheduler.ask(HISTORY)
    scheduler.ask([*HISTORY[:500], *text(500, "other")], [(700, 800)])
    assert scheduler.ask([*HISTORY[:500], *text(500, "third")])["kept_tokens"] == 496


def test_full_attention_alone_has_nothing_to_do(start: Start) -> None:
    scheduler = start(Hybrid())
    served = scheduler.ask(HISTORY, PIECES)
    assert served["edit_boundaries"] is None
    assert len(scheduler.steps) == 5, "no chunk was cut"
    assert scheduler.ask([*cut(HISTORY, 335, 420, MARKER), *NEW])["kept_tokens"] >= 320


def test_a_dense_cache_keeps_the_windows_by_itself(start: Start) -> None:
    scheduler = start(replace(WINDOW, retention=None))
    assert scheduler.ask(HISTORY, PIECES)["edit_boundaries"] is None


def test_the_budget_holds_and_the_most_valuable_is_kept(start: Start) -> None:
    """A quarter of 160 blocks: ten tails of four that share none. Of 50 pieces the receipt tells how many have one."""
    small = replace(WINDOW, num_blocks=160)
    scheduler = start(small)
    pieces = [(at, at + 10) for at in range(100, 1100, 20)]
    told = scheduler.ask(HISTORY, pieces)["edit_boundaries"]
    assert told["wanted"] > 40
    assert 0 < told["kept"] < told["wanted"]
    assert told["kv_bytes"] <= MAX_POOL_SHARE * 160 * 2 * BLOCK * 16 * 4
    assert scheduler.ask([*HISTORY[:700], *NEW])["kept_tokens"] > 0


def test_a_conversation_keeps_its_boundaries_turn_by_turn(start: Start) -> None:
    """Each turn appends 100 tokens. Then any piece of any turn is folded."""
    for hybrid in (WINDOW, RECURRENT):
        scheduler = start(hybrid)
        pieces = [(at, at + 100) for at in range(100, 1200, 100)]
        for end in range(200, 1300, 100):
            receipt = scheduler.ask(HISTORY[:end], [piece for piece in pieces if piece[1] <= end])
            assert receipt["computed_tokens"] <= 100 + BLOCK or end == 200
        for at, _ in pieces[:-1]:
            kept = scheduler.ask([*HISTORY[:at], *text(50, at)])["kept_tokens"]
            assert at - BLOCK < kept <= at, at


def test_two_requests_at_once_keep_their_own(start: Start) -> None:
    scheduler = start(replace(RECURRENT, chunk=128))
    other = text(900, "second")
    scheduler.ask_all([scheduler.request(HISTORY, PIECES), scheduler.request(other, [(300, 500)], "t")])
    assert scheduler.ask([*HISTORY[:705], *NEW])["kept_tokens"] == 688
    assert scheduler.ask([*other[:310], *NEW])["kept_tokens"] == 288


def test_under_pressure_requests_are_preempted_and_end(start: Start) -> None:
    """More requests than the pool holds: kept boundaries are given up, never in anybody's way."""
    scheduler = start(replace(WINDOW, num_blocks=190, long_prefill=64, reserve_full_input=False))
    prompts = [text(700, number) for number in range(6)]
    requests = [scheduler.request(prompt, [(200, 300), (400, 500)], str(n)) for n, prompt in enumerate(prompts)]
    receipts = scheduler.ask_all(requests)
    assert scheduler.num_preemptions > 0
    assert [receipt["prompt_tokens"] for receipt in receipts] == [700] * 6
    pool = scheduler.scheduler.kv_cache_manager.block_pool
    assert pool.get_num_free_blocks() == 189, "every block but the null block is free again"


@settings(max_examples=25)
@given(
    st.sampled_from([WINDOW, RECURRENT, HYBRIDS["both"]]),
    st.lists(st.tuples(st.integers(16, 1000), st.integers(1, 150)), min_size=1, max_size=8),
    st.sampled_from([48, 100, 256, 2048]),
    st.data(),
)
def test_any_pieces_any_chunks(
    factory: Factory, hybrid: Hybrid, pairs: list[tuple[int, int]], chunk: int, data: st.DataObject
) -> None:
    scheduler = HybridScheduler(factory, replace(hybrid, chunk=chunk, num_blocks=2000))
    pieces = [(start, start + num) for start, num in pairs]
    told = scheduler.ask(HISTORY, pieces)["edit_boundaries"]
    assert told["kept"] == told["wanted"]
    at, _ = data.draw(st.sampled_from(pieces))
    after = text(40, "after")
    while after[0] == HISTORY[at]:
        after = after[1:]
    kept = scheduler.ask([*HISTORY[:at], *after])["kept_tokens"]
    assert at - BLOCK < kept <= at


def test_integrity_trips_on_a_request_that_has_gone(start: Start) -> None:
    scheduler = start(WINDOW)
    request = scheduler.request(HISTORY, PIECES)
    scheduler.scheduler.add_request(request)
    keeper = scheduler.connector.boundaries
    keeper.check_integrity()
    keeper._keepings[request.request_id].ahead = (32, 16)
    with pytest.raises(IntegrityError, match="not in order"):
        keeper.check_integrity()
    keeper._keepings[request.request_id].ahead = ()
    request.status = type(request.status).FINISHED_ABORTED
    with pytest.raises(IntegrityError, match="has finished"):
        keeper.check_integrity()
