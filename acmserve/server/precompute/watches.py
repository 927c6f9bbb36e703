"""The sessions whose clients may be back: when each was heard last, and what is known of it between two turns.

    heard     longest ago ............................. just now      the watches are in this order
    back?     a client without pauses comes at once, others take `QUIET_SECONDS` at the least

It plans and computes nothing (`precomputer.py`), and knows no engine.
"""

from __future__ import annotations

import asyncio
import statistics
from collections import OrderedDict, deque
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from itertools import takewhile
from typing import Any

from acmserve.context.eviction.clearing_edits import VendorEdit
from acmserve.context.precompute.use_record import UseRecord
from acmserve.context.storage.fair_share import plan_victims
from acmserve.context.storage.session import Bound, Key
from acmserve.plan.pacing.rhythm import Rhythm
from acmserve.server.precompute.background_request import RequestFrame
from acmserve.server.precompute.preparation import INTERRUPTED, Preparation, Preparations

MAX_WATCHED = 1024
# A client without a pause asks again in a few hundredths. The shortest tool takes longer than this.
QUIET_SECONDS = 0.25
# A loaded machine makes that longer. A client whose last pauses were shorter than this in the median leaves none,
NO_PAUSE_SECONDS = 0.5
NUM_PAUSES = 5
# until it has been silent for this long.
GONE_SECONDS = 1.0
# Planning takes the event loop. It waits where the session's own client comes meanwhile with a greater chance,
MAX_CHANCE = 0.1
# for what the last looks took, the slowest of these.
NUM_LOOKS = 4
# Lists of tools that sessions share, and how long one may be that is kept for others.
NUM_TOOLS = 8
MAX_SHARED_BYTES = 2**20
# What clients say beside their messages, in sum. A template may pass over it, so that no window bounds it.
MAX_BYTES = 64 * 2**20


@dataclass(slots=True)
class Watch:
    """What is known of a session between two turns. `running` is the preparation that is computed now.

    `num_bytes` is what `frame` and `edits` are long. `heard` is when its client was last heard of, in seconds of the
    loop's clock. `pauses` are the seconds between its last answers and the requests behind them, `look_seconds` those
    that its last looks took of the loop.
    """

    frame: RequestFrame = field(default_factory=RequestFrame)
    edits: Sequence[VendorEdit] = ()
    num_bytes: int = 0
    fidelity: str | None = None
    suite: str | None = None
    heard: float = 0.0
    pauses: deque[float] = field(default_factory=lambda: deque(maxlen=NUM_PAUSES))
    rhythm: Rhythm = field(default_factory=Rhythm)
    look_seconds: deque[float] = field(default_factory=lambda: deque(maxlen=NUM_LOOKS))
    uses: UseRecord = field(default_factory=UseRecord)
    was_served: bool = False
    was_edited: bool = False
    wants_look: bool = False
    preparations: Preparations = field(default_factory=Preparations)
    running: Preparation | None = None
    task: asyncio.Task[None] | None = None

    def cancel(self) -> None:
        """End what is computed for it."""
        if self.task is not None:
            self.task.cancel()
            self.task = None

    def note_back(self, now: float) -> None:
        """Its client has come back."""
        if self.was_served:
            self.pauses.append(now - self.heard)
            self.rhythm.note(now - self.heard)

    def may_be_back(self, now: float) -> bool:
        """Whether its next request may come so soon that nothing of others should begin."""
        leaves_none = len(self.pauses) == NUM_PAUSES and statistics.median(self.pauses) < NO_PAUSE_SECONDS
        return now - self.heard < (GONE_SECONDS if leaves_none else QUIET_SECONDS)

    def may_be_met(self, now: float) -> bool:
        """Whether its next request is likely to come while it is looked at, which would wait for the event loop."""
        seconds = max(self.look_seconds, default=0.0)
        return self.wants_look and self.was_served and self.rhythm.chance(now - self.heard, seconds) > MAX_CHANCE


class Watches:
    """Those of the sessions that were heard last.

    Clients that nobody has heard for longest are forgotten, of the API key that has most.
    """

    def __init__(self) -> None:
        self._watched: OrderedDict[Key, Watch] = OrderedDict()
        self._tools: deque[tuple[Any, int]] = deque(maxlen=NUM_TOOLS)

    def __len__(self) -> int:
        return len(self._watched)

    @property
    def num_bytes(self) -> int:
        """What is kept of the requests of all sessions, as if no tools were shared."""
        return sum(watch.num_bytes for watch in self._watched.values())

    def get(self, key: Key) -> Watch | None:
        """That of a session, if it is watched."""
        return self._watched.get(key)

    def hear(self, key: Key, now: float) -> Watch:
        """That of a session whose client is heard now."""
        watch = self._watched.setdefault(key, Watch())
        watch.heard = now
        self._watched.move_to_end(key)
        if len(self._watched) > MAX_WATCHED:
            self._shrink(key)
        return watch

    def keep(self, key: Key, frame: RequestFrame, edits: Sequence[VendorEdit]) -> None:
        """Keep of a watched session what shaped its last request beside the messages, and the edits that it asked for.

        Tools that stand in other frames, too, are kept once: agents of one kind send the same long ones.
        """
        watch, fields = self._watched[key], dict(frame.fields)
        tools, num_bytes = self._shared(fields.pop("tools", None))
        watch.frame = frame if tools is None else replace(frame, fields={**frame.fields, "tools": tools})
        watch.edits = edits
        watch.num_bytes = num_bytes + len(repr(fields)) + len(repr(edits))
        if self.num_bytes > MAX_BYTES:
            self._shrink(key)

    def _shared(self, tools: Any) -> tuple[Any, int]:
        """The tools that are kept in the place of these, and how long they are."""
        if tools is None:
            return None, 0
        known = next((each for each in self._tools if each[0] == tools), None)
        if known is None:
            known = tools, len(repr(tools))
            if known[1] <= MAX_SHARED_BYTES:
                self._tools.appendleft(known)
        return known

    def _shrink(self, kept: Key) -> None:
        """An eighth at a time, so that a full memory costs a request nothing."""
        sizes = {key: watch.num_bytes for key, watch in self._watched.items()}
        bound = Bound(max(1, MAX_WATCHED * 7 // 8), MAX_BYTES * 7 // 8)
        for victim in plan_victims(sizes, bound, lambda other: other == kept):
            watch = self._watched.pop(victim)
            watch.cancel()
            watch.preparations.drop(INTERRUPTED)

    def cancel(self) -> None:
        """End what is computed for any of them."""
        for watch in self._watched.values():
            watch.cancel()

    def forget(self, key: Key) -> Watch | None:
        """Let go of that of a session."""
        return self._watched.pop(key, None)

    def others_may_be_back(self, key: Key, now: float) -> bool:
        """Whether a client of another session than `key` may come so soon that nothing should begin."""
        recent = takewhile(lambda item: now - item[1].heard < GONE_SECONDS, reversed(self._watched.items()))
        return any(watch.may_be_back(now) for other, watch in recent if other != key)
