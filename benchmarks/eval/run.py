"""Plays every sample in every way, and goes on where an earlier run was cut off.

    samples x ways --> strands - what the journal has --> play, side by side --> journal --> records

The order of the records is that of samples and ways, whenever they were played. So a run that was killed and gone on
with gives the report of one that was not, but for the seconds. A run whose time is up has the records that it has.

Decision: a scorer that fails is a defect of ours, and costs neither the run nor the answer. The answer counts as 0, is
told apart from a refused one, and makes the command end with 1. The same command then scores it again, and asks nobody.
"""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, field
from threading import Event
from typing import Any

from acmserve.bench.eval.baselines.way_limits import PAPERS, WayLimits
from acmserve.bench.eval.play import Play, StrandState
from acmserve.bench.eval.schedule.journal import Journal, Played
from acmserve.bench.eval.schedule.pace import ONE_BY_ONE, EvalPace, EvalProgress
from acmserve.bench.eval.schedule.strand import Strand, plan_strands
from acmserve.bench.eval.target import RefusedSample, Target
from acmserve.bench.eval.tasks.registry import find_task
from acmserve.bench.eval.tasks.task import EvalSample
from acmserve.bench.eval.ways import EvalWay, find_way


@dataclass(frozen=True, slots=True)
class EvalPlan:
    """What a run plays. `budget` is in tokens, or a share of what a policy may take where it is below 1.

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
    limits: WayLimits = PAPERS

    @property
    def digest(self) -> str:
        """Tells two runs apart: 16 hex digits over everything that decides what is asked."""
        told = [
            self.model,
            self.budget,
            dict(self.request),
            dict(self.map_options),
            asdict(self.limits),
            [way.name for way in self.ways],
            [asdict(one) for one in self.samples],
        ]
        return hashlib.sha256(json.dumps(told, sort_keys=True).encode()).hexdigest()[:16]

    def group_of(self, sample: EvalSample) -> list[EvalSample]:
        """The samples about the same context, in order, this one among them."""
        if not sample.group:
            return [sample]
        return [one for one in self.samples if (one.task, one.group) == (sample.task, sample.group)]

    def pairs(self) -> list[Played]:
        """Task, sample and way of all that is played, in the order of the records."""
        return [
            (sample.task, sample.name, way.name)
            for sample in self.samples
            for way in self.ways
            if not way.refuses(sample)
        ]


def make_plan(
    target: Target,
    samples: Sequence[EvalSample],
    names: Sequence[str],
    budget: float,
    map_options: Mapping[str, Any] | None = None,
    limits: WayLimits = PAPERS,
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
    return EvalPlan(tuple(samples), tuple(ways), target.model, budget, skipped, target.extra, map_options or {}, limits)


def play_all(
    plan: EvalPlan, target: Target, journal: Journal, say: Callable[[str], None], pace: EvalPace = ONE_BY_ONE
) -> list[dict[str, Any]]:
    """The records of all samples and ways, in order, or of those for which there was time.

    Raises `Unavailable` where the server stops to answer. What was begun beside it is played to its end.
    """
    _score_again(plan, journal)
    pairs, strands = plan.pairs(), plan_strands(plan.samples, plan.ways)
    left = Counter(strand.way.name for strand in strands for _ in strand.left(journal.records))
    progress = EvalProgress(len(pairs), dict(left), pace, say)
    progress.known(journal.records.values())
    if left.total() < len(pairs):
        say(f"{len(pairs) - left.total()} of {len(pairs)} are in the journal")
    run, ended = plan.digest, Event()

    def play(strand: Strand) -> None:
        left = strand.left(journal.records)
        with StrandState(len(left)) as state:
            for number, sample in enumerate(left):
                goes_on = number > 0 and strand.way.learns
                if ended.is_set() or (pace.is_over() and not goes_on):
                    return
                before = _asked_before(plan, journal, sample, strand.way)
                record = _play(plan, run, target, sample, strand.way, before, state)
                journal.add(record)
                progress.played(record)

    if pace.num_parallel == 1:
        for strand in strands:
            play(strand)
    else:
        _side_by_side(play, strands, pace.num_parallel, ended)
    return [journal.records[pair] for pair in pairs if pair in journal.records]


def _side_by_side(play: Callable[[Strand], None], strands: Sequence[Strand], num_parallel: int, ended: Event) -> None:
    """Play strands in threads, in their order. `ended` keeps the others from going on where one fails.

    A signal leaves them behind: they end with the server.
    """

    def guarded(strand: Strand) -> None:
        try:
            play(strand)
        except BaseException:
            ended.set()
            raise

    pool = ThreadPoolExecutor(num_parallel)
    waits = True
    try:
        for done in [pool.submit(guarded, strand) for strand in strands]:
            done.result()
    except BaseException as error:
        # Behind a signal no answer may ever come: the server, which was told to end, waits for those who wait for it.
        waits = not isinstance(error, KeyboardInterrupt)
        ended.set()
        raise
    finally:
        pool.shutdown(wait=waits, cancel_futures=True)


def _asked_before(plan: EvalPlan, journal: Journal, sample: EvalSample, way: EvalWay) -> list[tuple[str, str]]:
    """Questions about the same context that stand in front of this one, with what was answered in this way."""
    same = plan.group_of(sample)
    asked = same[: same.index(sample)]
    return [(one.question, journal.records[one.task, one.name, way.name]["answer"]) for one in asked]


def _play(
    plan: EvalPlan,
    run: str,
    target: Target,
    sample: EvalSample,
    way: EvalWay,
    before: Sequence[tuple[str, str]],
    state: StrandState,
) -> dict[str, Any]:
    is_last = plan.group_of(sample)[-1] is sample
    play = Play(target, sample, way.name, run, plan.budget, before, plan.map_options, is_last, plan.limits, state)
    try:
        answer = way.play(play)
    except RefusedSample as refused:
        return play.record("", 0.0, str(refused))
    return _scored(play.record(answer, 0.0), sample)


def _scored(record: Mapping[str, Any], sample: EvalSample) -> dict[str, Any]:
    """The record with the score of its answer, or with what the scorer failed with."""
    told = {name: value for name, value in record.items() if name != "unscored"}
    try:
        score = find_task(sample.task).score(sample, record["answer"])
    except Exception as error:  # noqa: BLE001 -- whatever it is, it is told, and must not cost the other answers
        failed = f"the scorer failed with {type(error).__name__}: {error}"
        return {**told, "score": 0.0, "error": failed, "unscored": True}
    return {**told, "score": round(score, 6), "error": ""}


def _score_again(plan: EvalPlan, journal: Journal) -> None:
    """Answers whose scorer failed in an earlier run get their score, where it no longer does."""
    samples = {(sample.task, sample.name): sample for sample in plan.samples}
    for (task, name, _), record in list(journal.records.items()):
        if record.get("unscored") and not (again := _scored(record, samples[task, name])).get("unscored"):
            journal.add(again)
