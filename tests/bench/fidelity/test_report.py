"""What `bench fidelity` prints and sums up, from records made by hand."""

from __future__ import annotations

from typing import Any

import pytest

from acmserve.bench.fidelity.summary import HARMFUL_KL, summarise
from acmserve.bench.fidelity.table import as_table

NAMES = ["exact", "reuse", "auto"]


def record(
    document: str, dependence: str, kl: float, *, kind: str = "fold", moved_by_auto: bool = True
) -> dict[str, Any]:
    """A measured edit of 1,000 movable tokens whose greedy answer parts at token 4 where KL is above 0."""
    row = {"kl_bins": [kl, kl, None, None], "top1": 1.0, "fallback_reason": None, "computed_tokens": 10, "deltas": [-5]}
    reuse = row | {"kl": kl, "moved_tokens": 1000, "divergence": 4 if kl else None}
    auto = row | {"kl": kl if moved_by_auto else 0.0, "moved_tokens": 1000 if moved_by_auto else 0}
    return {
        "document": document,
        "kind": kind,
        "dependence": dependence,
        "num_edits": 1,
        "prefix_tokens": 100,
        "folded_tokens": 900,
        "suffix_tokens": 1000,
        "movable_tokens": 1000,
        "features": {"folded_share": kl, "suffix_tokens": 1000.0},
        "variants": {"reuse": reuse, "auto": auto},
    }


def report(records: list[dict[str, Any]], refusal: str | None = None, failures: tuple[str, ...] = ()) -> dict[str, Any]:
    model = {
        "name": "model-a",
        "variants": NAMES,
        "moving_variants": ["reuse", "auto"],
        "num_cases": len(records),
        "num_documents": 2,
        "refusal": refusal,
        "exact_difference": 2e-5,
        "summary": summarise(records, NAMES, seed=0),
        "records": records,
    }
    return {"gate": {"green": not failures, "failures": list(failures)}, "models": [] if failures else [model]}


RECORDS = [
    record("a", "unrelated", 0.0),
    record("a", "unrelated", 0.01),
    record("b", "unrelated", 0.02),
    record("b", "unrelated", 0.03),
    record("b", "superseded", 0.9),
    record("a", "superseded", 0.7, moved_by_auto=False),
    record("a", "related", 0.0, kind="restore"),
    record("a", "related", 0.4, kind="chain"),
]


def test_groups_leave_out_restores_and_chains() -> None:
    summary = summarise(RECORDS, NAMES, seed=0)
    rows = {(row["dependence"], row["variant"]): row for row in summary["by_dependence"]}
    reuse = rows["unrelated", "reuse"]
    assert (reuse["n"], reuse["num_documents"], reuse["kl"]) == (4, 2, pytest.approx(0.015))
    assert reuse["kl_interval"] == [pytest.approx(0.005), pytest.approx(0.025)]
    assert (reuse["greedy_same"], reuse["divergence_median"], reuse["moved_share"]) == (0.25, 4.0, 1.0)
    assert ("related", "reuse") not in rows
    assert [(row["num_edits"], row["kl"]) for row in summary["chains"] if row["variant"] == "reuse"] == [(1, 0.4)]
    assert {row["kind"] for row in summary["by_kind"]} == {"fold", "restore"}


def test_auto_is_judged_by_what_reuse_would_have_done() -> None:
    halves = summarise(RECORDS, NAMES, seed=0)["auto"]
    assert sum(half["n"] for half in halves.values()) == 6
    assert sum(half["num_harmful"] for half in halves.values()) == 2
    assert sum(half["num_harmful_moved"] for half in halves.values()) == 1
    assert sum(half["num_harmless_computed"] for half in halves.values()) == 0
    assert 0.03 < HARMFUL_KL < 0.7


def test_a_feature_that_orders_edits_as_reuse_does_is_found() -> None:
    predictors = {row["feature"]: row for row in summarise(RECORDS, NAMES, seed=0)["predictors"]}
    assert predictors["folded_share"]["spearman_all"] == pytest.approx(1.0)
    assert predictors["folded_share"]["n_ordinary"] == 4
    assert predictors["suffix_tokens"]["spearman_all"] is None


def test_the_table_has_every_group_and_its_gate() -> None:
    text = "\n".join(as_table(report(RECORDS)))
    assert "model-a: 8 cases out of 2 documents" in text
    row = next(line for line in text.splitlines() if line.startswith("    reuse"))
    assert row.split() == ["reuse", "4", "0.0150", "[0.0050,", "0.0250]", "100.0%", "25%", "4", "100%"]
    assert "fold, superseded" in text
    assert "are harmful (KL of reuse > 0.05)" in text
    assert "exact logits twice the same to 2.0e-05" in text


def test_a_refused_model_says_why_and_what_it_served() -> None:
    text = "\n".join(as_table(report([record("a", "related", 0.0)], refusal="model: 2 KV cache groups")))
    assert "REFUSED: the engine moves nothing (model: 2 KV cache groups)" in text
    assert "KL at most 0.0e+00" in text
    assert "top-1" not in text.split("REFUSED")[1].split("KL: of")[0]


def test_a_red_gate_shows_reasons_and_no_number() -> None:
    failures = tuple(f"model-a: case {n}: moved 3 of 90 tokens" for n in range(30))
    lines = as_table(report(RECORDS, failures=failures))
    assert lines[0].startswith("GATE RED")
    assert len(lines) == 22
    assert lines[-1] == "  and 10 more"
    assert not any("KL per token" in line for line in lines)
