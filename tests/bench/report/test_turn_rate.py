"""The third number of the first screen: turns a second at four and sixteen sessions, and what stands there before."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from acmserve.bench.report import page as page_module
from acmserve.bench.report.decision import MET, MISSED, NOT_MEASURED, NUMBERS, first_screen
from acmserve.bench.report.ledger import read_ledger
from acmserve.bench.report.page import page
from acmserve.bench.report.sections.loads import NUM_SESSIONS
from tests.support.docs.pages import ROOT

RESULTS = ROOT / "benchmarks/results"
NUMBER = next(number for number in NUMBERS if number.question.startswith("Turns a second"))


def single() -> dict[str, Any]:
    """Rates of one session: by the first policy many turns edit, by the second one few."""
    counts = {"recency@1": (3, {"exact": (1.1, 90), "reuse": (2.5, 20), "stock": (1.0, 100)})}
    counts["cwl"] = (1, {"exact": (1.0, 50), "reuse": (1.1, 40), "stock": (1.0, 50)})
    rows = [
        {
            "policy": policy,
            "server": server,
            "num_turns": 12,
            "num_edits": num_edits,
            "turns_per_second": {"median": rate},
            "computed_tokens": num,
        }
        for policy, (num_edits, servers) in counts.items()
        for server, (rate, num) in servers.items()
    ]
    return {"rows": rows}


def load(ratio: float, *servers: str) -> dict[str, Any]:
    computed = {"reuse": 20, "stock": 80}
    rows = [
        {
            "policy": "recency@1",
            "server": server,
            "num_turns": 48,
            "num_edits": 16,
            "rate_beside_stock": {"ratio": ratio if server == "reuse" else 1.0, "interval": [0.9, 2.3]},
            "computed_tokens": computed.get(server, 50),
        }
        for server in ("exact", "reuse", "stock", *servers)
    ]
    return {"rows": rows}


def test_one_session_is_told_and_meets_no_bar() -> None:
    """2.5 times would meet it. The other policy of that file, of rare edits, is a bound and no verdict."""
    reports = {"trace": single()}
    assert NUMBER.verdict(reports) == NOT_MEASURED
    assert NUMBER.text(reports) == "2.50 times with one session in float32"
    assert NUMBER.beside(reports) == (
        "`exact` 1.10 times. 3 of 12 turns edit. Where 1 of 12 does, tokens allow `reuse` 1.25 times at most"
    )


@pytest.mark.parametrize(
    ("ratios", "verdict"),
    [
        ({"trace-4": 2.0, "trace-16": 2.4}, MET),
        ({"trace-4": 2.4, "trace-16": 1.99}, MISSED),
        ({"trace-4": 1.99, "trace-16": 2.4}, MISSED),
        ({"trace-16": 1.99}, MISSED),
        ({"trace-4": 2.4}, NOT_MEASURED),
    ],
)
def test_the_bar_is_held_against_both_loads(ratios: dict[str, float], verdict: str) -> None:
    reports = {"trace": single()} | {name: load(ratio) for name, ratio in ratios.items()}
    assert NUMBER.verdict(reports) == verdict
    assert "float32" not in NUMBER.text(reports)


def test_other_ways_and_what_tokens_allow_are_told_beside() -> None:
    reports = {"trace": single(), "trace-4": load(1.5, "auto"), "trace-16": load(1.6)}
    assert NUMBER.text(reports) == "1.50 [0.90, 2.30] with 4, 1.60 [0.90, 2.30] with 16 sessions"
    assert NUMBER.beside(reports) == (
        "`auto` 1.00 [0.90, 2.30] with 4. `exact` 1.00 [0.90, 2.30] with 4, 1.00 [0.90, 2.30] with 16. "
        "16 of 48 turns edit. Where 1 of 12 does, tokens allow `reuse` 1.25 times at most"
    )
    assert NUMBER.reason(reports) == "by tokens alone it would be 4.00 and 4.00."


def test_a_load_without_a_stock_engine_is_none() -> None:
    report = load(2.4)
    report["rows"][1]["rate_beside_stock"] = None
    assert NUMBER.text({"trace": single(), "trace-4": report}) == "2.50 times with one session in float32"


def test_the_first_screen_counts_what_was_not_measured_apart() -> None:
    rows = read_ledger()
    rows |= dict.fromkeys(NUM_SESSIONS, rows["trace"])
    reports = {name: json.loads((RESULTS / f"{name}.json").read_text()) for one in NUMBERS for name in one.files}
    others = sum(one.verdict(reports) == MISSED for one in NUMBERS)
    assert f"**{others} of 5 bars are missed, 1 is not measured**." in first_screen(reports, rows)
    for ratio, told in (
        (1.9, f"**{others + 1} of 5 bars are missed**."),
        (2.0, f"**{others} of 5 bars are missed**."),
    ):
        screen = first_screen(reports | {name: load(ratio) for name in NUM_SESSIONS}, rows)
        assert told in screen
        reason = f"- {NUMBER.question}: by tokens alone it would be 4.00 and 4.00."
        assert (reason in screen) is (ratio < 2)


def test_the_page_reads_the_loads_once_they_are_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With every section left out, so the first screen alone reads files."""
    monkeypatch.setattr(page_module, "check_page", lambda *_: None)
    for file in RESULTS.glob("*.json"):
        if file.stem not in NUM_SESSIONS:
            shutil.copy(file, tmp_path)
    assert "with one session in float32" in page((), tmp_path)
    for name in NUM_SESSIONS:
        (tmp_path / f"{name}.json").write_text(json.dumps(load(2.4) | {"repetitions": 5}), encoding="utf-8")
    shown = page((), tmp_path)
    assert "2.40 [0.90, 2.30] with 4, 2.40 [0.90, 2.30] with 16 sessions" in shown
    assert "with one session in float32" not in shown
