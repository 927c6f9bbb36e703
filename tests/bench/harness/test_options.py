"""How every benchmark ends: what is printed, written and drawn, and what a red gate holds back."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import pytest

from acmserve.bench.harness.options import as_gate, hand_over, red_gate

MACHINE = {"cpu": "a cpu", "cores": 2, "memory_gib": 8, "versions": {}, "commit": None}


def table(report: dict[str, Any]) -> list[str]:
    return red_gate(report) or ["1 second"]


@pytest.mark.parametrize(("failures", "code", "said"), [([], 0, "1 second"), (["it broke"], 1, "  it broke")])
def test_a_red_gate_leaves_its_reasons_and_no_plot(
    failures: list[str], code: int, said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    report = {"gate": as_gate(failures), "machine": MACHINE}
    options = argparse.Namespace(json=tmp_path / "report.json", plot=tmp_path / "plot.png")
    drawn: list[Path] = []
    assert hand_over(report, table, lambda _, __, path: drawn.append(path), options) == code
    assert capsys.readouterr().out.split("\n")[1 if failures else 0] == said
    assert json.loads(options.json.read_text())["gate"] == {"green": not failures, "failures": failures}
    assert drawn == ([] if failures else [options.plot])


def test_many_failures_are_counted_and_not_all_told() -> None:
    lines = red_gate({"gate": as_gate([str(number) for number in range(25)])})
    assert (len(lines), lines[1], lines[-1]) == (22, "  0", "  and 5 more")
