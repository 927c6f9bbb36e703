"""Redactions that reach the engine: what a forgetting request computes, and what it leaves in the cache.

Random scripts forget, too (test_engine.py). Here are the receipts, the narrow passages and the negative controls.
"""

from __future__ import annotations

import random
from dataclasses import replace
from itertools import takewhile
from typing import Any

import numpy as np
import pytest
from vllm.v1.core.block_pool import BlockPool

from acmserve.engine.requests.live_requests import LiveRequests
from acmserve.engine.requests.receipt import ReceiptBuilder
from acmserve.engine.requests.session_request import SessionRequest
from acmserve.engine.requests.source_store import SourceStore, StoreLimits
from acmserve.engine.scheduling.forgetting import forget_session, num_shared
from acmserve.engine.scheduling.key_evictions import KeyEvictions
from acmserve.engine.vllm import block_pool
from acmserve.plan.owner import Owner
from tests.simulator.test_engine import failure_of
from tests.support.simulator.failure import Kind
from tests.support.simulator.machine import Factory, Machine, block_hasher
from tests.support.simulator.requests.engine_request import as_request
from tests.support.simulator.scripts import Script, Tokens, Turn
from tests.support.simulator.simulation import Simulation
from tests.support.simulator.suite import MODES, Mode
from tests.support.simulator.truth import answer

BLOCK_SIZE = 16
HEAD, SECRET, TAIL, MARKER = tuple(range(10, 49)), tuple(range(100, 161)), tuple(range(200, 245)), (7, 8, 9)
FULL = HEAD + SECRET + TAIL
REDACTED = HEAD + MARKER + TAIL
NUM_EXACT = len(HEAD) // BLOCK_SIZE * BLOCK_SIZE
"""Tokens of the whole blocks in front of the first redacted one. The partial block behind them belongs to a source."""

modes = pytest.mark.parametrize("mode", MODES, ids=str)


def _turn(prompt: Tokens, **fields: Any) -> Turn:
    return Turn("?", prompt, max_tokens=3, **{"session": "s", "fidelity": "reuse", **fields})


def _simulate(factory: Factory, mode: Mode, *turns: Turn, in_turn: bool = True) -> tuple[Simulation, list[Any]]:
    """Run the turns, one by one or at their steps. Return the simulation behind them and the receipts (or None)."""
    machine = Machine(
        mode.async_scheduling, mode.runner_v2, block_size=BLOCK_SIZE, num_blocks=100, connector={"min_move_tokens": 4}
    )
    numbered = [
        replace(turn, request_id=f"r{i}", after=f"r{i - 1}" if in_turn and i else None) for i, turn in enumerate(turns)
    ]
    simulation = Simulation(Script(0, machine, tuple(numbered)), factory)
    simulation.run()
    return simulation, [simulation.receipts.get(turn.request_id) for turn in numbered]


def _counts(receipt: dict[str, Any]) -> tuple[int, int, int]:
    return receipt["kept_tokens"], receipt["moved_tokens"], receipt["computed_tokens"]


def _num_cached(simulation: Simulation, prompt: Tokens) -> int:
    """Tokens at the start of a stranger's prompt that the prefix cache still has."""
    request = simulation._request(Turn("stranger", prompt, 1))
    pool = simulation.scheduler.kv_cache_manager.block_pool
    hits = [pool.get_cached_block(block_hash, [0]) is not None for block_hash in request.block_hashes]
    return BLOCK_SIZE * next((i for i, hit in enumerate(hits) if not hit), len(hits))


@modes
def test_a_redaction_is_computed_behind_the_exact_prefix(factory: Factory, mode: Mode) -> None:
    """With the control: the same request without `forget` moves the tail."""
    _, (_, moved) = _simulate(factory, mode, _turn(FULL), _turn(REDACTED))
    assert _counts(moved)[1] == len(TAIL) - 1
    simulation, (_, redacted) = _simulate(factory, mode, _turn(FULL), _turn(REDACTED, forget=True))
    assert _counts(redacted) == (NUM_EXACT, 0, len(REDACTED) - NUM_EXACT)
    assert redacted["fallback_reason"] == "forgotten"
    assert _num_cached(simulation, FULL) == NUM_EXACT


