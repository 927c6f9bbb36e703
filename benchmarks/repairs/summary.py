"""What the records of `bench repairs` come to, for each family, way and kind of question. Pure numbers.

    floor      sizes, and kinds of question, that exact itself answers too seldom show no harm (`bench.tasks.floor`)
    harm       a question, or an edit in the mean of its questions, is worse than under `reuse` by more than 0.1 nats
    control    the repair that looks at the question has to gain on it, and to lose answers on others

The unit is the case. Questions of one cache share its fate, so intervals are bootstraps over cases.
"""

from __future__ import annotations

import statistics
from collections.abc import Container, Iterator, Mapping, Sequence
from typing import Any

from acmserve.bench.harness.markdown_text import MET, MISSED, UNDECIDED
from acmserve.bench.repairs import lists
from acmserve.bench.repairs.cases import ASKED, CLEARING_ONE, LATER, PRECISE, ROLES
from acmserve.bench.repairs.ways import AUTO, CONTROL, EXACT, REUSE
from acmserve.bench.tasks.floor import kinds_at_floor, without_kinds
from acmserve.bench.tasks.summary import difference_interval, moved_share

SEED = 1
"""Of the bootstraps."""
HARM_NATS = 0.1
MAX_KL = 0.04
MOST_LOST = 0.01
MIN_CONTROL_CASES = 60
MIX, ANY = "the whole mix", "all"
LEAST_MOVED = {MIX: 0.6, lists.TASK: 0.75, CLEARING_ONE: 0.4}
"""Bars of `auto`: shares of what can move."""
WIDEST_INTERVAL = 0.02
"""Of the right answers beside exact, from end to end. A run with a wider interval decides nothing about `MOST_LOST`."""
LEAST_ALIKE = 300
"""So many cases without a difference bound the loss by `MOST_LOST`, as three over their number. They have no spread."""
Record = Mapping[str, Any]


def mix_of(records: Sequence[Record], behind: int) -> list[Record]:
    """As many cases of each family: those with a seed below `behind`."""
    return [record for record in records if record["seed"] < behind]


def mix_end(records: Sequence[Record]) -> int:
    """The seed behind the last one of the mix: no family but those of `PRECISE` has further cases."""
    seeds = [record["seed"] for record in records if record["task"] not in PRECISE]
    return max(seeds or [record["seed"] for record in records], default=-1) + 1


def summarise(records: Sequence[Record], mix: Sequence[Record], seed: int) -> list[dict[str, Any]]:
    """A row for each family, way and kind of question, then for the mix. `records` are of sizes above the floor."""
    tasks = list(dict.fromkeys(record["task"] for record in records))
    groups = [(task, [record for record in records if record["task"] == task]) for task in tasks]
    names = list(records[0]["variants"]) if records else []
    out = kinds_at_floor(records)
    return [
        row_of(task, held, name, role, seed, out)
        for task, held in [*groups, (MIX, list(mix))]
        if held
        for name in names
        for role in (ANY, *ROLES)
    ]


def row_of(
    task: str, records: Sequence[Record], name: str, role: str, seed: int, out: Container[str]
) -> dict[str, Any]:
    """One row. Over all kinds of question those that are `out` do not count. A kind has a row of its own, also so."""
    held = without_kinds(records, out) if role == ANY else records
    kl = [_mean(record, name, "kl", role) for record in held]
    beside = [_beside_exact(record, name, role) for record in held]
    return {
        "task": task,
        "way": name,
        "role": role,
        "num_cases": len(held),
        "num_questions": sum(len(_of_role(record, name, "right", role)) for record in held),
        "right": round(statistics.fmean(_mean(record, name, "right", role) for record in held), 4),
        "right_beside_exact": round(statistics.fmean(beside), 4) + 0.0,
        "right_beside_exact_interval": difference_interval(beside, seed),
        "kl": round(statistics.fmean(kl), 4),
        "kl_interval": difference_interval(kl, seed),
        "moved_share": moved_share(held, [record["variants"][name] for record in held]),
    }


def harm(records: Sequence[Record], name: str = AUTO.name) -> dict[str, Any]:
    """How often a way is worse than `reuse` by more than `HARM_NATS`, by question and by edit, and at most.

    `records` are `answerable`: an edit is judged in the mean of the questions that exact can answer.
    """
    by_question: list[float] = []
    by_edit: list[float] = []
    for record in records:
        rows = record["variants"]
        worse = [a - b for a, b in zip(rows[name]["kl"], rows[REUSE.name]["kl"], strict=True)]
        by_question += worse
        by_edit.append(statistics.fmean(worse))
    return {
        "num_questions": len(by_question),
        "num_questions_harmed": sum(worse > HARM_NATS for worse in by_question),
        "worst_question_nats": round(max(by_question), 4),
        "num_edits": len(by_edit),
        "num_edits_harmed": sum(worse > HARM_NATS for worse in by_edit),
        "worst_edit_nats": round(max(by_edit), 4),
    }


