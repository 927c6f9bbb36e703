"""Receipts added up: from the scheduler's connector, through vLLM's stats, to Prometheus counters on /metrics.

    request_finished -> AcmStats.add          engine core, scheduler side: one receipt
    start_load_kv -> AcmStats.timed_move      worker: how long the copies of a step took (on a GPU, to launch them)
    get_kv_connector_stats -> AcmStats        once a step, and vLLM serialises `data` (scheduler.py:2342, 2937)
    AcmPromMetrics.observe(data, engine_idx)  API server: counters of that engine (loggers.py:1196)

`data` holds string keys, numbers and lists of numbers only, as it crosses a process boundary. Each engine of a data-
parallel server reports for itself, so the counters carry vLLM's own labels (`model_name`, `engine`) and add up across
engines. Tokens are prompt tokens of session requests. Requests without session appear in none of these numbers. Nor do
background requests: what they compute, and what becomes of it, is counted apart, used also by requests without session.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, ClassVar, Final

from prometheus_client import REGISTRY, Counter, Histogram
from vllm.config import VllmConfig
from vllm.distributed.kv_transfer.kv_connector.v1.metrics import (
    KVConnectorPromMetrics,
    KVConnectorStats,
)

from acmserve.engine.requests.receipt import Receipt
from acmserve.engine.scheduling.background_blocks import BackgroundCounts

TOKEN_KEYS: Final = ("kept_tokens", "moved_tokens", "computed_tokens", "loaded_tokens", "repaired_tokens")
PRECOMPUTE_KEYS: Final = {
    "precomputed_tokens": "computed_tokens",
    "precomputed_used_tokens": "used_tokens",
    "precomputed_wasted_tokens": "wasted_tokens",
    "precomputed_seconds": "seconds",
    "precompute_delay_seconds": "delay_seconds",
    "precomputed_left_tokens": "left_tokens",
}
"""Counter -> the field of `BackgroundCounts` that it adds up."""
_MOVE_BUCKETS: Final = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5)
_DOCUMENTATION: Final = {
    "kept_tokens": "Prompt tokens of session requests whose KV was kept where it was, exact.",
    "moved_tokens": "Prompt tokens of session requests whose KV was moved from an earlier context.",
    "computed_tokens": "Prompt tokens of session requests that were computed.",
    "loaded_tokens": "Of the kept and moved ones, those whose KV came back from host memory.",
    "repaired_tokens": "Of the computed ones, those that moved KV could have served: computed for fidelity's sake.",
    "precomputed_tokens": "Tokens that background requests computed.",
    "precomputed_used_tokens": "Precomputed tokens that a request then kept or moved.",
    "precomputed_wasted_tokens": "Precomputed tokens whose KV was lost before any request used it.",
    "precomputed_seconds": "Seconds of idle time in which background requests were computed.",
    "precomputed_left_tokens": "Of the wasted ones, those whose step was left because a request arrived.",
    "precompute_delay_seconds": "Seconds that other requests waited for a background step in flight.",
    "move_seconds": "Seconds that the moves of one step took a worker; on a GPU, to launch them.",
    "requests": "Finished session requests, by the fidelity they asked for.",
    "choices": "Finished session requests of fidelity auto, by the fidelity that was chosen.",
    "fallbacks": "Finished session requests that were computed although a move was asked for, by reason.",
}


class AcmStats(KVConnectorStats):
    """Sums over receipts: tokens, requests by fidelity, choices of `auto`, fallbacks by reason."""

    data: dict[str, Any]

    def __init__(self, data: dict[str, Any] | None = None) -> None:
        super().__init__(data=data or {})
        if not self.data:
            self.reset()

    def add(self, receipt: Receipt) -> None:
        """Count the receipt of one finished request."""
        for key in TOKEN_KEYS:
            self.data[key] += getattr(receipt, key)
        _count(self.data["requests"], receipt.fidelity, 1)
        if receipt.chosen is not None:
            _count(self.data["choices"], receipt.chosen, 1)
        if receipt.fallback_reason is not None:
            _count(self.data["fallbacks"], receipt.fallback_reason, 1)

    def add_precomputed(self, counts: BackgroundCounts) -> None:
        """Count precomputed tokens, and what became of them."""
        for key, name in PRECOMPUTE_KEYS.items():
            self.data[key] += getattr(counts, name)

    @contextmanager
    def timed_move(self) -> Iterator[None]:
        """Note how long the moves of one step take."""
        began_at = time.perf_counter()
        yield
        self.data["move_seconds"].append(time.perf_counter() - began_at)

    def reset(self) -> None:
        """Start again at zero. A payload handed out before keeps its numbers."""
        self.data = {
            **dict.fromkeys((*TOKEN_KEYS, *PRECOMPUTE_KEYS), 0),
            "requests": {},
            "choices": {},
            "fallbacks": {},
            "move_seconds": [],
        }

    def aggregate(self, other: KVConnectorStats) -> AcmStats:
        """Add the numbers of `other` to these."""
        if not isinstance(other, AcmStats):
            raise TypeError(f"cannot add {type(other).__name__} to AcmStats")
        for key in (*TOKEN_KEYS, *PRECOMPUTE_KEYS):
            self.data[key] += other.data[key]
        for key in ("requests", "choices", "fallbacks"):
            for label, number in other.data[key].items():
                _count(self.data[key], label, number)
        self.data["move_seconds"] = [*self.data["move_seconds"], *other.data["move_seconds"]]
        return self

    def reduce(self) -> dict[str, int | float]:
        """The summary of vLLM's periodic log line."""
        return {
            "acm requests": sum(self.data["requests"].values()),
            **{f"acm {key.replace('_', ' ')}": self.data[key] for key in TOKEN_KEYS},
            "acm precomputed tokens": self.data["precomputed_tokens"],
            "acm precomputed tokens used": self.data["precomputed_used_tokens"],
            "acm fallbacks": sum(self.data["fallbacks"].values()),
        }

    def is_empty(self) -> bool:
        """True when no receipt, no move and nothing precomputed was counted."""
        has_moves = self.data["requests"] or self.data["move_seconds"]
        return not has_moves and not any(map(self.data.__getitem__, PRECOMPUTE_KEYS))