@modes
@pytest.mark.parametrize("fidelity", ["exact", "reuse"])
def test_there_is_no_reason_where_nothing_would_have_moved(factory: Factory, mode: Mode, fidelity: str) -> None:
    """The first request of a session, and an append: what it repeats of the old text was exact."""
    first, second = _turn(FULL, fidelity=fidelity, forget=True), _turn((*FULL, 5), fidelity=fidelity, forget=True)
    _, receipts = _simulate(factory, mode, first, second)
    assert [_counts(receipt)[1] for receipt in receipts] == [0, 0]
    assert [receipt["fallback_reason"] for receipt in receipts] == [None, None]


@modes
def test_text_that_repeats_moved_kv_is_computed_anew(factory: Factory, mode: Mode) -> None:
    """The redaction's marker is the fold's: token for token the same prompt, but its KV had seen the secret."""
    simulation, (*_, receipt) = _simulate(
        factory, mode, _turn(FULL), _turn(REDACTED), _turn((*REDACTED, 5)), _turn((*REDACTED, 5), forget=True)
    )
    assert _counts(receipt) == (NUM_EXACT, 0, len(REDACTED) + 1 - NUM_EXACT)
    assert receipt["fallback_reason"] == "forgotten"
    assert _num_cached(simulation, REDACTED) == len(REDACTED) // BLOCK_SIZE * BLOCK_SIZE


@modes
def test_the_old_text_comes_back_as_new_text(factory: Factory, mode: Mode) -> None:
    old = _turn((*FULL, 5))
    _, (*_, again) = _simulate(factory, mode, _turn(FULL), _turn(REDACTED, forget=True), old)
    # The redacted request is a source of its own: the text that both share moves, exactly computed as it was.
    assert _counts(again)[0] == len(HEAD)
    assert again["moves"] == [
        {"dst_start": len(HEAD + SECRET), "src_start": len(HEAD + MARKER), "num_tokens": len(TAIL)}
    ]


@modes
def test_another_session_finds_the_common_prefix(factory: Factory, mode: Mode) -> None:
    other = _turn(FULL, session="other", fidelity="exact")
    _, (*_, receipt) = _simulate(factory, mode, _turn(FULL), _turn(REDACTED, forget=True), other)
    assert _counts(receipt) == (NUM_EXACT, 0, len(FULL) - NUM_EXACT)


@modes
def test_a_request_that_still_runs_leaves_nothing_behind(factory: Factory, mode: Mode) -> None:
    """It answers on the old text to its end, and registers blocks long after the redaction."""
    running = replace(_turn(FULL, fidelity="exact"), max_tokens=40)
    redaction = _turn(REDACTED, at_step=8, forget=True)
    simulation, (_, receipt) = _simulate(factory, mode, running, redaction, in_turn=False)
    assert simulation.report.num_forgets_beside_live_requests == 1
    assert _counts(receipt) == (NUM_EXACT, 0, len(REDACTED) - NUM_EXACT)
    assert _num_cached(simulation, FULL + answer(FULL, 40)) == NUM_EXACT
    connector: Any = simulation.scheduler.connector
    assert [source.num_tokens for source in connector.store.get(Owner("s"))] == [len(REDACTED) + 2]


@modes
def test_a_request_that_still_waits_is_answered_as_it_was_asked(factory: Factory, mode: Mode) -> None:
    """Its plan names sources that are gone by the time it is scheduled."""
    served, folded, redaction = _turn(FULL), _turn(REDACTED, at_step=40), _turn((*REDACTED, 5), at_step=40, forget=True)
    simulation, (_, receipt, _) = _simulate(factory, mode, served, folded, redaction, in_turn=False)
    assert simulation.report.num_forgets_beside_live_requests == 1
    assert _counts(receipt) == (NUM_EXACT, 0, len(REDACTED) - NUM_EXACT)
    assert receipt["fallback_reason"] == "source_evicted"


@modes
def test_a_reset_prefix_cache_has_no_sources(factory: Factory, mode: Mode) -> None:
    simulation, _ = _simulate(factory, mode, _turn(FULL))
    connector: Any = simulation.scheduler.connector
    assert len(connector.store) == 1
    assert simulation.scheduler.reset_prefix_cache()
    assert len(connector.store) == 0
    assert simulation.scheduler.reset_connector_cache()


