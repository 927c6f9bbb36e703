"""Why the KV of a source cannot be copied from some token on: what the receipt calls it."""

from __future__ import annotations

from acmserve.engine.groups.facts import KVGroups
from acmserve.engine.requests.session_request import ReusableRange
from acmserve.engine.scheduling.jump import Lookup, has_blocks_at

SOURCE_GONE = "source_evicted"
WINDOW_GONE = "source_window_evicted"
"""The source is cached in the layers of full attention. In those with a window nothing is that a jump could end at."""


def why_gone(segment: ReusableRange, position: int, lookup: Lookup, groups: KVGroups) -> str:
    """The reason for prompt token `position`, at which no jump can begin."""
    is_there = groups.windows and groups.full and has_blocks_at(segment, position, lookup, groups.full)
    return WINDOW_GONE if is_there else SOURCE_GONE
