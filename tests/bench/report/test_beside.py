"""`acmserve bench ledger --beside`: ratios of a reader's run are held against the committed ones by their intervals."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from acmserve.bench.agent.estimates import student_interval
from acmserve.bench.report.beside import NOT_REPEATED, TIMES, beside_lines
from acmserve.bench.report.ledger import main
from acmserve.errors import AcmError
from tests.support.docs.figures import read_result
from tests.support.docs.pages import ROOT

RESULTS = ROOT / "benchmarks/results"
SECONDS = {"reuse": 0.2, "repair": 0.4, "auto": 2.0, "exact": 6.0, "stock": 6.0}
NOISE = (1.0, 1.02, 0.98, 1.01, 0.99)
"""Of a repetition, for ours alone: stock's own noise would do the same to the ratio."""
EPYC = {"cpu": "AMD EPYC", "vectors": "AVX-512", "cores": 2}
XEON = {"cpu": "Intel Xeon", "vectors": "AVX-512", "cores": 2}
MATRIX = {"cpu": "Intel Xeon", "vectors": "AMX", "cores": 2}


def made(
    folder: Path, machine: dict[str, Any], num: int, slow: float = 1.0, *, file: str = "edit-cpu", **factors: float
) -> Path:
    """A run of `num` repetitions on a machine that is `slow`, in which some series take longer by a factor."""
    times: dict[str, list[float]] = {}
    for name, seconds in SECONDS.items():
        noise: Sequence[float] = NOISE[:num] if name != "stock" else (1.0,) * num
        size = 3 if name == "reuse" else 1
        for series in (name, "defaults" if name == "stock" else f"{name}@defaults"):
            factor = slow * factors.get(series.replace("@", "_at_"), 1.0)
            times[series] = [factor * seconds * one for one in noise for _ in range(size)]
    cell = {"kind": "fold", "seconds_to_first_token": times, "num_repetitions": num}
    folder.mkdir(exist_ok=True)
    report = {"gate": {"green": True, "failures": []}, "cells": [cell], "machine": machine}
    (folder / f"{file}.json").write_text(json.dumps(report), encoding="utf-8")
    return folder


def told(there: Path, here: Path) -> tuple[dict[str, str], str, bool]:
    """Where each series lies, all lines, and whether all agree."""
    lines, agrees = beside_lines(there, here, dict.fromkeys(NOT_REPEATED.values(), "`a command`, took 7:00 min"))
    rows = [line.split("  ") for line in lines[1 : len(TIMES) + 1]]
    return {row[0].strip(): row[-1].strip() for row in rows}, "\n".join(lines), agrees


def test_a_slower_machine_with_the_same_ratios_agrees(tmp_path: Path) -> None:
    """Its seconds are far from those committed, and mean nothing."""
    found, shown, agrees = told(made(tmp_path / "there", EPYC, 5), made(tmp_path / "here", XEON, 3, slow=2.5))
    assert found == dict.fromkeys(TIMES, "within it")
    assert agrees
    assert "committed: 5 repetitions on AMD EPYC (AVX-512), 2 cores" in shown
    assert "here:      3 repetitions on Intel Xeon (AVX-512), 2 cores" in shown
    assert "0.20 s" in shown
    assert "0.50 s" in shown
    assert "Not repeated: answers lost or won beside exact (`a command`, took 7:00 min)." in shown
    assert "Not repeated: exact, with less in it (`a command`, took 7:00 min)." in shown


@pytest.mark.parametrize(("factor", "place"), [(1.3, "below it"), (0.7, "above it")])
def test_a_ratio_outside_is_named(factor: float, place: str, tmp_path: Path) -> None:
    here = made(tmp_path / "here", XEON, 5, reuse_at_defaults=factor)
    found, shown, agrees = told(made(tmp_path / "there", EPYC, 5), here)
    assert found == dict.fromkeys(TIMES, "within it") | {"reuse@defaults": place}
    assert not agrees
    assert "OUTSIDE or not judged: reuse@defaults" in shown


def test_a_small_difference_needs_enough_repetitions_to_be_seen(tmp_path: Path) -> None:
    """Five percent, where repetitions differ by two."""
    there = made(tmp_path / "there", EPYC, 5)
    found = [told(there, made(tmp_path / "here", XEON, num, auto=1.05))[0]["auto"] for num in (3, 5)]
    assert found == ["within it", "below it"]


