"""The tier below the KV blocks, through the real engine: what left the pool comes back, and is moved as if it had not.

One engine without `kv_offloading_size`, which is the control, and then one with it. One of them may live at a time.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from acmserve.engine.plugin.tiered_connector import TieredConnector
from acmserve.engine.plugin.tiered_metrics import BELOW, TieredStats
from tests.support.engine.edits import text
from tests.support.engine.engine import TINY_SETTINGS, Engine, start_engine
from tests.support.engine.flood import (
    BLOCK,
    FOLDED,
    HISTORY,
    MARKER,
    NEW,
    SMALL_POOL,
    SUFFIX,
    empty_pool,
    fold_after_flood,
)
from tests.support.engine.tiny_model import TINY_MODELS

MAX_DIFFERENCE = 1e-3


def _start(tmp_path_factory: pytest.TempPathFactory, **settings: Any) -> Any:
    path = TINY_MODELS[0].write(tmp_path_factory.mktemp("models"))
    settings = TINY_SETTINGS | SMALL_POOL | settings
    return start_engine(path, plugin={"min_move_tokens": 16}, own_process=False, **settings)


def test_control_without_a_tier_nothing_moves(tmp_path_factory: pytest.TempPathFactory) -> None:
    with _start(tmp_path_factory) as engine:
        folded = fold_after_flood(engine, "control")
    assert folded.receipt is not None
    assert folded.receipt["moved_tokens"] == folded.receipt["kept_tokens"] == 0
    assert folded.receipt["fallback_reason"] == "source_evicted"
    assert folded.receipt["loaded_tokens"] == 0


@pytest.fixture(scope="module")
def tiered(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Engine]:
    with _start(tmp_path_factory, kv_offloading_size=0.25) as started:
        yield started


def test_a_fold_moves_what_left_the_pool(tiered: Engine) -> None:
    folded = fold_after_flood(tiered, "fold")
    exact = tiered.ask(FOLDED, "other", "exact", salt="fold")
    assert folded.receipt is not None
    assert exact.receipt is not None
    assert folded.receipt["moved_tokens"] >= 0.9 * SUFFIX
    assert folded.receipt["kept_tokens"] >= 192
    assert folded.receipt["fallback_reason"] is None
    assert folded.distance(exact) <= MAX_DIFFERENCE
    assert exact.receipt["moved_tokens"] == 0
    assert folded.receipt["loaded_tokens"] >= 0.9 * (folded.receipt["kept_tokens"] + folded.receipt["moved_tokens"])
    counts = ("kept_tokens", "moved_tokens", "computed_tokens")
    assert sum(folded.receipt[count] for count in counts) == len(FOLDED)


def test_an_exact_request_gets_no_moved_kv_from_the_tier(tiered: Engine) -> None:
    """The folded prompt was stored, too. Its moved blocks have hashes that no exact request has."""
    fold_after_flood(tiered, "exact")
    empty_pool(tiered, "exact-again")
    exact = tiered.ask(FOLDED, "stranger", "exact", salt="exact")
    assert exact.receipt is not None
    assert exact.receipt["moved_tokens"] == 0
    assert 160 <= exact.receipt["kept_tokens"] <= 200
    empty_pool(tiered, "exact-once-more")
    own = tiered.ask([*FOLDED, *text(40, "more")], "exact", "reuse", salt="exact")
    assert own.receipt is not None
    assert own.receipt["kept_tokens"] >= len(FOLDED) - BLOCK, "the session's own folded prompt comes back as it was"


def test_an_answer_in_the_middle_of_a_conversation_comes_back(tiered: Engine) -> None:
    """A prefix that left the pool is loaded for an append, with a session and without."""
    for session in ("append", None):
        salt = f"append-{session}"
        tiered.ask(HISTORY[:800], session, salt=salt)
        empty_pool(tiered, salt)
        grown = tiered.ask([*HISTORY[:800], *NEW], session, salt=salt)
        fresh = tiered.ask([*HISTORY[:800], *NEW], salt="elsewhere")
        assert grown.distance(fresh) <= MAX_DIFFERENCE
        if grown.receipt is not None:
            assert grown.receipt["kept_tokens"] == grown.receipt["loaded_tokens"] == 800


def test_what_vllm_counts_of_the_tier_is_passed_on(tiered: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    """Bytes of what was stored and loaded, and the tokens that came back, in one payload."""
    seen, original = TieredStats(), TieredConnector.get_kv_connector_stats

    def watched(connector: TieredConnector) -> Any:
        stats = original(connector)
        if stats is not None:
            seen.aggregate(stats)
        return stats

    monkeypatch.setattr(TieredConnector, "get_kv_connector_stats", watched)
    folded = fold_after_flood(tiered, "counted")
    assert folded.receipt is not None
    counted = seen.data[BELOW]["data"]
    num_loaded = counted["vllm:kv_offload_load_bytes"][()]
    assert num_loaded > 0
    assert counted["vllm:kv_offload_store_bytes"][()] > num_loaded, "the flood was stored, too"
    assert seen.data["loaded_tokens"] == folded.receipt["loaded_tokens"] > 0


def test_redacted_text_is_not_in_the_tier(tiered: Engine) -> None:
    """Nobody else sent it: after the redaction it is computed. Without one it comes back (the control)."""
    clean = [*HISTORY[:200], *MARKER]
    for forget in (False, True):
        session = f"redact-{forget}"
        tiered.ask(HISTORY, session, "reuse", salt=session)
        tiered.ask(clean, session, "exact", salt=session, forget=forget)
        empty_pool(tiered, session)
        again = tiered.ask(HISTORY, "later", "exact", salt=session)
        assert again.receipt is not None
        assert (again.receipt["kept_tokens"] > 800) is not forget, again.receipt
        assert again.receipt["kept_tokens"] >= 192
