"""Receipts added up, from the scheduler's stats to the text on /metrics."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client import REGISTRY, Counter, Gauge, Histogram

from acmserve.engine.plugin.metrics import PRECOMPUTE_KEYS, TOKEN_KEYS, AcmPromMetrics, AcmStats
from acmserve.engine.requests.receipt import Receipt
from acmserve.engine.scheduling.background_blocks import BackgroundCounts

LABELS = {0: ["m", "0"], 1: ["m", "1"]}


def receipt(
    kept: int = 0, moved: int = 0, computed: int = 0, fidelity: str = "exact", reason: str | None = None
) -> Receipt:
    return Receipt(fidelity, kept + moved + computed, kept, moved, computed, (), reason)


receipts = st.lists(
    st.builds(
        receipt,
        *[st.integers(0, 10**6)] * 3,
        fidelity=st.sampled_from(["exact", "reuse"]),
        reason=st.sampled_from([None, "lora", "alibi"]),
    ),
    max_size=8,
)


def stats_of(some: list[Receipt]) -> AcmStats:
    stats = AcmStats()
    for one in some:
        stats.add(one)
    return stats


@pytest.fixture
def metrics() -> Iterator[AcmPromMetrics]:
    config: Any = SimpleNamespace(kv_transfer_config=None)
    types = {Gauge: Gauge, Counter: Counter, Histogram: Histogram}
    yield AcmPromMetrics(config, types, ["model_name", "engine"], {k: list(v) for k, v in LABELS.items()})
    AcmPromMetrics._unregister()


def value(name: str, engine: str, **labels: str) -> float | None:
    number: float | None = REGISTRY.get_sample_value(
        f"acmserve:{name}_total", {"model_name": "m", "engine": engine, **labels}
    )
    return number


@given(receipts, receipts)
def test_parts_add_up_to_the_whole_across_processes(first: list[Receipt], second: list[Receipt]) -> None:
    sent = AcmStats(json.loads(json.dumps(stats_of(second).to_dict())))
    assert stats_of(first).aggregate(sent).data == stats_of(first + second).data


@given(receipts)
def test_sums_are_those_of_the_receipts(some: list[Receipt]) -> None:
    stats = stats_of(some)
    assert [stats.data[key] for key in TOKEN_KEYS] == [sum(getattr(r, key) for r in some) for key in TOKEN_KEYS]
    assert stats.is_empty() == (not some)
    assert stats.reduce()["acm requests"] == len(some)


def test_reset_leaves_a_payload_that_was_handed_out() -> None:
    stats = stats_of([receipt(kept=3)])
    payload = stats.to_dict()
    stats.reset()
    assert stats.is_empty()
    assert payload["kept_tokens"] == 3


def test_counters_stand_at_zero_before_the_first_request(metrics: AcmPromMetrics) -> None:
    assert [value(key, engine) for key in TOKEN_KEYS for engine in "01"] == [0.0] * 10


def test_counters_rise_for_the_engine_that_reports(metrics: AcmPromMetrics) -> None:
    step = stats_of([receipt(5, 7, 11, "reuse"), receipt(1, 0, 2, "reuse", "alibi"), receipt(computed=4)])
    metrics.observe(step.to_dict(), engine_idx=1)
    metrics.observe(stats_of([receipt(kept=100)]).to_dict(), engine_idx=1)
    assert [value(key, "1") for key in TOKEN_KEYS] == [106.0, 7.0, 17.0, 0.0, 0.0]
    assert [value(key, "0") for key in TOKEN_KEYS] == [0.0] * 5
    assert value("requests", "1", fidelity="reuse") == 2.0
    assert value("requests", "1", fidelity="exact") == 2.0
    assert value("fallbacks", "1", reason="alibi") == 1.0


def test_repairs_and_choices_are_counted(metrics: AcmPromMetrics) -> None:
    one = replace(receipt(5, 7, 11, "auto"), repaired_tokens=4, chosen="repair")
    step = stats_of([one, one, replace(receipt(computed=9, fidelity="auto"), chosen="exact")])
    metrics.observe(json.loads(json.dumps(step.aggregate(stats_of([one])).to_dict())))
    assert value("repaired_tokens", "0") == 12.0
    assert (value("choices", "0", chosen="repair"), value("choices", "0", chosen="exact")) == (3.0, 1.0)
    assert value("requests", "0", fidelity="auto") == 4.0


def test_work_ahead_is_counted_apart_from_receipts(metrics: AcmPromMetrics) -> None:
    stats = AcmStats()
    stats.add_precomputed(BackgroundCounts(40, 24, 16, seconds=0.5, delay_seconds=0.25, left_tokens=8))
    assert not stats.is_empty()
    metrics.observe(json.loads(json.dumps(stats.to_dict())), engine_idx=1)
    assert [value(key, "1") for key in PRECOMPUTE_KEYS] == [40.0, 24.0, 16.0, 0.5, 0.25, 8.0]
    assert [value(key, "1") for key in TOKEN_KEYS] == [0.0] * 5
    assert stats.aggregate(AcmStats(stats.to_dict())).data["precomputed_seconds"] == 1.0


def test_moves_are_timed_across_processes(metrics: AcmPromMetrics) -> None:
    worker, other = AcmStats(), AcmStats()
    assert worker.is_empty()
    for stats in (worker, other):
        with stats.timed_move():
            pass
    assert not worker.is_empty()
    metrics.observe(json.loads(json.dumps(worker.aggregate(other).to_dict())), engine_idx=1)
    sample = {"model_name": "m", "engine": "1"}
    assert REGISTRY.get_sample_value("acmserve:move_seconds_count", sample) == 2.0
    assert (REGISTRY.get_sample_value("acmserve:move_seconds_sum", sample) or 0.0) > 0.0
    assert stats_of([receipt(kept=1)]).aggregate(worker).data["move_seconds"] == worker.data["move_seconds"]


def test_a_second_engine_in_the_process_starts_its_counters_anew(metrics: AcmPromMetrics) -> None:
    metrics.observe(stats_of([receipt(kept=9)]).to_dict())
    config: Any = SimpleNamespace(kv_transfer_config=None)
    types = {Gauge: Gauge, Counter: Counter, Histogram: Histogram}
    AcmPromMetrics(config, types, ["model_name", "engine"], {0: ["m", "0"]})
    assert value("kept_tokens", "0") == 0.0
