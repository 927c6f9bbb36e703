"""What the page says of bars and times: by which end they are judged, on how much they rest, and what made them."""

from __future__ import annotations

import json

import pytest

from acmserve.bench.report.sections.micro import MICRO
from acmserve.bench.report.sections.missed import BESIDE
from tests.support.docs.pages import ROOT

RESULTS = ROOT / "benchmarks/results"


def test_a_bar_of_a_card_is_judged_by_the_end_of_its_interval() -> None:
    bars = [one for one in BESIDE if one.files == ("gpu",)]

    def told(end: float) -> list[str]:
        stage = {"over_stock": {"ratio": 1.0077, "interval": [1.0012, end]}, "bar": 1.01, "is_met": True}
        return [bar.told({"gpu": {"stages": {"overhead": stage}}}) for bar in bars[-1:]]

    said = "On a GPU requests without a session take 1.0077 [1.0012, 1.0146] times as long, 1.01 at most by the"
    assert told(1.0146) == [f"{said} interval's end."]
    assert told(1.01) == [""]
    assert bars[-1].told({"gpu": {"stages": {}}}) == "", "a run without this stage"


@pytest.mark.parametrize("name", ["search", "budget-pass", "identity"])
def test_a_limit_stands_beside_its_median(name: str) -> None:
    """Met or missed, and the answer counts those that are missed."""
    (section,) = (one for one in MICRO if one.files == (name,))
    report = json.loads((RESULTS / f"{name}.json").read_text(encoding="utf-8"))
    limited = [row for row in report["rows"] if "limit_ms" in row]
    for row in limited:
        row["median_ms"] = row["limit_ms"]
    assert callable(section.answer)
    assert section.answer({name: report}).endswith(f"Of {len(limited)} medians with a limit none misses it.")
    assert not any("missed" in row[-1] for row in section.tables[0].rows({name: report}))
    limited[0]["median_ms"] *= 1.001
    assert section.answer({name: report}).endswith(f"Of {len(limited)} medians with a limit 1 misses it.")
    shown = [row[-1] for row in section.tables[0].rows({name: report}) if "missed" in row[-1]]
    limit = f"{limited[0]['limit_ms']:g} ms: **missed**"
    assert shown == [f"{limit}, by 1 of 6" if name == "search" else limit]