@modes
@pytest.mark.parametrize(
    ("part", "name", "stand_in", "kinds"),
    [
        (SourceStore, "forget", lambda store, owner: (), {"leak", "forgotten"}),
        (block_pool, "evict_keys", lambda pool, keys, num_groups: None, {"forgotten"}),
        (LiveRequests, "of_session", lambda live, owner: [], {"leak", "forgotten"}),
    ],
    ids=["sources-stay", "keys-stay", "live-requests-go-on"],
)
def test_negative_control(
    factory: Factory,
    monkeypatch: pytest.MonkeyPatch,
    mode: Mode,
    part: Any,
    name: str,
    stand_in: object,
    kinds: set[Kind],
) -> None:
    """With a part of forgetting left out, the random scripts trip. Those that are known to come first."""
    monkeypatch.setattr(part, name, stand_in)
    assert failure_of(factory, mode, likely=(16, 18, 6)) in kinds


@modes
def test_what_another_session_was_served_stays(factory: Factory, mode: Mode) -> None:
    """The same text, under the same salt: the other session finds all of it, its partial block included."""
    other = _turn(FULL, session="other")
    again = _turn((*FULL, *answer(FULL, 3)[:2], 5), session="other")
    _, (*_, redacted, receipt) = _simulate(factory, mode, other, _turn(FULL), _turn(REDACTED, forget=True), again)
    assert _counts(redacted) == (NUM_EXACT, 0, len(REDACTED) - NUM_EXACT), "the redacted session computes all the same"
    assert _counts(receipt) == (len(again.prompt) - 1, 0, 1)


@modes
def test_what_another_session_waits_for_stays(factory: Factory, mode: Mode) -> None:
    """A live request is as good as a source."""
    waiting = _turn((*FULL, *FULL), session="other", at_step=40)
    simulation, (*_, receipt) = _simulate(
        factory, mode, _turn(FULL), _turn(REDACTED, at_step=40, forget=True), waiting, in_turn=False
    )
    assert simulation.report.num_forgets == 1
    assert _counts(receipt)[0] == NUM_EXACT, "it came after the redaction"
    _, (_, receipt, _) = _simulate(
        factory, mode, _turn(FULL), waiting, _turn(REDACTED, at_step=40, forget=True), in_turn=False
    )
    assert _counts(receipt)[0] == len(FULL) // BLOCK_SIZE * BLOCK_SIZE, "it came before"


@modes
def test_another_salt_keeps_nothing(factory: Factory, mode: Mode) -> None:
    """Its keys are others, so that it does not stand in the way."""
    simulation, _ = _simulate(
        factory, mode, _turn(FULL, session="other", salt="x"), _turn(FULL), _turn(REDACTED, forget=True)
    )
    assert _num_cached(simulation, FULL) == NUM_EXACT


def test_the_shared_part_is_found_by_its_last_common_hash() -> None:
    rng = random.Random(7)
    for _ in range(300):
        own = [b"%d" % i for i in range(rng.randint(0, 9))]
        others = []
        for _ in range(rng.randint(0, 4)):
            num_common = rng.randint(0, len(own))
            others.append(own[:num_common] + [b"other"] * rng.randint(0, 3))
        for first in range(len(own) + 1):
            commons = [len(list(takewhile(lambda pair: pair[0] == pair[1], zip(own, o, strict=False)))) for o in others]
            longest = max(commons, default=0)
            assert num_shared(own, first, others) == (longest if longest > first else 0)


def test_streaming_input_is_forgotten_from_its_first_redacted_token(factory: Factory) -> None:
    """vLLM made the first answer a part of the prompt. The redacted prompt goes on with what was answered last."""
    request = as_request(_turn(FULL + SECRET), block_hasher(BLOCK_SIZE))
    request.resumable = True
    request.append_output_token_ids(list(TAIL))
    session = SessionRequest("?", Owner("s"), "exact", ReceiptBuilder(len(FULL)), np.array(FULL, dtype=np.int32))
    live, gone = LiveRequests(), list[bytes]()
    live.add(session, request)
    keys = request.block_hashes[:]
    pool = BlockPool(num_gpu_blocks=4, enable_caching=True, hash_block_size=BLOCK_SIZE)
    prompt = np.array(FULL + TAIL, dtype=np.int32)
    forget_session(Owner("s"), prompt, SourceStore(StoreLimits()), live, KeyEvictions(pool, 1, gone.extend), BLOCK_SIZE)
    assert session.hidden_from == len(FULL) // BLOCK_SIZE
    assert gone == keys[len(FULL) // BLOCK_SIZE :]
