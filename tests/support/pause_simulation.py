"""Clients in turns on one engine, with background work between them, by the real pacer and a clock of its own.

turn    ready --(a chunk in flight ends)--> prefill --> first token --> answer --> pause
chunk   takes a fixed time and one for each token. What is left of the work is what the next look plans
left    with `exits` a chunk in flight ends soon after somebody is ready, and its tokens are to be computed again
"""

from __future__ import annotations

import heapq
import itertools
import random
import statistics
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field

from acmserve.plan.pacing.pacer import Pacer

BLOCK, CHUNK = 128, 256
FIXED, PER_TOKEN = 0.035, 0.00105
PREFILL, DECODE = 0.4, 0.3
EXIT = 0.003, 0.012
"""How long leaving a chunk takes: what is left of a layer, and the step's end."""

Pause = Callable[[random.Random], float]


@dataclass
class PauseSimulation:
    """`work` are the tokens that each turn leaves to be computed in the pause behind it. `share` 1: not paced."""

    share: float
    pauses: list[Pause]
    work: int = 2000
    seed: int = 1
    exits: bool = False
    now: float = 0.0
    ratios: list[float] = field(default_factory=list)
    num_computed: int = 0
    num_lost: int = 0
    kinds: defaultdict[int, list[float]] = field(default_factory=lambda: defaultdict(list))

    def __post_init__(self) -> None:
        self.pacer = Pacer(self.share, BLOCK, CHUNK, 0.2, lambda: self.now)
        self.rng = random.Random(self.seed)
        self._left = 0

    def run(self, num_turns: int) -> PauseSimulation:
        """Turns of all clients, one at a time, each as soon as the engine is free."""
        coming = [(pause(self.rng), client) for client, pause in enumerate(self.pauses)]
        heapq.heapify(coming)
        for number in range(num_turns):
            ready, client = heapq.heappop(coming)
            free = max(self.now, ready)
            self._compute_until(ready)
            begin = self.now
            self.pacer.on_ready(f"r{number}", client, ready)
            self.now = begin + PREFILL
            self.pacer.on_first_token(f"r{number}")
            self.ratios.append((self.now - free) / PREFILL)
            self.now += DECODE
            self.pacer.on_gone(f"r{number}")
            self.pacer.check_integrity()
            self._left = self.work
            self.kinds[client].append(self.ratios[-1])
            heapq.heappush(coming, (self.now + self.pauses[client](self.rng), client))
        return self

    def compute_for(self, seconds: float, work: int) -> int:
        """Nobody comes for so long. Returns the tokens of `work` that were computed."""
        self._left, before = work, self.num_computed
        self._compute_until(self.now + seconds)
        return self.num_computed - before

    def _compute_until(self, ready: float) -> None:
        self.now = max(self.now, min(self.now + 0.05, ready))
        while self.now < ready and self._left > 0:
            size = min(self.pacer.allowed_tokens(may_leave=self.exits), self._left)
            if not size:
                self.now = min(self.now + 0.01, ready)
                continue
            seconds = FIXED + PER_TOKEN * size
            self.pacer.begin_chunk()
            if self.exits and self.now + seconds > ready:
                end = min(self.now + seconds, ready + self.rng.uniform(*EXIT))
                took, self.now = end - self.now, end
                self.pacer.end_chunk(size, took, is_left=True)
                self.num_lost += size
                continue
            self.now += seconds
            self.pacer.end_chunk(size, seconds)
            self.num_computed += size
            self._left -= size
        self.now = max(self.now, ready)

    @property
    def mean_ratio(self) -> float:
        """Of the last turns: the clients' rhythms are known by then."""
        return statistics.fmean(itertools.islice(self.ratios, len(self.ratios) // 4, None))
