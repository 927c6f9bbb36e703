"""When a request is sent again that a server was too busy for, as vendors tell it: 429 or 503, with Retry-After or not.

Pure. Source: RFC 9110, section 10.2.3, whose header has seconds or a date. Where there is none the waits double.

Decision: a vendor's quota may be used up for hours. So a long wait is none of ours: the run stops, and goes on later.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime

BUSY = frozenset({429, 503})
NUM_RETRIES = 6
LONGEST_SECONDS = 60.0
"""Of one wait. Six that double come to 63 seconds together."""


def seconds_to_wait(
    status: int, headers: Mapping[str, str], num_sent: int, now: datetime | None = None
) -> float | None:
    """Seconds until the request may be sent again. None where it is not to be.

    `num_sent` counts how often it was sent. `now` is the clock that a date is compared with.
    """
    if status not in BUSY or num_sent > NUM_RETRIES:
        return None
    told = headers.get("retry-after")
    seconds = _told_seconds(told, now or datetime.now(UTC)) if told else None
    if seconds is None:
        return float(2 ** (num_sent - 1))
    return seconds if seconds <= LONGEST_SECONDS else None


def _told_seconds(told: str, now: datetime) -> float | None:
    """None for a header that is neither seconds nor a date."""
    if told.strip().isdecimal():
        return float(told)
    try:
        date = parsedate_to_datetime(told)
    except ValueError:
        return None
    return max(0.0, (date if date.tzinfo else date.replace(tzinfo=UTC)).timestamp() - now.timestamp())
