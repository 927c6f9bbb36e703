"""Judges `auto` on the cases of `bench tasks`: as the product has it, and with thresholds chosen on half of the seeds.

    fit half         every combination of thresholds is tried. The one that moves most and loses at most 2 points on
                     each task is chosen
    held-out half    what the chosen thresholds lose and move there, and so every point of the trade-off curve

No request is needed for this: a case was served exactly, repaired and moved. `choose_fidelity` says from its features
which of the three a threshold would have taken. Pure.
"""

from __future__ import annotations

import itertools
import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from acmserve.bench.tasks.cases import FIT, HELD_OUT, TASKS
from acmserve.bench.tasks.floor import Record
from acmserve.bench.tasks.run import AUTO, EXACT, REUSE, TOKEN_EXACT
from acmserve.bench.tasks.summary import moved_share
from acmserve.plan.auto import DEFAULT_THRESHOLDS, AutoDecision, Features, Thresholds, choose_fidelity

MAX_LOSS = 0.02
MIN_MOVED_SHARE = 0.5
_NEVER = 10**9


@dataclass(frozen=True, slots=True)
class Traded:
    """What a rule does to a set of cases: accuracy lost to exact (by task, and on average), share of S moved.

    `num_missed` harmful cases were moved or repaired and lost an answer that exact has. `num_needless` cases were
    computed exactly although `reuse` loses nothing.
    """

    loss: float
    worst_loss: float
    worst_task: str
    moved_share: float
    num_cases: int
    num_harmful: int
    num_missed: int
    num_needless: int

    @property
    def is_good(self) -> bool:
        """Whether no task loses more than 2 points."""
        return self.worst_loss <= MAX_LOSS


def judge(records: Sequence[Record]) -> dict[str, Any]:
    """JSON-ready: the product's `auto`, the chosen thresholds, and the trade-off curve."""
    halves = {half: [r for r in records if r["half"] == half] for half in (FIT, HELD_OUT)}
    if not all(halves.values()):
        return {"product": _told(trade(records, [r["variants"][AUTO] for r in records])), "chosen": None, "front": []}
    product = {half: _told(trade(held, [r["variants"][AUTO] for r in held])) for half, held in halves.items()}
    tried = [(thresholds, simulate(halves[FIT], thresholds)) for thresholds in grid()]
    good = [(thresholds, traded) for thresholds, traded in tried if traded.is_good]
    chosen = max(good, key=lambda pair: (pair[1].moved_share, -pair[1].loss), default=None)
    return {
        "max_loss": MAX_LOSS,
        "product": _told(trade(records, [r["variants"][AUTO] for r in records])),
        "product_by_half": product,
        "chosen": _point(chosen[0], halves) if chosen else None,
        "front": [_point(thresholds, halves) for thresholds, _ in _front(tried)],
    }


def grid() -> Iterator[Thresholds]:
    """The product's thresholds, some that move nothing, and every combination of stricter and looser ones."""
    yield DEFAULT_THRESHOLDS
    yield Thresholds(min_rest=_NEVER)
    for anew, listed, rest, removed, echoed, plain, least in itertools.product(
        (0.5, 0.75, 0.9), (0.5, 0.9, 1.0), (32, 64, 128), (1.0, 3.0, 12.0), (0.0, 0.1), (0.5, 1.5, 3.0), (0, 256)
    ):
        yield Thresholds(
            max_anew_share=anew,
            max_listed_share=listed,
            min_rest=rest,
            max_removed_ratio=removed,
            min_echoed_share=echoed,
            max_plain_ratio=plain,
            min_plain_tokens=least,
        )


def simulate(records: Sequence[Record], thresholds: Thresholds) -> Traded:
    """What `auto` would have done with these thresholds."""
    rows = []
    for record in records:
        choice = choose_fidelity(Features(**record["features"]), thresholds=thresholds)
        rows.append(record["variants"][_served(choice)])
    return trade(records, rows)


def _served(choice: AutoDecision) -> str:
    """The variant of a case that was served as `auto` would."""
    return {"reuse": REUSE, "repair": TOKEN_EXACT.name}.get(choice.fidelity, EXACT)


def trade(records: Sequence[Record], rows: Sequence[Mapping[str, Any]]) -> Traded:
    """`rows` says for each record how it was served."""
    losses: dict[str, list[float]] = {}
    num_harmful = num_missed = num_needless = 0
    for record, row in zip(records, rows, strict=True):
        exact = sum(record["variants"][EXACT]["right"])
        losses.setdefault(record["task"], []).append((exact - sum(row["right"])) / len(row["right"]))
        is_harmful = sum(record["variants"][REUSE]["right"]) < exact
        num_harmful += is_harmful
        num_missed += is_harmful and sum(row["right"]) < exact
        num_needless += not is_harmful and not row["moved_tokens"]
    by_task = {task: statistics.fmean(losses[task]) for task in TASKS if task in losses}
    worst = max(by_task, key=lambda task: by_task[task])
    return Traded(
        loss=round(statistics.fmean(loss for task in losses.values() for loss in task), 4),
        worst_loss=round(by_task[worst], 4),
        worst_task=worst,
        moved_share=moved_share(records, rows),
        num_cases=len(records),
        num_harmful=num_harmful,
        num_missed=num_missed,
        num_needless=num_needless,
    )


def _front(tried: Sequence[tuple[Thresholds, Traded]]) -> list[tuple[Thresholds, Traded]]:
    """From the least moved to the most: each point moves more than all that lose as little."""
    front: list[tuple[Thresholds, Traded]] = []
    for thresholds, traded in sorted(tried, key=lambda pair: (-pair[1].moved_share, pair[1].loss)):
        if not front or traded.loss < front[-1][1].loss:
            front.append((thresholds, traded))
    return front[::-1]


def _point(thresholds: Thresholds, halves: Mapping[str, Sequence[Record]]) -> dict[str, Any]:
    told = {half.replace(" ", "_"): _told(simulate(held, thresholds)) for half, held in halves.items()}
    return {"thresholds": asdict(thresholds), **told}


def _told(traded: Traded) -> dict[str, Any]:
    return asdict(traded) | {"is_good": traded.is_good}
