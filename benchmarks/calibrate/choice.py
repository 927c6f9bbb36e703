"""Which level of `auto` a model gets, from cases that were served exactly, as moved KV, and repaired. Pure numbers.

    record    the KL of each question under `reuse`, and under `auto` at the level `every`: where it moves, that is it
    level     its thresholds say of each record whether `auto` moves there or computes exactly, where the KL is 0
    passes    KL of the whole at most .04 and of each family at most .1 nats in the mean. One edit in fifty may be worse
              than under `reuse` by more than 0.1 nats. No more than two points of right answers are lost

The boldest level that passes is chosen. What is told of it comes from cases that it was not chosen on. For this the
records are cut in two, and each half is served at the level that the other half chose.
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from acmserve.bench.calibrate.ways import ECHOES
from acmserve.bench.repairs.summary import HARM_NATS, MAX_KL
from acmserve.bench.repairs.ways import EXACT, REUSE
from acmserve.bench.tasks.summary import difference_interval, moved_share
from acmserve.plan import calibration
from acmserve.plan.auto import Features, choose_fidelity
from acmserve.plan.calibration import LEVELS

MAX_FAMILY_KL = 0.1
MAX_HARMED_SHARE = 0.02
MAX_LOSS = 0.02
EVERYTHING = "all edits"
Record = Mapping[str, Any]
Level = str


@dataclass(frozen=True, slots=True)
class ServedCase:
    """One record as a level would have served it. `kl` in nats, `beside` in answers, both means over its questions."""

    record: Record
    way: str

    @property
    def row(self) -> Mapping[str, Any]:
        """Its counts and answers."""
        row: Mapping[str, Any] = self.record["variants"][self.way]
        return row

    @property
    def kl(self) -> float:
        return statistics.fmean(self.row["kl"])

    @property
    def beside(self) -> float:
        """Right answers more than exact has, of one."""
        return statistics.fmean(self.row["right"]) - statistics.fmean(self.record["variants"][EXACT.name]["right"])

    @property
    def is_harmed(self) -> bool:
        return self.kl > statistics.fmean(self.record["variants"][REUSE.name]["kl"]) + HARM_NATS


def serve_at(records: Sequence[Record], level: Level) -> list[ServedCase]:
    """What `auto` would have done at a level. Needs no engine: the rule sees nothing but the features."""
    thresholds = LEVELS[level]
    served = []
    for record in records:
        moves = thresholds is not None and (
            choose_fidelity(Features(**record["features"]), thresholds=thresholds).fidelity != EXACT.fidelity
        )
        served.append(ServedCase(record, ECHOES.name if moves else EXACT.name))
    return served


def why_not(served: Sequence[ServedCase]) -> str | None:
    """Why a level may not be used. None where it passes."""
    for task, some in by_task(served).items():
        kl, most = statistics.fmean(case.kl for case in some), MAX_KL if task == EVERYTHING else MAX_FAMILY_KL
        if kl > most:
            return f"{task}: KL {kl:.3f}, at most {most} is allowed"
    harmed = sum(case.is_harmed for case in served)
    if harmed > MAX_HARMED_SHARE * len(served):
        return f"{harmed} of {len(served)} edits are worse than under reuse by more than {HARM_NATS} nats"
    loss = -statistics.fmean(case.beside for case in served)
    lost = f"{100 * loss:.1f} points of right answers are lost, at most {100 * MAX_LOSS:.0f} are allowed"
    return lost if loss > MAX_LOSS else None


def choose(records: Sequence[Record]) -> Level:
    """The level that moves most of those that pass. `every` is no candidate."""
    passing = [
        (moved_share([case.record for case in served], [case.row for case in served]), level)
        for level in LEVELS
        if level != calibration.EVERY and why_not(served := serve_at(records, level)) is None
    ]
    return max(passing, key=lambda pair: pair[0])[1]


def cross_served(records: Sequence[Record]) -> list[ServedCase]:
    """Each half as the level would serve it that the other half chose. Families are cut in two alike."""
    halves: tuple[list[Record], list[Record]] = ([], [])
    num_seen: dict[str, int] = {}
    for record in records:
        number = num_seen[record["task"]] = num_seen.get(record["task"], -1) + 1
        halves[number % 2].append(record)
    if not all(halves):
        return serve_at(records, calibration.EXACT)
    return [case for own, other in (halves, halves[::-1]) for case in serve_at(own, choose(other))]


def by_task(served: Sequence[ServedCase]) -> dict[str, list[ServedCase]]:
    """The cases of each family, then all of them."""
    tasks = dict.fromkeys(case.record["task"] for case in served)
    return {task: [case for case in served if case.record["task"] == task] for task in tasks} | {
        EVERYTHING: list(served)
    }


def verdict_rows(records: Sequence[Record], seed: int) -> list[dict[str, Any]]:
    """JSON-ready, a row for each family and one for all: `auto` on cases that its level was not chosen on, and `reuse`.

    Intervals are 95 % bootstraps over cases, None where there are too few.
    """
    rows = []
    reused = by_task([ServedCase(record, REUSE.name) for record in records])
    for task, some in by_task(cross_served(records)).items():
        rows.append(
            {
                "edits": task,
                "num_cases": len(some),
                "auto": _numbers(some, seed),
                "reuse": _numbers(reused[task], seed),
                "num_harmed": sum(case.is_harmed for case in some),
            }
        )
    return rows


def _numbers(served: Sequence[ServedCase], seed: int) -> dict[str, Any]:
    kl, beside = [case.kl for case in served], [case.beside for case in served]
    return {
        "moved_share": moved_share([case.record for case in served], [case.row for case in served]),
        "kl": round(statistics.fmean(kl), 4),
        "kl_interval": difference_interval(kl, seed),
        "right_beside_exact": round(statistics.fmean(beside), 4),
        "right_beside_exact_interval": difference_interval(beside, seed),
    }
