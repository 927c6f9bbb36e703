"""The report of `bench scale`: ratios of neighbours, and no time of a red cell or of a gate that sees no move."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from acmserve.bench.agent.result_table import told_by
from acmserve.bench.edit.gate import AnswerDistance
from acmserve.bench.scale.cells import ScaleCell
from acmserve.bench.scale.run import ScaleTimes, as_report
from acmserve.bench.scale.table import BARS, COUNTS, TIMES_TABLES, draw_scale

SAME, OTHER = AnswerDistance(32, 32, 0.0), AnswerDistance(32, 3, 0.5)
TIMES = {"reuse": [0.2, 0.4, 0.2], "append": [0.2, 0.2, 0.1], "exact": [5.0], "stock": [6.0], "defaults": [4.0]}
TIMES |= {"auto": [0.8], "reuse@defaults": [0.1] * 3, "append@defaults": [0.1] * 3, "auto@defaults": [0.3]}


def measured(cell: ScaleCell, *failures: str, reuse: AnswerDistance = OTHER) -> ScaleTimes:
    receipt: dict[str, Any] = {"kept_tokens": 100, "moved_tokens": 700, "computed_tokens": 38}
    receipts = {"reuse": receipt, "exact": receipt | {"moved_tokens": 0, "computed_tokens": 738}}
    receipts |= {"reuse@defaults": receipt, "auto": receipt | {"computed_tokens": 300}}
    receipts["auto@defaults"] = receipt | {"computed_tokens": 200}
    return ScaleTimes(
        cell,
        seconds=TIMES,
        receipts=receipts,
        failures=list(failures),
        answers={"exact": SAME, "reuse": reuse},
        num_front=100,
        num_behind=700,
    )


CELLS = (ScaleCell(1024), ScaleCell(8192), ScaleCell(8192, 0.5), ScaleCell(8192, num_holes=64))


def lines(report: dict[str, Any], *tables: Any) -> list[str]:
    return [" ".join(line.split()) for line in told_by(*tables)(report)]


def test_the_ratio_is_that_of_an_edit_and_the_append_behind_it() -> None:
    report = as_report([measured(cell) for cell in CELLS], is_timed=True)
    assert report["gate"]["green"]
    first = report["cells"][0]
    assert (first["appends"], first["medians"]["reuse"], first["p90"]["reuse"]) == (2.0, 0.2, 0.4)
    assert first["appends_interval"] == [1.0, 2.0]
    assert (first["defaults"]["appends"], first["defaults"]["p90"]["reuse"]) == (1.0, 0.1)
    found = lines(report, *TIMES_TABLES)
    cells = "100 ms 100 ms 100 ms 1.00 [1.00, 1.00] 300 ms 200 4,000 ms"
    assert f"1,024 38 700 {cells}" in found
    assert "1,024 38 700 200 ms 200 ms 400 ms 2.00 [1.00, 2.00] 800 ms 300 5,000 ms 6,000 ms" in found
    firsts = ["1,024", "8,192", "10", "50", "1", "64"]
    assert [line.split()[0] for line in found if line.endswith(" 6,000 ms")] == firsts
    assert [line.split()[0] for line in found if line.endswith(" 4,000 ms")] == firsts


def test_what_auto_computes_is_told_of_all_repetitions() -> None:
    """A file that has one receipt says that it is of the last."""
    one = measured(CELLS[0])
    one.num_repetitions = 3
    assert any(" 300 in the last repetition " in line for line in lines(as_report([one], is_timed=True), *TIMES_TABLES))
    one.all_receipts["auto"] = [{"computed_tokens": num} for num in (300, 420, 280)]
    assert any(" 300 (280 to 420) " in line for line in lines(as_report([one], is_timed=True), *TIMES_TABLES))


def test_a_file_of_an_older_run_is_told_without_what_it_lacks() -> None:
    """No `auto`, nothing of ours at vLLM's defaults, no bars."""
    old = [measured(cell) for cell in CELLS]
    for times in old:
        times.seconds = {name: times.seconds[name] for name in ("reuse", "append", "exact", "stock", "defaults")}
        times.receipts = {name: times.receipts[name] for name in ("reuse", "exact")}
    found = lines(as_report(old, is_timed=True), BARS, *TIMES_TABLES)
    assert "1,024 38 700 200 ms 200 ms 400 ms 2.00 [1.00, 2.00] 5,000 ms 6,000 ms" in found
    assert not any("defaults" in line for line in found)


def test_a_red_cell_has_no_times_and_the_others_do() -> None:
    report = as_report([measured(CELLS[0], "reused 3 of the 700"), measured(CELLS[1])], is_timed=True)
    assert report["gate"]["failures"] == ["1,024 tokens, 1 hole from 10 %: reused 3 of the 700"]
    assert ["medians" in cell for cell in report["cells"]] == [False, True]


def test_a_gate_that_sees_no_move_is_red() -> None:
    report = as_report([measured(cell, reuse=SAME) for cell in CELLS], is_timed=True)
    assert report["gate"]["failures"] == ["moved KV passes as exact in all 4 kinds of edit, so the gate sees no move"]
    assert not any("medians" in cell for cell in report["cells"])


def test_counts_are_told_without_times() -> None:
    report = as_report([measured(CELLS[0], reuse=SAME)], is_timed=False)
    assert report["gate"]["green"]
    assert "medians" not in report["cells"][0]
    assert "1,024 10 % 1 38 100 700 38 738" in lines(report, COUNTS)
    assert draw_scale(report, "a machine", Path("none.png")) == "no plot: tokens were counted, and no time was taken"


def test_in_one_layer_moved_kv_has_to_answer_as_stock_does() -> None:
    (failure,) = as_report([measured(CELLS[0], reuse=OTHER)], is_timed=False)["gate"]["failures"]
    assert "moved KV of one layer answers otherwise than stock: 3 of 32 tokens" in failure


def test_the_plot_is_drawn(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    report = as_report([measured(cell) for cell in CELLS], is_timed=True)
    assert draw_scale(report, "a machine", tmp_path / "scale.png") is None
    assert (tmp_path / "scale.png").read_bytes().startswith(b"\x89PNG")
