"""A result of fewer samples takes the place of a recorded one only where that is stale."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from acmserve.bench.report import sitting
from acmserve.bench.report.ledger import LedgerRow
from acmserve.bench.report.rerun_plan import NEVER, Rerun
from acmserve.bench.report.sitting import Sitting
from acmserve.bench.report.sources import ResultSource

SOURCE = ResultSource("answers", "make answers", ("nowhere",), is_timed=False)


@pytest.mark.parametrize(
    ("recorded", "num_played", "is_stale", "is_recorded"),
    [
        ({"num_played": 50}, 20, False, False),
        ({"num_played": 50}, 20, True, True),
        ({"num_played": 50}, 50, False, True),
        ({"num_played": 10}, 20, False, True),
        ({}, 20, False, True),
        (None, 20, False, True),
    ],
)
def test_fewer_samples_do_not_replace_a_result_that_is_current(
    recorded: dict[str, Any] | None,
    num_played: int,
    is_stale: bool,
    is_recorded: bool,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for folder in ("results", "unfinished"):
        (tmp_path / folder).mkdir()
    file = tmp_path / "results/answers.json"
    if recorded is not None:
        file.write_text(json.dumps(recorded), encoding="utf-8")

    def run(*_: object) -> int:
        report = {"gate": {"green": True}, "num_played": num_played}
        (tmp_path / "unfinished/answers.json").write_text(json.dumps(report), encoding="utf-8")
        return 0

    def row(*_: object) -> LedgerRow:
        return LedgerRow(SOURCE, "", "", "", "", "", None, "older than the code" if is_stale else "current")

    monkeypatch.setattr(Sitting, "_run", run)
    monkeypatch.setattr(sitting, "refusal", lambda *_: "")
    monkeypatch.setattr(sitting, "make_row", row)
    held = Sitting(tmp_path / "results", tmp_path / "unfinished", sources={"answers": SOURCE})
    found = held.measure(Rerun(SOURCE.command, ("answers",), None, False, NEVER))
    assert (found is None) is is_recorded
    assert json.loads(file.read_text(encoding="utf-8"))["num_played"] == (num_played if is_recorded else 50)
    if found is not None:
        assert found == ("answers is refused: 20 samples were played, and 50 in the recorded one, which is current")
