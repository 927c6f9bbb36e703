"""What vLLM's own connector of a tier counts, beside what ours does: one payload, and both on /metrics.

    tier's connector   --stats-->  `below`   its data as it is     -->  vllm:kv_offload_...
    our connector      --stats-->  the rest  see `metrics.py`      -->  acmserve:...

vLLM asks the configured connector alone, so the tier's numbers would go nowhere. It does not know what they mean.
"""

from __future__ import annotations

from typing import Any

from vllm.distributed.kv_transfer.kv_connector.v1.metrics import KVConnectorPromMetrics, KVConnectorStats

from acmserve.engine.plugin.metrics import AcmStats
from acmserve.engine.vllm.tier.cpu_tier import stats_below

BELOW = "below"
"""Field of the payload. None where the tier counted nothing."""


class TieredStats(AcmStats):
    """The sums of receipts, and what the tier has counted."""

    def reset(self) -> None:
        """Start again at zero."""
        super().reset()
        self.data[BELOW] = None

    def add_below(self, counted: dict[str, Any] | None) -> None:
        """Add what the tier counted."""
        if counted is not None:
            self.data[BELOW] = stats_below(self.data[BELOW]).aggregate(stats_below(counted)).to_dict()

    def aggregate(self, other: KVConnectorStats) -> AcmStats:
        """Add the numbers of `other` to these."""
        super().aggregate(other)
        self.add_below(other.data.get(BELOW))
        return self

    def reduce(self) -> dict[str, int | float]:
        """The summary of vLLM's periodic log line."""
        below = self.data[BELOW]
        return super().reduce() | ({} if below is None else stats_below(below).reduce())

    def is_empty(self) -> bool:
        """True when nothing was counted, here or below."""
        return super().is_empty() and self.data[BELOW] is None


class TieredPromMetrics(KVConnectorPromMetrics):
    """Hands each payload to both."""

    def __init__(self, ours: KVConnectorPromMetrics, below: KVConnectorPromMetrics) -> None:
        # Both have what the base class would keep.
        self._ours = ours
        self._below = below

    def observe(self, transfer_stats_data: dict[str, Any], engine_idx: int = 0) -> None:
        """Add the payload of one step of engine `engine_idx`."""
        self._ours.observe(transfer_stats_data, engine_idx)
        counted = transfer_stats_data[BELOW]
        if counted is not None:
            self._below.observe(counted, engine_idx)
