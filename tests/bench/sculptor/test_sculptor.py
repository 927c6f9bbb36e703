"""`bench sculptor`: the table of its recorded run, and what a red gate leaves of it."""

from __future__ import annotations

import json
from pathlib import Path

from acmserve.bench.agent.result_table import told_by
from acmserve.bench.harness.options import as_gate
from acmserve.bench.harness.workloads import Workload
from acmserve.bench.sculptor.main import CONVERSATIONS
from acmserve.bench.sculptor.run import WorkloadRun, check_workload_run

_RECORDED = Path(__file__).parents[3] / "benchmarks" / "results" / "sculptor.json"


def test_each_workload_has_a_row_for_each_fidelity_with_counts_and_times() -> None:
    report = json.loads(_RECORDED.read_text(encoding="utf-8"))
    row = report["rows"][1] | {"seconds_to_answer": [3.0, 1.0, 2.0]}
    lines = told_by(CONVERSATIONS)(report | {"rows": [report["rows"][0], row]})
    counts = [f"{row[f'{name}_tokens']:,}" for name in ("computed", "uncached")]
    assert lines[3].split()[0:2] + lines[3].split()[4:] == ["PI-LLM", "reuse", *counts, "2.0", "s"]
    assert lines[-1] == "gate green"


def test_a_red_gate_tells_why_and_no_number() -> None:
    report = json.loads(_RECORDED.read_text(encoding="utf-8")) | {"gate": as_gate(["exact moved 3 tokens"])}
    assert told_by(CONVERSATIONS)(report) == ["GATE RED, so nothing is reported:", "  exact moved 3 tokens"]


def test_moved_kv_under_exact_is_red() -> None:
    receipt = {"prompt_tokens": 9, "kept_tokens": 4, "moved_tokens": 2, "computed_tokens": 3}
    clean = receipt | {"moved_tokens": 0, "computed_tokens": 5}
    workload = Workload("w", "", "", (), "yes")
    for fidelity, follow_up, failures in (
        ("exact", clean, []),
        ("exact", receipt, ["w, exact: 2 tokens were moved"]),
        ("reuse", receipt, []),
    ):
        run = WorkloadRun("w", fidelity, [{"receipt": clean, "operations": []}], "yes", follow_up=follow_up)
        assert check_workload_run(run, workload) == failures
