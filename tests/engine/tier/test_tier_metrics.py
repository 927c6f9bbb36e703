"""What is counted of a tier, from the stats of a step to the text on /metrics."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
from prometheus_client import REGISTRY, Counter, Gauge, Histogram
from vllm.distributed.kv_transfer.kv_connector.v1.offloading.metrics import OffloadingConnectorStats
from vllm.v1.metrics.prometheus import unregister_vllm_metrics

from acmserve.engine.plugin.metrics import AcmPromMetrics
from acmserve.engine.plugin.tiered_connector import TieredConnector
from acmserve.engine.plugin.tiered_metrics import BELOW, TieredStats
from acmserve.engine.requests.receipt import Receipt

LABELS = {"model_name": "m", "engine": "0"}
RECEIPT = Receipt("reuse", 100, 40, 50, 10, (), None, loaded_tokens=64)


def counted(num_bytes: int) -> dict[str, Any]:
    stats = OffloadingConnectorStats()
    stats.increase_counter("vllm:kv_offload_load_bytes", num_bytes)
    stats.observe_histogram("vllm:kv_offload_load_size", num_bytes)
    return stats.to_dict()


@pytest.fixture
def metrics() -> Iterator[Any]:
    config: Any = SimpleNamespace(
        kv_transfer_config=SimpleNamespace(engine_id="e"), cache_config=SimpleNamespace(kv_offloading_size=1.0)
    )
    unregister_vllm_metrics()
    types: Any = {Gauge: Gauge, Counter: Counter, Histogram: Histogram}
    yield TieredConnector.build_prom_metrics(config, types, list(LABELS), {0: list(LABELS.values())})
    AcmPromMetrics._unregister()
    unregister_vllm_metrics()


def test_both_parts_of_a_payload_reach_their_metrics(metrics: Any) -> None:
    stats = TieredStats()
    stats.add(RECEIPT)
    stats.add_below(counted(1000))
    for payload in (stats.to_dict(), {**TieredStats().to_dict(), "loaded_tokens": 1}):
        metrics.observe(payload)
    assert REGISTRY.get_sample_value("acmserve:loaded_tokens_total", LABELS) == 65.0
    assert REGISTRY.get_sample_value("vllm:kv_offload_load_bytes_total", LABELS) == 1000.0
    assert REGISTRY.get_sample_value("vllm:kv_offload_load_size_count", LABELS) == 1.0


def test_workers_and_scheduler_are_added_up() -> None:
    first, second = TieredStats(), TieredStats()
    assert first.is_empty()
    first.add_below(counted(5))
    second.add(RECEIPT)
    second.add_below(counted(7))
    sent = TieredStats(copy.deepcopy(second.to_dict()))
    total = first.aggregate(sent)
    assert (total.data["loaded_tokens"], total.data[BELOW]["data"]["vllm:kv_offload_load_bytes"]) == (64, {(): 12})
    assert second.data[BELOW]["data"]["vllm:kv_offload_load_size"] == {(): [7]}, "what was handed out stays"
    assert total.reduce()["vllm:kv_offload_load_bytes"] == 12
    assert total.reduce()["acm loaded tokens"] == 64
    assert not total.is_empty()
    total.reset()
    assert total.is_empty()
