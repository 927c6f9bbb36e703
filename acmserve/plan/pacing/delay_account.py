"""What background work may still cost those in the foreground: an account in seconds, one per server.

    earns     a share of the time that requests of the foreground take to their first token
    pays      the delay that was measured: the overlap of a chunk in flight with a request that is ready
    silence   after `SILENCE_SECONDS` without anybody it lends, and what it lends pays back a debt

    allowed at delay 0 = balance + LENT_PER_SECOND * (silence - SILENCE_SECONDS)

Over time the delays are at most the share of the foreground's own time, and what silences lent. A silence makes good a
debt and saves nothing: who comes after it is not delayed by more. So work goes on after at most
`seconds_to(cost)` of silence, whatever was paid before.

It does not know chunks, requests or clocks.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from acmserve.errors import IntegrityError

SILENCE_SECONDS = 10.0
"""Longer than most tools take. Whoever has been away for so long is not about to come back."""
LENT_PER_SECOND = 0.02
MAX_CREDIT = 0.25
"""A busy hour saves no more than this for the pause behind it."""
MAX_DEBT = 0.25


@dataclass(slots=True)
class DelayAccount:
    """`share` of the foreground's own seconds may be lost to background work. From 1 on nothing is counted."""

    share: float
    balance: float = 0.0
    earned: float = 0.0
    delayed: float = 0.0

    @property
    def is_open(self) -> bool:
        """Whether anything may be spent without counting."""
        return self.share >= 1

    def earn(self, own_seconds: float) -> None:
        """A request of the foreground took so long, delays left out."""
        gained = self.share * max(own_seconds, 0.0)
        self.earned += gained
        self.balance = min(self.balance + gained, max(self.balance, MAX_CREDIT))

    def pay(self, seconds: float) -> None:
        """A request of the foreground was delayed by so much."""
        self.delayed += max(seconds, 0.0)
        self.balance = max(self.balance - max(seconds, 0.0), -MAX_DEBT)

    def allowance(self, silence: float) -> float:
        """Seconds of delay that may be risked after so much silence. Below 0 in debt."""
        return math.inf if self.is_open else self.balance + _lent(silence)

    def end_silence(self, silence: float) -> None:
        """Somebody came after so much silence."""
        self.balance = max(self.balance, min(self.balance + _lent(silence), 0.0))

    @staticmethod
    def seconds_to(cost: float) -> float:
        """The silence after which `cost` may be risked, at the latest."""
        return SILENCE_SECONDS + (MAX_DEBT + cost) / LENT_PER_SECOND

    def check_integrity(self) -> None:
        """Raise `IntegrityError` when more is owed or saved than an account may hold."""
        if not -MAX_DEBT <= self.balance <= MAX_CREDIT:
            raise IntegrityError(f"pacing: the balance is {self.balance}, allowed are {-MAX_DEBT} to {MAX_CREDIT}")
        if self.earned < 0 or self.delayed < 0:
            raise IntegrityError(f"pacing: {self.earned} seconds earned, {self.delayed} delayed")


def _lent(silence: float) -> float:
    return LENT_PER_SECOND * max(0.0, silence - SILENCE_SECONDS)
