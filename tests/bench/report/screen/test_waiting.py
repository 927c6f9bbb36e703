"""The number of precompute on the first screen: what is judged of few rounds, and of a policy that was never run."""

from __future__ import annotations

import json
from typing import Any

from acmserve.bench.harness.markdown_text import MET, MISSED, NOT_MEASURED
from acmserve.bench.precompute.table import judge_report
from acmserve.bench.report.decision import NUMBERS
from acmserve.bench.report.sections.missed import DROPPED, PAIRED
from tests.support.docs.pages import ROOT

RESULTS = ROOT / "benchmarks/results"


def test_one_round_has_no_interval_and_so_no_verdict() -> None:
    """A bar that another policy misses is missed all the same."""
    (number,) = (one for one in NUMBERS if one.files == PAIRED)
    reports = {name: json.loads((RESULTS / f"{name}.json").read_text(encoding="utf-8")) for name in PAIRED}
    for name in PAIRED:
        rounds = reports[name]["rounds"][:1]
        reports[name] = reports[name] | {"rounds": rounds} | judge_report(rounds)
    assert number.verdict(reports) == NOT_MEASURED
    assert "Ordinary turns by the median 0.96, 0.97 times" in number.beside(reports)
    assert " under CWL, " in number.text(reports)
    reports[PAIRED[1]] = reports[PAIRED[1]] | {"bars": read_bars(PAIRED[1])}
    assert number.verdict(reports) == MISSED
    for bar in reports[PAIRED[0]]["bars"][:2]:
        bar["value"] = None
    assert f"by the median {NOT_MEASURED}, 0.99" in number.beside(reports)


def read_bars(name: str) -> list[dict[str, Any]]:
    bars: list[dict[str, Any]] = json.loads((RESULTS / f"{name}.json").read_text(encoding="utf-8"))["bars"]
    return bars


def test_dropped_reasoning_is_judged_with_the_other_policies_once_it_was_recorded() -> None:
    (number,) = (one for one in NUMBERS if one.files == PAIRED)
    met = [bar | {"value": 0.8, "interval": [0.7, 0.9], "is_met": True} for bar in read_bars(PAIRED[0])]
    reports: dict[str, Any] = {name: {"bars": met, "waiting_bound": 0.8} for name in (*PAIRED, DROPPED)}
    assert number.files_of(reports) == [*PAIRED, DROPPED]
    assert number.verdict(reports) == MET
    reports[DROPPED] = reports[DROPPED] | {"bars": [*met[:2], met[2] | {"value": 0.85}, met[3]]}
    assert number.verdict(reports) == MISSED
    assert number.reason(reports) == "where reasoning is dropped all waiting is 0.85 times."
    assert number.text(reports).endswith("-15 % [-30 %, -10 %] where reasoning is dropped")
    reports[DROPPED] = reports[DROPPED] | {"bars": [met[0], met[1] | {"interval": [0.9, 1.05]}, *met[2:]]}
    assert number.reason(reports) == "ordinary turns may take 1.05 times, by the interval's end."
    del reports[DROPPED]
    assert (number.files_of(reports), number.verdict(reports)) == ([*PAIRED], MET)
