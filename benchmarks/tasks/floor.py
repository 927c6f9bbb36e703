"""The floor: where `exact` itself answers too seldom no loss can show, so such cases and questions do not count. Pure.

    size    a task of one setting is out where exact answers less than `FLOOR` of its plain questions
    kind    a kind of question is out of all means over kinds where exact answers less than `FLOOR` of it

A kind that is out keeps a row of its own. Questions without kinds are plain ones, and so are all but paraphrased ones.
"""

from __future__ import annotations

import statistics
from collections.abc import Container, Iterator, Mapping, Sequence
from typing import Any

FLOOR = 0.2
PARAPHRASED = "paraphrased"
"""The kind of question in other words. A size is not judged by it."""
_EXACT = "exact"
_BY_QUESTION = ("kl", "right")
Record = Mapping[str, Any]


def at_floor(records: Sequence[Record]) -> dict[str, float]:
    """`task size` of each size that is out, with what exact answers right there."""
    return _below(
        (_size(record), right) for record in records for kind, right in _rights(record) if kind != PARAPHRASED
    )


def above_floor(records: Sequence[Record]) -> list[Record]:
    """The records of all other sizes."""
    out = at_floor(records)
    return [record for record in records if _size(record) not in out]


def kinds_at_floor(records: Sequence[Record]) -> dict[str, float]:
    """Each kind of question that is out, with what exact answers right of it. `records` are above the floor."""
    return _below((kind, right) for record in records for kind, right in _rights(record) if kind)


def without_kinds(records: Sequence[Record], out: Container[str]) -> list[Record]:
    """The records without questions of the kinds that are `out`. One that has no other question is left out."""
    kept = [_without(record, out) if "roles" in record else record for record in records]
    return [record for record in kept if record.get("roles", True)]


def answerable(records: Sequence[Record]) -> list[Record]:
    """What counts in means over all kinds of question: sizes above the floor, and kinds that are, too."""
    kept = above_floor(records)
    return without_kinds(kept, kinds_at_floor(kept))


def _without(record: Record, out: Container[str]) -> Record:
    at = [number for number, kind in enumerate(record["roles"]) if kind not in out]
    variants = {
        name: {key: [row[key][number] for number in at] if key in _BY_QUESTION else row[key] for key in row}
        for name, row in record["variants"].items()
    }
    return {**record, "roles": [record["roles"][number] for number in at], "variants": variants}


def _below(rights: Iterator[tuple[str, float]]) -> dict[str, float]:
    shares: dict[str, list[float]] = {}
    for name, right in rights:
        shares.setdefault(name, []).append(right)
    means = {name: statistics.fmean(found) for name, found in shares.items()}
    return {name: round(mean, 3) for name, mean in means.items() if mean < FLOOR}


def _size(record: Record) -> str:
    return f"{record['task']} {record['setting']}"


def _rights(record: Record) -> Iterator[tuple[str, float]]:
    """The kind of each question, "" where there are none, and whether exact answers it right."""
    rights = record["variants"][_EXACT]["right"]
    return zip(record.get("roles", [""] * len(rights)), rights, strict=True)