class AcmPromMetrics(KVConnectorPromMetrics):
    """The counters `acmserve:<name>_total` and the time of moves, one child per engine of this API server."""

    _registered: ClassVar[list[Counter | Histogram]] = []

    def __init__(
        self,
        vllm_config: VllmConfig,
        metric_types: dict[Any, Any],
        labelnames: list[str],
        per_engine_labelvalues: dict[int, list[object]],
    ) -> None:
        super().__init__(vllm_config, metric_types, labelnames, per_engine_labelvalues)
        self._unregister()
        self._counters = {name: self._counter(name, labelnames) for name in (*TOKEN_KEYS, *PRECOMPUTE_KEYS)}
        self._requests = self._counter("requests", [*labelnames, "fidelity"])
        self._choices = self._counter("choices", [*labelnames, "chosen"])
        self._fallbacks = self._counter("fallbacks", [*labelnames, "reason"])
        self._moves = self._histogram("move_seconds", labelnames, _MOVE_BUCKETS)
        for metric in (*self._counters.values(), self._moves):
            for labelvalues in per_engine_labelvalues.values():
                metric.labels(*labelvalues)

    def observe(self, transfer_stats_data: dict[str, Any], engine_idx: int = 0) -> None:
        """Add the payload of one step of engine `engine_idx`."""
        labelvalues = self.per_engine_labelvalues[engine_idx]
        for name, counter in self._counters.items():
            counter.labels(*labelvalues).inc(transfer_stats_data[name])
        for seconds in transfer_stats_data["move_seconds"]:
            self._moves.labels(*labelvalues).observe(seconds)
        for fidelity, number in transfer_stats_data["requests"].items():
            self._requests.labels(*labelvalues, fidelity).inc(number)
        for chosen, number in transfer_stats_data["choices"].items():
            self._choices.labels(*labelvalues, chosen).inc(number)
        for reason, number in transfer_stats_data["fallbacks"].items():
            self._fallbacks.labels(*labelvalues, reason).inc(number)

    def _histogram(self, name: str, labelnames: list[str], buckets: Sequence[float]) -> Any:
        histogram = self._histogram_cls(
            name=f"acmserve:{name}", documentation=_DOCUMENTATION[name], labelnames=labelnames, buckets=buckets
        )
        if isinstance(histogram, Histogram):
            self._registered.append(histogram)
        return histogram

    def _counter(self, name: str, labelnames: list[str]) -> Any:
        counter = self._counter_cls(name=f"acmserve:{name}", documentation=_DOCUMENTATION[name], labelnames=labelnames)
        if isinstance(counter, Counter):
            self._registered.append(counter)
        return counter

    @classmethod
    def _unregister(cls) -> None:
        """A second engine in one process starts its counters anew, as vLLM does with its own (prometheus.py:59)."""
        while cls._registered:
            REGISTRY.unregister(cls._registered.pop())


def _count(numbers: dict[str, int], label: str, number: int) -> None:
    numbers[label] = numbers.get(label, 0) + number
