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
    beside = WINDOW_GONE if groups.windows else STATE_GONE if groups.recurrent else None
    is_there = beside is not None and groups.full and has_blocks_at(segment, position, lookup, groups.full)
    return beside if beside is not None and is_there else SOURCE_GONE
