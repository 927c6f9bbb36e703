"""What `bench fidelity` sums up and prints, from records made by hand, and the gates in front of it."""

from __future__ import annotations

from typing import Any

import pytest

from acmserve.bench.agent.result_table import told_by
from acmserve.bench.fidelity.cases import FOLD, RESTORE, Case, CaseTurn
from acmserve.bench.fidelity.run import check_same, check_served
from acmserve.bench.fidelity.score import Distance
from acmserve.bench.fidelity.summary import DISTANCES, summarise
from acmserve.bench.fidelity.variants import AGAIN, VARIANTS, Variant
from acmserve.bench.harness.engine import Ask, EngineReply
from acmserve.bench.harness.options import as_gate

NAMES = ["exact", "reuse", "auto"]
EXACT, REUSE, *_ = VARIANTS


def record(document: str, dependence: str, kl: float, kind: str = "fold") -> dict[str, Any]:
    """A measured edit of 1,000 movable tokens."""
    row = {"kl": kl, "top1": 1.0, "moved_tokens": 1000}
    variants = {"reuse": row, "auto": row | {"kl": 0.0, "moved_tokens": 0}}
    return {
        "document": document,
        "kind": kind,
        "dependence": dependence,
        "movable_tokens": 1000,
        "variants": variants,
    }


RECORDS = [
    record("a", "unrelated", 0.0),
    record("a", "unrelated", 0.01),
    record("b", "unrelated", 0.02),
    record("b", "unrelated", 0.03),
    record("b", "superseded", 0.9),
    record("a", "related", 0.0, RESTORE),
]


def test_groups_leave_out_restores() -> None:
    rows = {(row["dependence"], row["variant"]): row for row in summarise(RECORDS, NAMES, seed=0)["by_dependence"]}
    reuse = rows["unrelated", "reuse"]
    assert (reuse["n"], reuse["num_documents"], reuse["kl"]) == (4, 2, pytest.approx(0.015))
    assert reuse["kl_interval"] == [pytest.approx(0.005), pytest.approx(0.025)]
    assert (reuse["moved_share"], rows["unrelated", "auto"]["moved_share"]) == (1.0, 0.0)
    assert ("related", "reuse") not in rows


def test_the_table_has_every_dependence_and_a_red_gate_none() -> None:
    report = {"gate": as_gate([]), "models": [{"summary": summarise(RECORDS, NAMES, seed=0)}]}
    assert any(line.split() == ["reuse", "0.015", "[0.005,", "0.025]", "0.900"] for line in told_by(DISTANCES)(report))
    assert told_by(DISTANCES)(report | {"gate": as_gate(["no"])})[1:] == ["  no"]


def reply(kept: int, moved: int, computed: int, answer: tuple[int, ...] = (7,), chosen: str = "") -> EngineReply:
    counts = {"kept_tokens": kept, "moved_tokens": moved, "computed_tokens": computed}
    return EngineReply(0.1, kept, answer, "", counts | {"fallback_reason": "no room", "chosen": chosen})


@pytest.mark.parametrize(
    ("variant", "served", "says"),
    [
        (REUSE, reply(10, 80, 10), ""),
        (REUSE, reply(10, 80, 9), "do not sum to 100"),
        (REUSE, reply(10, 70, 20), "moved 70 of 80 tokens (no room)"),
        (REUSE, reply(10, 80, 10, (8,)), "not the given continuation"),
        (EXACT, reply(10, 80, 10), "80 tokens were moved under exact"),
    ],
)
def test_what_was_served_has_to_be_what_was_asked(variant: Variant, served: EngineReply, says: str) -> None:
    turn = CaseTurn((1,) * 100, (7,), num_movable=80)
    failures = check_served(turn, variant, Ask(turn.prompt, "salt", "s", variant.fidelity), served)
    assert (says in failures[0]) if says else not failures


@pytest.mark.parametrize(
    ("kind", "variant", "served", "found", "is_right"),
    [
        (FOLD, REUSE, reply(10, 80, 10), Distance((0.5,), (False,), 2.0), True),
        (FOLD, Variant(AGAIN), reply(10, 0, 90), Distance((0.0,), (True,), 1e-5), True),
        (FOLD, Variant(AGAIN), reply(10, 0, 90), Distance((0.0,), (True,), 1e-3), False),
        (FOLD, REUSE, reply(10, 0, 90, chosen="exact"), Distance((0.5,), (False,), 2.0), False),
        (RESTORE, REUSE, reply(100, 0, 0), Distance((0.0,), (True,), 0.0), True),
        (RESTORE, REUSE, reply(10, 80, 10), Distance((0.0,), (True,), 0.0), False),
    ],
)
def test_what_has_to_be_exact_is(
    kind: str, variant: Variant, served: EngineReply, found: Distance, is_right: bool
) -> None:
    case = Case("c", "d", kind, "related", ())
    assert (check_same(case, variant, served, found) == []) is is_right