def control(records: Sequence[Record], seed: int) -> dict[str, Any]:
    """What the repair that looks at the question gains beside `reuse`, on that question and on later ones, in points.

    `flattered` is the difference of the two, case by case. A benchmark of one question a cache would see the first.
    """
    gains: dict[str, list[float]] = {role: [] for role in (ASKED, LATER)}
    for record in records:
        for role, gained in gains.items():
            by_way = (_mean(record, way.name, "right", role) for way in (CONTROL, REUSE))
            gained.append(next(by_way) - next(by_way))
    flattered = [asked - later for asked, later in zip(gains[ASKED], gains[LATER], strict=True)]
    found = {**gains, "flattered": flattered}
    means = {role: round(statistics.fmean(gained), 4) for role, gained in found.items()}
    return {**means, **{f"{role}_interval": difference_interval(gained, seed) for role, gained in found.items()}}


def control_failures(records: Sequence[Record], seed: int) -> list[str]:
    """Why a repair that looks at the question would not be caught. Nothing where there are few cases.

    By its answers it has to pass on the question that it saw, and not on later ones. Distances do not count, for a
    repair that is far from exact may answer right. Beside `reuse` its gain has to be on its own question, since points
    that are lost on later ones may be those of any move.
    """
    if len(records) < MIN_CONTROL_CASES:
        return []
    found = control(records, seed)
    points = f"{100 * found[ASKED]:+.1f} points asked, {100 * found[LATER]:+.1f} later"
    failures = []
    if found["asked_interval"][0] <= 0 or found["flattered_interval"][0] <= 0:
        failures.append(f"control: it looks at the question and gains nothing by it ({points}), so nothing is told")
    asked, later = (row_of(MIX, records, CONTROL.name, role, seed, ())["right_beside_exact"] for role in (ASKED, LATER))
    beside = f"{100 * asked:+.1f} points asked, {100 * later:+.1f} later, beside exact"
    if asked < -MOST_LOST:
        failures.append(f"control: it fails on the question that it looks at ({beside}), so nobody would take it")
    if later >= -MOST_LOST:
        failures.append(f"control: it looks at the question and passes on later ones ({beside})")
    return failures


def verdict(rows: Sequence[Mapping[str, Any]], name: str, task: str) -> str:
    """Whether a way is as good as exact in a family, as a word: few nats and no points lost, of each kind of question.

    One kind that misses decides it. Else one that is not decided leaves it open.
    """
    mine = [row for row in rows if row["way"] == name and row["task"] == task]
    found = {within_loss(row) if row["kl"] <= MAX_KL else MISSED for row in mine}
    return next((word for word in (MISSED, UNDECIDED) if word in found), MET)


def within_loss(row: Mapping[str, Any]) -> str:
    """Whether a way is within `MOST_LOST` of exact, as a word. By the lower end of the interval, so a gain is no miss.

    A wide interval decides nothing, unless all of it is below the bar. What moves nothing has nothing to lose.
    """
    low, high = row["right_beside_exact_interval"] or (-1.0, 1.0)
    if high < -MOST_LOST:
        return MISSED
    is_alike = low == high
    if is_alike and not row["moved_share"]:
        return MET
    if width_of(row) > WIDEST_INTERVAL or (is_alike and row["num_cases"] < LEAST_ALIKE):
        return UNDECIDED
    return MET if low >= -MOST_LOST else MISSED


def width_of(row: Mapping[str, Any]) -> float:
    """Of the interval, to the digits that it has. Of fewer than two cases, which have none, all that there is."""
    low, high = row["right_beside_exact_interval"] or (-1.0, 1.0)
    return round(float(high - low), 4)


def _answers(record: Record, name: str, key: str) -> Iterator[tuple[str, float]]:
    return zip(record["roles"], record["variants"][name][key], strict=True)


def _of_role(record: Record, name: str, key: str, role: str) -> list[float]:
    return [value for of, value in _answers(record, name, key) if role in (ANY, of)]


def _mean(record: Record, name: str, key: str, role: str) -> float:
    return statistics.fmean(_of_role(record, name, key, role))


def _beside_exact(record: Record, name: str, role: str) -> float:
    return _mean(record, name, "right", role) - _mean(record, EXACT.name, "right", role)
