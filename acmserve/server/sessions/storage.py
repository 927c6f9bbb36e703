"""What a client and an operator hear when the sessions' file cannot be written.

    StorageFailed --> counter acmserve:storage_failures_total{reason}, one line in the log for each new reason
    Conflict      --> {"saved": false, "reason": "refused", "warning": "..."} in `acm.storage`

The answer itself is never held back. What it says of a session that the file lacks is in `http/unsaved.py`.
"""

from __future__ import annotations

import logging
from typing import Any

from prometheus_client import Counter, Gauge, Histogram

from acmserve.context.storage.session_store import SessionStore
from acmserve.errors import Conflict, StorageFailed

FAILURES = Counter(
    "acmserve:storage_failures", "Writes of the sessions' file that failed, by reason.", labelnames=("reason",)
)

LOCK_WAIT = Histogram(
    "acmserve:session_lock_wait_seconds",
    "Seconds that a request waited for another one of its session.",
    buckets=(0.001, 0.01, 0.1, 0.5, 1.0, 5.0, 30.0, 120.0),
)
SESSIONS = Gauge("acmserve:sessions", "Sessions in memory.", multiprocess_mode="livesum")
SESSION_BYTES = Gauge("acmserve:session_bytes", "Bytes of the transcripts in memory.", multiprocess_mode="livesum")

# An alarm sees the first failure only where its series was there before, at 0.
for _reason in StorageFailed.REASONS:
    FAILURES.labels(_reason)

logger = logging.getLogger(f"vllm.{__name__}")


class StorageFailures:
    """Counts failures, and logs the first of each reason."""

    def __init__(self) -> None:
        self._logged: set[str] = set()

    def note(self, failure: StorageFailed) -> None:
        """A write failed."""
        FAILURES.labels(failure.reason).inc()
        if failure.reason not in self._logged:
            self._logged.add(failure.reason)
            logger.error("acmserve: %s Later failures of this kind are only counted.", failure)


def watch_store(store: SessionStore) -> None:
    """Show on /metrics how many sessions a store holds, and their bytes."""
    SESSIONS.set_function(lambda: len(store))
    SESSION_BYTES.set_function(lambda: store.num_bytes)


def set_gauges(store: SessionStore) -> None:
    """Write what `/metrics` of another process adds up. Functions of a gauge stay in their own process."""
    SESSIONS.set(len(store))
    SESSION_BYTES.set(store.num_bytes)


GONE = Conflict("session_id", "it was deleted or replaced meanwhile.")


def refused_fields(error: Conflict) -> dict[str, Any]:
    """The field `storage` of an answer that was given, but could not be recorded at all."""
    return {"storage": {"saved": False, "reason": "refused", "warning": f"This answer is not recorded: {error}"}}
