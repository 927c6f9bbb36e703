"""Which level `acmserve calibrate` chooses, and what it says of it, from records made by hand."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from acmserve.bench.calibrate.choice import EVERYTHING, choose, cross_served, serve_at, verdict_rows, why_not
from acmserve.bench.calibrate.main import ModelRecords, judged_records, verdict_lines
from acmserve.bench.calibrate.ways import ECHOES
from acmserve.bench.repairs.cases import ASKED
from acmserve.bench.repairs.ways import EXACT, REUSE
from acmserve.bench.tasks.floor import PARAPHRASED
from acmserve.bench.tasks.run import TasksOutcome
from acmserve.plan import calibration
from acmserve.plan.auto import Features
from acmserve.plan.calibration import CalibratedShape

SAFE = Features(num_moved=1000, num_removed=300, num_echoed=500, num_anew=500)
"""Every level but `exact` moves it."""
PLAIN = Features(num_moved=200, num_removed=500, num_echoed=0)
"""Only `bold` and `every` move it."""


def record(task: str, features: Features, kl: float, reuse: float = 0.5, right: float = 1.0) -> dict[str, Any]:
    """`kl` is that of moved and repaired KV, `right` what is answered with it. Exact answers everything."""

    def row(kl: float, right: float, moved: int) -> dict[str, Any]:
        return {"kl": [kl, kl], "right": [right, right], "moved_tokens": moved}

    rows = {EXACT.name: row(0, 1, 0), REUSE.name: row(reuse, 0, 100), ECHOES.name: row(kl, right, 100)}
    return {"task": task, "suffix_tokens": 100, "features": asdict(features), "variants": rows}


def model(safe: float, plain: float, num: int = 12, **more: float) -> list[dict[str, Any]]:
    """Records of a model that is off by so many nats after edits of the two kinds."""
    return [record("safe", SAFE, safe, **more) for _ in range(num)] + [
        record("plain", PLAIN, plain, **more) for _ in range(num)
    ]


def test_the_boldest_level_that_passes_is_chosen() -> None:
    assert choose(model(safe=0.01, plain=0.02)) == calibration.BOLD
    assert choose(model(safe=0.01, plain=0.2)) == calibration.CAREFUL
    assert choose(model(safe=0.2, plain=0.2)) == calibration.EXACT


def test_a_level_is_refused_for_each_reason_by_name() -> None:
    def why(records: list[dict[str, Any]]) -> str | None:
        return why_not(serve_at(records, calibration.BOLD))

    assert why(model(0.01, 0.01)) is None
    assert why(model(0.01, 0.15)) == "plain: KL 0.150, at most 0.1 is allowed"
    assert why(model(0.05, 0.05)) == f"{EVERYTHING}: KL 0.050, at most 0.04 is allowed"
    assert why(model(0.0, 0.0, right=0.9)) == "10.0 points of right answers are lost, at most 2 are allowed"
    harmed = [*model(0.0, 0.0), record("safe", SAFE, 0.25, reuse=0.1)]
    assert why(harmed) == "1 of 25 edits are worse than under reuse by more than 0.1 nats"


def test_questions_that_the_model_cannot_answer_dilute_no_level() -> None:
    """Half of the questions are paraphrased, which it does not answer, edited or not. There moved KV is near exact."""
    records = model(safe=0.06, plain=0.06, right=0.97)
    for one in records:
        one |= {"setting": "s", "roles": [ASKED, PARAPHRASED]}
        for row in one["variants"].values():
            row["kl"][1] = row["right"][1] = 0.0
    assert why_not(serve_at(records, calibration.BOLD)) is None, "half of it is hidden"
    found = judged_records("m", CalibratedShape("L", 1, 2, 3), TasksOutcome(records), "d")
    assert found.at_floor == {"paraphrased questions": 0.0}
    assert why_not(serve_at(found.records, calibration.BOLD)) == f"{EVERYTHING}: KL 0.060, at most 0.04 is allowed"
    assert (choose(records), choose(found.records)) == (calibration.BOLD, calibration.CAREFUL)
    told = verdict_lines(found, calibration.CAREFUL, verdict_rows(found.records, 0), "c.json")
    assert "Left out, since exact answers less than 20% of them: paraphrased questions." in told
    (case, *_) = serve_at(found.records, calibration.BOLD)
    assert (case.kl, round(case.beside, 3)) == (0.06, -0.03)


def test_every_is_measured_with_and_never_chosen() -> None:
    records = [record("far", Features(num_moved=10, num_removed=5000), 0.0) for _ in range(8)]
    assert all(case.way == ECHOES.name for case in serve_at(records, calibration.EVERY))
    assert choose(records) != calibration.EVERY
    assert verdict_rows(records, 0)[-1]["auto"]["moved_share"] == 0


def test_each_half_is_served_at_the_level_of_the_other() -> None:
    """One lucky half chooses boldly: it is the other half that shows what that costs."""
    lucky = [record("plain", PLAIN, 0.0 if number % 2 == 0 else 0.3) for number in range(12)]
    served = cross_served(lucky)
    assert [case.kl for case in served if case.kl] == [0.3] * 6
    assert sum(case.way == EXACT.name for case in served) == 6
    assert choose(lucky) in (calibration.CAREFUL, calibration.EXACT)


def test_the_verdict_names_the_level_what_stays_exact_and_why_no_bolder_one() -> None:
    records = model(safe=0.01, plain=0.2)
    found = ModelRecords(CalibratedShape("L", 1, 2, 3), records, {}, None, "d")
    lines = verdict_lines(found, choose(records), verdict_rows(records, 0), "c.json")
    text = "\n".join(lines)
    assert "Verdict: level careful. On edits that it was not chosen on, `auto` moved 50% of what could move." in text
    assert "These stay exact: plain." in text
    assert "Level bold: plain: KL 0.200, at most 0.1 is allowed" in text
    assert "acmserve serve MODEL --calibration c.json" in text
    refused = verdict_lines(ModelRecords(found.shape, [], {}, "kv cache: x", "d"), calibration.EXACT, [], "c.json")
    assert refused[:2] == ["The engine moves no KV of this model (kv cache: x).", "Verdict: exact."]
