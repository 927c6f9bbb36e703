"""What the page says of bars and times: by which end they are judged, on how much they rest, and what made them."""

from __future__ import annotations

import json

import pytest

from acmserve.bench.report.decision import NEVER, NUMBERS
from acmserve.bench.report.sections.loads import LOADS, pauses_told
from acmserve.bench.report.sections.micro import MICRO
from acmserve.bench.report.sections.missed import BESIDE
from tests.support.docs.pages import ROOT

FOLD, RATE, STEP = NUMBERS[0], NUMBERS[2], NUMBERS[4]
RESULTS = ROOT / "benchmarks/results"


def test_a_bar_of_a_card_is_judged_by_the_end_of_its_interval() -> None:
    bars = [one for one in BESIDE if one.files == ("gpu",)]

    def told(end: float) -> list[str]:
        stage = {"over_stock": {"ratio": 1.0077, "interval": [1.0012, end]}, "bar": 1.01, "is_met": True}
        stage["seconds"] = {"stock": [1.0, 2.0, 3.0]}
        return [bar.told({"gpu": {"stages": {"overhead": stage}}}) for bar in bars[-1:]]

    said = "Requests without a session take 1.0077 [1.0012, 1.0146] times as long on a GPU in 3 repetitions"
    assert told(1.0146) == [f"{said}, 1.01 at most by the interval's end."]
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


def test_a_bar_says_at_which_length_it_was_held() -> None:
    cell = {"kind": "fold", "context_tokens": 8_192}
    assert FOLD.bar_told({"edit-cpu": {"cells": [cell]}}) == "1.1 appends, 20 times sooner, at 8,192 tokens"
    assert dict(NEVER)["scale"] == "A fold at any other length on a CPU."


def test_a_bar_of_a_part_says_which_and_the_whole_is_listed_until_it_is_counted() -> None:
    assert STEP.question.startswith("Scheduler half of a decode step")
    assert {"HTTP", "prefill", "worker's"} <= set(dict(NEVER)["request-instructions"].replace(",", " ").split())


@pytest.mark.parametrize(
    ("command", "scale", "told"),
    [
        ("--repetitions 1", {"scale": 0.02}, " (1 repetition, pauses at 2 %)"),
        ("--repetitions 5", {"scale": 0.02}, " (pauses at 2 %)"),
        ("--repetitions 5", {"scale": 1}, ""),
        ("", {}, ""),
    ],
)
def test_a_rate_says_what_it_rests_on(command: str, scale: dict[str, float], told: str) -> None:
    """An older file tells its repetitions by its command alone."""
    report = json.loads((RESULTS / "trace.json").read_text(encoding="utf-8"))
    del report["scale"]
    report |= {"machine": {"command": f"acmserve bench trace {command}"}} | scale
    assert RATE.text({"trace": report}).endswith(f" times with one session in float32{told}")


def test_a_load_tells_how_long_an_agent_waits() -> None:
    assert pauses_told({}) == pauses_told({"scale": 1}) == ""
    (section,) = (one for one in LOADS if one.files == ("trace-4",))
    (note,) = (note for note in section.notes if callable(note) and note.__name__ == "edits")
    report = {"rows": [{"num_turns": 12, "num_edits": 3}], "max_tokens": 16, "scale": 0.02}
    assert note({"trace-4": report}) == (
        "Of 12 turns 3 edit. Answers have 16 tokens. Between turns an agent waits 2 % of what was recorded."
    )
