"""Plays every sample in every way, and goes on where an earlier run was cut off.

    samples x ways  -  what the journal has  -->  play one  -->  journal  -->  play the next  ...  -->  records in order

The order of the records is that of samples and ways, whenever they were played. So a run that was killed and gone on
with gives the report of one that was not, but for the seconds.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from acmserve.bench.eval.journal import Journal
from acmserve.bench.eval.play import Play
from acmserve.bench.eval.target import RefusedSample, Target
from acmserve.bench.eval.tasks.registry import find_task
from acmserve.bench.eval.tasks.task import CHARS_PER_TOKEN, EvalSample
from acmserve.bench.eval.ways import EvalWay, find_way


@dataclass(frozen=True, slots=True)
class EvalPlan:
    """What a run plays. `budget` is in tokens, or a share of each sample's own where it is below 1.

    `skipped` names ways that are not played at all, each with the reason. `request` are fields of every request, and
    `map_options` those of `acm.map`.
    """

    samples: tuple[EvalSample, ...]
    ways: tuple[EvalWay, ...]
    model: str
    budget: float
    skipped: Mapping[str, str]
    request: Mapping[str, Any] = field(default_factory=dict)
    map_options: Mapping[str, Any] = field(default_factory=dict)

    @property
    def digest(self) -> str:
        """Tells two runs apart: 16 hex digits over everything that decides what is asked."""
        told = [
            self.model,
            self.budget,
            dict(self.request),
            dict(self.map_options),
            [way.name for way in self.ways],
            [asdict(one) for one in self.samples],
        ]
        return hashlib.sha256(json.dumps(told, sort_keys=True).encode()).hexdigest()[:16]

    def group_of(self, sample: EvalSample) -> list[EvalSample]:
        """The samples about the same context, in order, this one among them."""
        if not sample.group:
            return [sample]
        return [one for one in self.samples if (one.task, one.group) == (sample.task, sample.group)]

    def budget_of(self, sample: EvalSample) -> int:
        """Tokens that a prompt of this sample may have."""
        own = sample.num_chars / CHARS_PER_TOKEN
        return int(own * self.budget) if self.budget < 1 else int(self.budget)


def make_plan(
    target: Target,
    samples: Sequence[EvalSample],
    names: Sequence[str],
    budget: float,
    map_options: Mapping[str, Any] | None = None,
) -> EvalPlan:
    """The ways that this server and these samples allow. The others are named with the reason."""
    ways, skipped = [], {}
    for way in map(find_way, dict.fromkeys(names)):
        reasons = {way.refuses(sample) for sample in samples}
        if way.needs_acm and not target.has_acm:
            skipped[way.name] = "the server has no acmserve"
        elif "" not in reasons:
            skipped[way.name] = "; ".join(sorted(reasons))
        else:
            ways.append(way)
    return EvalPlan(tuple(samples), tuple(ways), target.model, budget, skipped, target.extra, map_options or {})


def play_all(plan: EvalPlan, target: Target, journal: Journal, say: Callable[[str], None]) -> list[dict[str, Any]]:
    """The records of all samples and ways, in order. Raises `Unavailable` where the server stops to answer."""
    pairs = [(sample, way) for sample in plan.samples for way in plan.ways if not way.refuses(sample)]
    num_known = sum((sample.task, sample.name, way.name) in journal.records for sample, way in pairs)
    if num_known:
        say(f"{num_known} of {len(pairs)} are in the journal")
    for number, (sample, way) in enumerate(pairs, start=1):
        if (sample.task, sample.name, way.name) in journal.records:
            continue
        record = _play(plan, target, sample, way, _asked_before(plan, journal, sample, way))
        journal.add(record)
        told = record["error"] or f"score {record['score']:.2f}"
        say(f"{number} of {len(pairs)}: {sample.task} {sample.name}, {way.name}: {told}, {record['seconds']:.1f} s")
    return [journal.records[sample.task, sample.name, way.name] for sample, way in pairs]


def _asked_before(plan: EvalPlan, journal: Journal, sample: EvalSample, way: EvalWay) -> list[tuple[str, str]]:
    """Questions about the same context that stand in front of this one, with what was answered in this way."""
    same = plan.group_of(sample)
    asked = same[: same.index(sample)]
    return [(one.question, journal.records[one.task, one.name, way.name]["answer"]) for one in asked]


def _play(
    plan: EvalPlan, target: Target, sample: EvalSample, way: EvalWay, before: Sequence[tuple[str, str]]
) -> dict[str, Any]:
    is_last = plan.group_of(sample)[-1] is sample
    play = Play(target, sample, way.name, plan.digest, plan.budget_of(sample), before, plan.map_options, is_last)
    try:
        answer = way.play(play)
    except RefusedSample as refused:
        return play.record("", 0.0, str(refused))
    return play.record(answer, find_task(sample.task).score(sample, answer))