def test_too_few_repetitions_are_not_judged(tmp_path: Path) -> None:
    found, shown, agrees = told(made(tmp_path / "there", EPYC, 5), made(tmp_path / "here", XEON, 2))
    assert set(found.values()) == {"not judged"}
    assert not agrees
    assert "TOO FEW: 2 of at least 3 repetitions. Give --max-minutes more." in shown


def test_a_series_that_was_not_measured_is_not_judged(tmp_path: Path) -> None:
    here = made(tmp_path / "here", XEON, 5)
    report = json.loads((here / "edit-cpu.json").read_text())
    del report["cells"][0]["seconds_to_first_token"]["auto@defaults"]
    (here / "edit-cpu.json").write_text(json.dumps(report))
    found, _, agrees = told(made(tmp_path / "there", EPYC, 5), here)
    assert (found["auto@defaults"], agrees) == ("not judged", False)


def test_the_command_fails_where_a_ratio_lies_outside(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(AcmError, match="make evidence-quick"):
        main(["--beside", str(tmp_path)])
    report = read_result("edit-cpu")
    (tmp_path / "edit-cpu.json").write_text(json.dumps(report))
    assert main(["--beside", str(tmp_path)]) == 0, "as it was committed"
    assert "`acmserve bench eval`, t" in capsys.readouterr().out
    times = report["cells"][0]["seconds_to_first_token"]
    times["repair"] = [9.0] * len(times["repair"])
    (tmp_path / "edit-cpu.json").write_text(json.dumps(report))
    assert main(["--beside", str(tmp_path)]) == 1


@pytest.mark.parametrize("machine", [MATRIX, XEON | {"vectors": "AVX2"}, XEON | {"vectors": None}])
def test_another_kind_of_processor_is_told_and_not_judged(machine: dict[str, Any], tmp_path: Path) -> None:
    """Stock is four times as fast at its defaults there. On the same kind that would be red."""
    there, fast = made(tmp_path / "there", EPYC, 5), {"defaults": 0.25}
    found, shown, agrees = told(there, made(tmp_path / "here", machine, 5, **fast))
    assert (set(found.values()), agrees) == ({"of another kind of processor"}, True)
    assert f"NOT COMPARED: no committed run is of a processor with {machine['vectors'] or 'instructions'}" in shown
    assert ("so nothing fails" in shown, agrees) == (True, True)
    assert ("acmserve bench reruns --run --only edit-cpu-amx" in shown) is (machine is MATRIX)
    assert "All ratios agree" not in shown
    found, shown, agrees = told(there, made(tmp_path / "here", EPYC, 5, **fast))
    assert (found["reuse@defaults"], agrees) == ("below it", False), "control"
    assert "NOT COMPARED" not in shown


def test_a_run_is_held_against_the_committed_one_of_its_kind(tmp_path: Path) -> None:
    fast = {"defaults": 0.25}
    there = made(tmp_path / "there", EPYC, 5)
    made(there, MATRIX, 5, file="edit-cpu-amx", **fast)
    for machine, factors in ((EPYC, {}), (MATRIX, fast)):
        found, shown, agrees = told(there, made(tmp_path / "here", machine, 5, **factors))
        assert (found, agrees) == (dict.fromkeys(TIMES, "within it"), True)
        assert f"committed: 5 repetitions on {machine['cpu']} ({machine['vectors']})" in shown
    for machine, factors in ((EPYC, fast), (MATRIX, {})):
        assert not told(there, made(tmp_path / "here", machine, 5, **factors))[2], "control: the times of the other"


def test_a_red_run_has_no_times(tmp_path: Path) -> None:
    here = made(tmp_path / "here", XEON, 5)
    report = json.loads((here / "edit-cpu.json").read_text())
    report["gate"] = {"green": False, "failures": ["fold: it broke"]}
    report["cells"][0]["seconds_to_first_token"] = {}
    (here / "edit-cpu.json").write_text(json.dumps(report))
    with pytest.raises(AcmError, match="fold: it broke"):
        told(made(tmp_path / "there", EPYC, 5), here)


def test_an_interval_of_few_values_is_wide() -> None:
    """By hand: the mean is 2, the deviation 1. Student's factor is 4.3 for three values, and 12.7 for two."""
    low, high = student_interval([1.0, 2.0, 3.0])
    assert (low, high) == pytest.approx((2 - 4.3027 / 3**0.5, 2 + 4.3027 / 3**0.5))
    low, high = student_interval([1.0, 2.0])
    assert high - low == pytest.approx(12.7062)
    assert student_interval([0.0, 1.0] * 10)[1] > 0.5
