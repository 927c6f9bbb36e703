"""Which predicted contexts of a session came: what its next predictions are worth, learned look by look.

    look n      candidates: an eviction, three folds        noted, whether they are computed or not
    look n + 1  the context that is served now begins like one of them, beyond what both had in common before: it came
    ...         none did in as many turns as it was expected in, and two more: it did not

    chance = (PRIOR_WEIGHT * probability + came) / (PRIOR_WEIGHT + came + not come)       per reason

All candidates save what they cost: exact prefill, now or then. So the gain in seconds saved for each second spent is
the chance, and what is likelier is computed first. What is certain goes in front: reasoning that the template drops, a
clearing at the next turn. What never came of `NUM_TRIES`, or hardly ever, is not computed. It is watched on, for
nothing, and computed again when it has come once.

It does not know tokens or blocks. Whether KV that was computed is still there when its context comes, the engine
counts.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from itertools import count

from acmserve.context.precompute.candidate import PrecomputeCandidate, Reason
from acmserve.context.session.render import render
from acmserve.context.session.state import SessionState
from acmserve.context.transcript.message import Message
from acmserve.context.transcript.template_rules import TAKES_ALL, TemplateRules
from acmserve.errors import IntegrityError

PRIOR_WEIGHT = 2.0
NUM_TRIES = 4
LEAST_CHANCE = 0.02
_MORE_TURNS = 2
_CERTAIN = (Reason.NEXT_MESSAGE, Reason.AS_IT_IS)
"""What needs no history: the template decides, or the context was served."""


@dataclass(frozen=True, slots=True)
class _Expected:
    """A candidate that may come. `num_common` messages are those that were served when it was predicted."""

    state: SessionState
    num_common: int
    num_looks: int


@dataclass(slots=True)
class UseRecord:
    """`came` and `missed` count by reason."""

    came: dict[Reason, int] = field(default_factory=dict)
    missed: dict[Reason, int] = field(default_factory=dict)
    _expected: dict[tuple[Reason, int], _Expected] = field(default_factory=dict)

    def judge(self, state: SessionState, rules: TemplateRules = TAKES_ALL) -> None:
        """What is served now. Call at every look, before `note`."""
        if not self._expected:
            return
        served = render(state, rules)
        for key, expected in list(self._expected.items()):
            candidate = render(expected.state, rules)
            num_same = _num_same(candidate, served)
            if num_same > expected.num_common:
                self._end(key, self.came)
            elif expected.num_looks <= 1:
                self._end(key, self.missed)
            else:
                self._expected[key] = replace(expected, num_looks=expected.num_looks - 1)

    def note(self, found: Iterable[PrecomputeCandidate], state: SessionState, rules: TemplateRules = TAKES_ALL) -> None:
        """These may come. A newer candidate takes the place of an older one, which has no more time for that."""
        served = render(state, rules)
        seen: dict[Reason, count[int]] = {}
        for candidate in found:
            if candidate.reason in _CERTAIN:
                continue
            key = candidate.reason, next(seen.setdefault(candidate.reason, count()))
            num_looks = candidate.num_turns + _MORE_TURNS
            if key in self._expected:
                num_looks = min(num_looks, self._expected[key].num_looks)
            num_common = _num_same(render(candidate.state, rules), served)
            self._expected[key] = _Expected(candidate.state, num_common, num_looks)

    def chance(self, candidate: PrecomputeCandidate) -> float:
        """How likely it is used: what was predicted, and what became of the predictions of its kind."""
        reason = candidate.reason
        if reason in _CERTAIN:
            return candidate.probability
        came, missed = self.came.get(reason, 0), self.missed.get(reason, 0)
        if not came and missed >= NUM_TRIES:
            return 0.0
        return (PRIOR_WEIGHT * candidate.probability + came) / (PRIOR_WEIGHT + came + missed)

    def worth_computing(self, found: Sequence[PrecomputeCandidate]) -> list[PrecomputeCandidate]:
        """Those that pay, the certain ones first, then by what a second spent on them saves."""
        rated = [(_is_certain(candidate), self.chance(candidate), candidate) for candidate in found]
        rated = [entry for entry in rated if entry[1] >= LEAST_CHANCE]
        return [candidate for _, _, candidate in sorted(rated, key=lambda entry: (not entry[0], -entry[1]))]

    def check_integrity(self) -> None:
        """Raise `IntegrityError` when something is expected that had its time."""
        late = [key for key, expected in self._expected.items() if expected.num_looks < 1]
        if late:
            raise IntegrityError(f"precompute: {len(late)} candidates are expected after their time: {late[:3]}")

    def _end(self, key: tuple[Reason, int], counts: dict[Reason, int]) -> None:
        del self._expected[key]
        counts[key[0]] = counts.get(key[0], 0) + 1


def _is_certain(candidate: PrecomputeCandidate) -> bool:
    return candidate.reason is Reason.NEXT_MESSAGE or (
        candidate.reason is Reason.CLEARING and candidate.probability >= 1
    )


def _num_same(one: Sequence[Message], other: Sequence[Message]) -> int:
    """Messages that both begin with."""
    return next((n for n, (a, b) in enumerate(zip(one, other, strict=False)) if a != b), min(len(one), len(other)))
