"""What the records of `acmserve bench fidelity` come to: means with intervals, group by group. Pure.

    record       one measured turn: kind, dependence, features, and a row for each way it was served
    group        records of a kind, a dependence, a length, ... ; one entry for each way

Restores and chains stay out of the overall groups: the first are exact by construction, the second weigh the same
document five times.
"""

from __future__ import annotations

import random
import statistics
from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise
from typing import Any

from acmserve.bench.fidelity.cases import CHAIN, CHAIN_MEASURED, DEPENDENCES, FOLD, KINDS, RESTORE
from acmserve.bench.fidelity.score import BIN_EDGES, interval, spearman
from acmserve.bench.fidelity.variants import AUTO, NUM_GREEDY, REUSE

Record = Mapping[str, Any]
# A moved suffix whose continuation is further from exact than this counts as harm when `auto` is judged.
HARMFUL_KL = 0.05
SUFFIX_EDGES = (0, 512, 1024, 1 << 20)


def summarise(records: Sequence[Record], names: Sequence[str], seed: int) -> dict[str, Any]:
    """JSON-ready summary of the records of one model; `names` are the variants in their order."""
    edits = [r for r in records if r["kind"] not in (CHAIN, RESTORE)]
    folds = [r for r in edits if r["kind"] == FOLD]

    def group(of: Sequence[Record], keys: Mapping[str, Any]) -> list[dict[str, Any]]:
        found = [(name, _stats(of, name, seed)) for name in names]
        return [{**keys, "variant": name, **stats} for name, stats in found if stats is not None]

    def groups(of: Sequence[Record], key: str, values: Sequence[Any], take: Callable[[Record], Any]) -> Any:
        return [row for value in values for row in group([r for r in of if take(r) == value], {key: value})]

    return {
        "by_dependence": groups(edits, "dependence", DEPENDENCES, lambda r: r["dependence"]),
        "by_kind": [
            row
            for kind in KINDS
            for dependence in DEPENDENCES
            for row in group(
                [r for r in records if (r["kind"], r["dependence"]) == (kind, dependence)],
                {"kind": kind, "dependence": dependence},
            )
            if kind != CHAIN
        ],
        "folds_by_share": groups(folds, "folded_share", sorted({_share(r) for r in folds}), _share),
        "by_suffix_tokens": groups(edits, "suffix_from", SUFFIX_EDGES[:-1], _suffix_from),
        "chains": groups(
            [r for r in records if r["kind"] == CHAIN], "num_edits", CHAIN_MEASURED, lambda r: r["num_edits"]
        ),
        "by_position": _by_position(edits, names),
        "predictors": _predictors(edits),
        "auto": {half: _judge(part) for half, part in _halves(edits, seed).items()} if AUTO in names else None,
    }


def _stats(records: Sequence[Record], name: str, seed: int) -> dict[str, Any] | None:
    """Means of one variant over the records that have it; None when none has."""
    held = [r for r in records if name in r["variants"]]
    if not held:
        return None
    rows = [r["variants"][name] for r in held]
    documents = [r["document"] for r in held]
    greedy = [row["divergence"] for row in rows if "divergence" in row]
    num_movable = sum(r["movable_tokens"] for r in held)
    between = interval([row["kl"] for row in rows], documents, seed)
    return {
        "n": len(rows),
        "num_documents": len(set(documents)),
        "kl": round(statistics.fmean(row["kl"] for row in rows), 7),
        "kl_interval": [round(edge, 7) for edge in between] if between else None,
        "top1": round(statistics.fmean(row["top1"] for row in rows), 5),
        "greedy_same": round(statistics.fmean(d is None for d in greedy), 5) if greedy else None,
        "divergence_median": _median(greedy),
        "moved_share": round(sum(row["moved_tokens"] for row in rows) / num_movable, 5) if num_movable else None,
    }


def _median(divergences: Sequence[int | None]) -> float | None:
    """The token at which half of the runs have left the exact answer; `NUM_GREEDY` where they have not."""
    if not divergences:
        return None
    return float(statistics.median(NUM_GREEDY if d is None else d for d in divergences))


def _share(record: Record) -> float:
    """Folded share of the context, to 5 %."""
    total = sum(record[f"{part}_tokens"] for part in ("prefix", "folded", "suffix"))
    return round(round(20 * record["folded_tokens"] / total) / 20, 2)


def _suffix_from(record: Record) -> int:
    return max(edge for edge in SUFFIX_EDGES if edge <= record["suffix_tokens"])


def _by_position(records: Sequence[Record], names: Sequence[str]) -> list[dict[str, Any]]:
    """Mean KL along the continuation: how far the effect of an edit reaches behind the last prompt token."""
    rows = []
    for name in names:
        for number, (start, end) in enumerate(pairwise(BIN_EDGES)):
            bins = [r["variants"][name]["kl_bins"][number] for r in records if name in r["variants"]]
            held = [value for value in bins if value is not None]
            if held:
                rows.append({"variant": name, "from": start, "to": end, "kl": round(statistics.fmean(held), 7)})
    return rows


def _predictors(records: Sequence[Record]) -> list[dict[str, Any]]:
    """Rank correlation of each feature with the KL of `reuse`, over all edits and over those without updates."""
    held = [r for r in records if REUSE in r["variants"]]
    rows = []
    for feature in sorted({feature for r in held for feature in r["features"]}):
        row: dict[str, Any] = {"feature": feature}
        for label, part in (("all", held), ("ordinary", [r for r in held if r["dependence"] != DEPENDENCES[-1]])):
            pairs = [(r["features"][feature], r["variants"][REUSE]["kl"]) for r in part if feature in r["features"]]
            found = spearman([a for a, _ in pairs], [b for _, b in pairs])
            row |= {f"n_{label}": len(pairs), f"spearman_{label}": None if found is None else round(found, 3)}
        rows.append(row)
    return rows


def _halves(records: Sequence[Record], seed: int) -> dict[str, list[Record]]:
    """Records by the half of the documents that they belong to: thresholds may be fitted on one and judged on both."""
    documents = sorted({r["document"] for r in records})
    random.Random(f"halves {seed}").shuffle(documents)
    fit = set(documents[: len(documents) // 2])
    return {
        "fit": [r for r in records if r["document"] in fit],
        "held_out": [r for r in records if r["document"] not in fit],
    }


def _judge(records: Sequence[Record]) -> dict[str, Any] | None:
    """How often `auto` moved what was harmful, and computed what was not; None without records."""
    held = [r for r in records if AUTO in r["variants"] and REUSE in r["variants"]]
    if not held:
        return None
    harmful = [r["variants"][REUSE]["kl"] > HARMFUL_KL for r in held]
    moved = [r["variants"][AUTO]["moved_tokens"] > 0 for r in held]
    num_movable = sum(r["movable_tokens"] for r in held)
    return {
        "n": len(held),
        "harmful_kl": HARMFUL_KL,
        "num_harmful": sum(harmful),
        "num_harmful_moved": sum(a and b for a, b in zip(harmful, moved, strict=True)),
        "num_harmless_computed": sum(not a and not b for a, b in zip(harmful, moved, strict=True)),
        "moved_share": round(sum(r["variants"][AUTO]["moved_tokens"] for r in held) / max(num_movable, 1), 5),
        "kl_auto": round(statistics.fmean(r["variants"][AUTO]["kl"] for r in held), 7),
        "kl_reuse": round(statistics.fmean(r["variants"][REUSE]["kl"] for r in held), 7),
    }
