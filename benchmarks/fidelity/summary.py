"""What the records of `acmserve bench fidelity` come to: means with intervals by dependence, and their table. Pure.

    record    one measured turn: kind, dependence, and a row for each way it was served

Restores stay out: they are exact by construction.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from acmserve.bench.agent.result_table import Report, ResultTable
from acmserve.bench.fidelity.cases import DEPENDENCES, RESTORE
from acmserve.bench.fidelity.score import interval
from acmserve.bench.harness.markdown_text import interval as bounds_text

Record = Mapping[str, Any]
_TITLES = {
    "reuse": "`reuse`",
    "repair head 128": "`repair`, 128 tokens",
    "auto": "`auto`",
    "other marker": "for scale: another wording of the marker",
    "unedited": "for scale: not folded at all",
}


def summarise(records: Sequence[Record], names: Sequence[str], seed: int) -> dict[str, Any]:
    """JSON-ready summary of the records of one model. `names` are the variants in their order."""
    edits = [record for record in records if record["kind"] != RESTORE]
    rows = [
        {"dependence": dependence, "variant": name, **stats}
        for dependence in DEPENDENCES
        for name in names
        if (stats := _stats([record for record in edits if record["dependence"] == dependence], name, seed))
    ]
    return {"by_dependence": rows}


def _stats(records: Sequence[Record], name: str, seed: int) -> dict[str, Any] | None:
    """Means of one variant over the records that have it. None when none has."""
    held = [record for record in records if name in record["variants"]]
    if not held:
        return None
    rows = [record["variants"][name] for record in held]
    documents = [record["document"] for record in held]
    num_movable = sum(record["movable_tokens"] for record in held)
    between = interval([row["kl"] for row in rows], documents, seed)
    return {
        "n": len(rows),
        "num_documents": len(set(documents)),
        "kl": round(statistics.fmean(row["kl"] for row in rows), 7),
        "kl_interval": [round(edge, 7) for edge in between] if between else None,
        "top1": round(statistics.fmean(row["top1"] for row in rows), 5),
        "moved_share": round(sum(row["moved_tokens"] for row in rows) / num_movable, 5) if num_movable else None,
    }


def _distances(report: Report) -> Iterator[list[str]]:
    for model in report["models"]:
        rows = {(row["dependence"], row["variant"]): row for row in model["summary"]["by_dependence"]}
        for variant, title in _TITLES.items():
            found = [rows.get((dependence, variant)) for dependence in DEPENDENCES]
            yield [title, *(f"{row['kl']:.3f}{bounds_text(row['kl_interval'], 1, 3)}" if row else "" for row in found)]


DISTANCES = ResultTable(
    ("KL to `exact`, nats a token", "kept text unrelated to the fold", "goes on from it", "updates it"), _distances
)
