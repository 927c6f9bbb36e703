"""Why the KV of a source cannot be copied from some token on: what the receipt calls it."""

from __future__ import annotations

from acmserve.engine.groups.facts import KVGroups
from acmserve.engine.requests.session_request import ReusableRange
from acmserve.engine.scheduling.jump import has_blocks_at
from acmserve.engine.scheduling.leaps.runs import Lookup

SOURCE_GONE = "source_evicted"
WINDOW_GONE = "source_window_evicted"
"""The source is cached in the layers of full attention. In those with a window nothing is that a jump could end at."""


STATE_GONE = "source_state_not_kept"
"""The source is cached in full attention. The states or transitions of recurrent layers there were not kept."""


def why_gone(segment: ReusableRange, position: int, lookup: Lookup, groups: KVGroups) -> str:
    """The reason for prompt token `position`, at which no jump can begin."""
    is_there = groups.full and has_blocks_at(segment, position, lookup, groups.full)
    if is_there and groups.recurrent:
        return STATE_GONE
    return WINDOW_GONE if is_there and groups.windows else SOURCE_GONE
