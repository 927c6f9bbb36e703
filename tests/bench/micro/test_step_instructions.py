"""`bench step-instructions`: counts of Valgrind are read, compared with stock's, and refused where they disagree."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path
from typing import Any

import psutil
import pytest

from acmserve.bench.agent.result_table import told_by
from acmserve.bench.micro import instructions, step_instructions
from acmserve.bench.micro.instructions import can_count, count_instructions, read_total
from acmserve.bench.micro.step_instructions import NUM_COUNTS, NUM_STEPS, SEEDS, STEPS, as_report, share_told
from acmserve.errors import AcmError

SAME: dict[str, Any] = {name: [{"r0": 1}] for name in ("stock", "connector", "acmserve")}


def totals(stock: int, connector: int, acmserve: int) -> dict[str, list[int]]:
    """Of every seed the same, but for one count."""
    counts = {"stock": stock, "connector": connector, "acmserve": acmserve}
    found = {name: [one] * len(SEEDS) for name, one in counts.items()}
    found["connector"][1] += 1
    return found


def test_a_step_is_compared_with_stocks() -> None:
    report = as_report(totals(1_000_000 * NUM_STEPS, 1_005_000 * NUM_STEPS, 1_020_000 * NUM_STEPS), SAME)
    assert report["share_beside_stock"] == {"connector": 0.005, "acmserve": 0.02}
    lines = [" ".join(line.split()) for line in told_by(STEPS)(report)]
    assert "plugin on 1,020,000 +2.00 % [2.00, 2.00]" in lines
    del report["share_intervals"]
    assert share_told(report, "acmserve") == "+2.00 % without an interval"


def test_seeds_give_an_interval_and_the_pair_of_one_seed_counts_once() -> None:
    """By hand: shares of 1, 1.1, 0.9, 1 and 1 % have a mean of 1 and a deviation of 0.07."""
    stock = [1_000_000 * NUM_STEPS] * len(SEEDS)
    own = [round(one * (1 + share)) for one, share in zip(stock, (0.01, 0.01, 0.011, 0.009, 0.01, 0.01), strict=True)]
    report = as_report({"stock": stock, "connector": stock, "acmserve": own}, SAME)
    assert report["repetitions"] == 5
    low, high = report["share_intervals"]["acmserve"]
    half = 2.776 * 0.000707 / 5**0.5
    assert (low, high) == pytest.approx((0.01 - half, 0.01 + half), abs=2e-5)
    assert share_told(report, "acmserve") == f"+1.00 % [{100 * low:.2f}, {100 * high:.2f}]"
    assert report["share_intervals"]["connector"] == [0.0, 0.0]


def test_the_gate_compares_counts_of_one_seed_alone() -> None:
    """Another seed has another layout of memory."""
    counts = [1_000_000] * NUM_COUNTS + [1_009_000] * (len(SEEDS) - NUM_COUNTS)
    assert SEEDS[:NUM_COUNTS] == (0,) * NUM_COUNTS
    assert len(set(SEEDS)) >= 5
    assert as_report(dict.fromkeys(SAME, counts), SAME)["gate"]["green"]
    control = [1_000_000, 1_009_000, *counts[NUM_COUNTS:]]
    assert not as_report(dict.fromkeys(SAME, counts) | {"stock": control}, SAME)["gate"]["green"]


def test_each_seed_of_each_column_is_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[tuple[str, int]] = []

    def count(module: str, arguments: list[str], folder: Path, seed: int) -> tuple[int, str]:
        asked.append((arguments[0], seed))
        return 1_000_000, '[{"r0": 1}]'

    monkeypatch.setattr(step_instructions, "count_instructions", count)
    assert step_instructions.measure()["gate"]["green"]
    assert asked == [(column, seed) for seed in SEEDS for column in SAME]


def test_counts_that_disagree_and_other_tokens_turn_the_gate_red() -> None:
    apart = totals(1000, 1000, 1000) | {"stock": [1000, 1100, *[1000] * (len(SEEDS) - NUM_COUNTS)]}
    report = as_report(apart, SAME | {"acmserve": [{"r0": 2}]})
    assert report["gate"]["failures"] == [
        "acmserve scheduled other tokens than stock",
        "stock: counts are further apart than 0.1%: [1000, 1100]",
    ]
    assert "instructions_a_step" not in report


def test_valgrind_and_its_forks_end_with_the_benchmark(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Its place is taken by a program that waits for another one, and the benchmark is interrupted meanwhile."""
    program = tmp_path / "valgrind"
    program.write_text("#!/bin/sh\nsleep 600 &\necho $$ $!\nwait\n", encoding="utf-8")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    monkeypatch.setattr(instructions, "can_count", lambda: True)
    monkeypatch.setattr(subprocess, "run", lambda *_, **__: None)
    begun: list[psutil.Process] = []

    def interrupted(line: str) -> None:
        begun.extend(psutil.Process(int(number)) for number in line.split())
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        instructions.run_counted("json.tool", [], tmp_path, interrupted)
    assert len(begun) == 2
    assert psutil.wait_procs(begun, timeout=60)[1] == []


def test_the_total_of_a_file_is_its_last_sum() -> None:
    assert read_total("events: Ir\nsummary: 0\n\nfn=(1)\n3 17\n\ntotals: 169773\n") == 169773
    with pytest.raises(AcmError, match="never entered"):
        read_total("events: Ir\nsummary: 0\ntotals: 0\n")


@pytest.mark.skipif(not can_count(), reason="needs Valgrind with its header, and g++")
def test_instructions_are_counted_inside_and_nowhere_else(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program = "import sys\nfrom acmserve.bench.micro.instructions import counting\n"
    program += "sum(range(10**6))\nwith counting():\n    sum(range(int(sys.argv[1])))\nprint('done')\n"
    (tmp_path / "counted_sum.py").write_text(program, encoding="utf-8")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path), prepend=os.pathsep)
    found = [count_instructions("counted_sum", [str(10**number)], tmp_path) for number in (3, 4)]
    assert [said for _, said in found] == ["done\n", "done\n"]
    few, many = (total for total, _ in found)
    assert 5 * few < many < 15 * few
    assert many < 10**7, "the sum of a million numbers in front was counted, too"
