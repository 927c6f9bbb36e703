"""What a session expects of its next turns: how much a turn adds, and the eviction that is planned for one of them.

    end of turn n      tokens pass the prepare mark: the eviction is planned, and kept
    end of turn n + 1  [ what stays of turns ..n ][ n + 1 ]      the same plan, and what came since behind it
    turn n + 2         over the budget: the kept plan is carried out, not a new one

A context can be precomputed only if it is the one that comes. An eviction planned anew at each turn takes a little
more each time, and what was computed behind the first difference is lost. So the plan is made once and kept. The
eviction is then a function of the history and of the end of the turn at which it was planned.

A memory that can be thrown away: without it evictions are planned when they are needed, as without `precompute`.
"""

from __future__ import annotations

import hashlib
from collections import deque
from dataclasses import dataclass, replace
from statistics import fmean

from acmserve.context.episodes.episode import Kind
from acmserve.context.episodes.view import ConversationView
from acmserve.context.eviction.plan import EvictionPlan
from acmserve.context.eviction.protected import episode_tokens, is_evicted
from acmserve.context.session.budget import Budget
from acmserve.context.session.state import SessionState
from acmserve.context.transcript.message import digest_message
from acmserve.context.transcript.omissions import Omissions

NUM_GROWTHS = 2
"""Turns of average size within which something counts as near."""

_NUM_TURNS = 64
# A large turn is about one in twenty: fewer turns than this may well have shown none.
_NUM_KNOWN = 32


@dataclass(frozen=True, slots=True)
class PlannedEviction:
    """A plan for a later turn: what was taken out before it, and the digest of the history that it was made for."""

    plan: EvictionPlan
    before: Omissions
    budget: Budget
    num_entries: int
    history: bytes

    def applies(self, state: SessionState, omissions: Omissions, budget: Budget) -> bool:
        """Whether the history goes on from that of the plan, and nothing else was edited in it."""
        return (
            self.budget == budget
            and self.before == omissions
            and len(state.entries) >= self.num_entries
            and digest_history(state, self.num_entries) == self.history
        )

    def now(self, view: ConversationView, num_before: int) -> EvictionPlan:
        """The plan with the numbers of today."""
        plan, after = self.plan, view.with_omissions(self.plan.omissions)
        num_behind = 0 if plan.first_entry is None else after.shown_tokens(plan.first_entry)
        return replace(plan, num_before=num_before, num_after=after.shown_tokens(), num_behind=num_behind, unmet=None)


def keep_eviction(plan: EvictionPlan, state: SessionState, before: Omissions, budget: Budget) -> PlannedEviction:
    """Keep a plan that was made for `state` and what is taken out of it."""
    num_entries = len(state.entries)
    return PlannedEviction(plan, before, budget, num_entries, digest_history(state, num_entries))


def digest_history(state: SessionState, num_entries: int) -> bytes:
    """The identity of the first entries and of what is hidden in them, 16 bytes: no text is kept."""
    digest = hashlib.blake2b(key=state.digest_key, digest_size=16)
    for entry in state.entries[:num_entries]:
        digest.update(entry.digest or digest_message(entry.message, state.digest_key))
    for fragment in state.fragments:
        if fragment.shown is not None and fragment.pieces[0].place.entry < num_entries:
            written = "\0".join((fragment.fragment_id, *fragment.shown))
            digest.update(b"\n" + written.encode("utf-8", "surrogatepass"))
    return digest.digest()


def takes_what_is_needed(before: ConversationView, after: Omissions) -> bool:
    """Whether a plan takes something out of an exploration on which work depends that came after the plan."""
    episodes, planned = before.episodes, before.with_omissions(after)
    acts = [e for e in episodes.live.values() if e.kind is Kind.ACT and not is_evicted(e, after)]
    active = episodes.active
    if active is not None and active.kind is Kind.ACT:
        acts.append(active)
    needed = {number for act in acts for number in act.depends_on}
    last = max((act.number for act in acts), default=-1)
    return any(
        episode_tokens(before, episode) != episode_tokens(planned, episode)
        for number, episode in episodes.live.items()
        if number in needed or (episode.name is None and number < last)
    )


class TurnStats:
    """`kept` is the eviction planned for a later turn, None where there is none.

    `num_ready` are the entries of the history whose context after that eviction is computed, 0 where it is not.
    """

    def __init__(self) -> None:
        self.kept: PlannedEviction | None = None
        self.num_ready = 0
        self._growths: deque[int] = deque(maxlen=_NUM_TURNS)
        self._num_written: int | None = None

    def end_turn(self, num_written: int) -> None:
        """A turn has ended, and the transcript has so many tokens. A rewound one says nothing about growth."""
        if self._num_written is not None and num_written > self._num_written:
            self._growths.append(num_written - self._num_written)
        self._num_written = num_written
        self.num_ready = 0

    def is_ready(self, state: SessionState) -> bool:
        """Whether the context after the kept eviction is computed but for what came after the last answer."""
        behind = state.entries[self.num_ready :]
        return self.num_ready > 0 and not any(entry.message.get("role") == "assistant" for entry in behind)

    def growth(self, guess: float) -> float:
        """Tokens that a turn adds on average, of all steps of the model in it. `guess` before any was seen."""
        return fmean(self._growths) if self._growths else guess

    def largest_growth(self, guess: float) -> float:
        """Tokens that the largest of the last turns added. At least `guess` until enough turns were seen."""
        is_known = len(self._growths) >= _NUM_KNOWN
        return max(self._growths if is_known else [guess, *self._growths])
