"""`bench sculptor`: the table of its recorded run, and what a red gate leaves of it."""

from __future__ import annotations

import json
from pathlib import Path

from acmserve.bench.harness.options import as_gate
from acmserve.bench.sculptor.main import as_table

_RECORDED = Path(__file__).parents[3] / "benchmarks" / "results" / "sculptor.json"


def test_each_workload_has_a_row_for_each_fidelity_with_counts_and_medians() -> None:
    report = json.loads(_RECORDED.read_text(encoding="utf-8"))
    row = report["rows"][1] | {"seconds_to_answer": [3.0, 1.0, 2.0], "seconds_to_follow_up": [0.25]}
    lines = as_table(report | {"rows": [report["rows"][0], row]})
    assert [line[:13] for line in lines[3:-2]] == ["PI-LLM, exact", "PI-LLM, reuse"]
    counts = [f"{row[f'{name}_tokens']:,}" for name in ("uncached", "kept", "moved", "computed")]
    assert lines[4].split()[4:] == [*counts, "2.00", "s", "0.25", "s"]
    assert lines[-1].startswith("gate green")


def test_a_red_gate_tells_why_and_no_number() -> None:
    report = json.loads(_RECORDED.read_text(encoding="utf-8")) | {"gate": as_gate(["exact moved 3 tokens"])}
    assert as_table(report) == ["GATE RED, so nothing is reported:", "  exact moved 3 tokens"]
