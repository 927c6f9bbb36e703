"""The reports of `bench edit --kinds`: a red cell tells no time, the others do."""

from __future__ import annotations

from typing import Any

import pytest

from acmserve.bench.edit.cells import (
    LLAMA_CPP,
    SERIES,
    Cell,
    as_report,
    as_table,
    check_receipt,
    check_reused,
    make_cells,
)
from acmserve.bench.edit.kinds import KINDS, POSITIONS, WITHOUT_POSITION, Shape
from acmserve.bench.harness.engine import Ask

TIMES = {"reuse": 0.24, "repair": 0.5, "append": 0.2, "exact": 5.0, "stock": 6.0}


def receipt(kept: int, moved: int, computed: int) -> dict[str, Any]:
    return {"kept_tokens": kept, "moved_tokens": moved, "computed_tokens": computed, "fallback_reason": None}


def cell(kind: str = "fold", *failures: str) -> Cell:
    seconds = {name: [TIMES[name], TIMES[name] * 2, TIMES[name]] if name in TIMES else [] for name in SERIES}
    made = Cell(kind, Shape(3000), seconds, {"reuse": receipt(500, 2000, 50)}, list(failures))
    made.num_front, made.num_behind, made.num_new = 500, 2000, 50
    return made


def test_a_green_cell_tells_medians_counts_and_targets() -> None:
    report = as_report([cell()])
    [row] = report["cells"]
    assert report["gate"]["green"]
    assert row["medians"] == TIMES
    assert row["ratios"] == pytest.approx(
        {"reuse / append": 1.2, "stock / reuse": 25, "repair / append": 2.5, "stock / repair": 12}
    )
    table = "\n".join(as_table(report))
    assert "240 (240-480)" in table
    assert "takes 1.20 appends (target 1.25: met), 25.0 times faster than stock (target 8: met)" in table


def test_llama_cpp_is_told_where_it_was_measured_and_only_there() -> None:
    with_llama, without = cell(), cell("deletion")
    with_llama.seconds[LLAMA_CPP] = [4.0]
    with_llama.receipts[LLAMA_CPP] = {"kept_tokens": 500, "computed_tokens": 2050}
    report = as_report([with_llama, without])
    assert report["series"] == list(SERIES)
    assert [row["medians"].get(LLAMA_CPP) for row in report["cells"]] == [4.0, None]
    table = "\n".join(as_table(report))
    assert "llama.cpp, fold: kept 500, computed 2,050 (2,000 old tokens behind the edit)" in table
    assert "llama.cpp, deletion" not in table
    assert LLAMA_CPP not in as_report([without])["series"]


def test_a_red_cell_tells_why_and_no_time_while_the_others_do() -> None:
    report = as_report([cell("fold", "reuse: reused 3 of the 2000 tokens"), cell("deletion")])
    red, green = report["cells"]
    assert (red["green"], red["medians"], red["ratios"], red["seconds_to_first_token"]) == (False, {}, {}, {})
    assert green["medians"] == TIMES
    assert report["gate"]["failures"] == ["fold, 3,000 tokens, front: reuse: reused 3 of the 2000 tokens"]
    table = "\n".join(as_table(report))
    assert "GATE RED for:\n  fold, 3,000 tokens, front: reuse: reused 3" in table
    assert "appends (target" not in table


@pytest.mark.parametrize(
    ("told", "fidelity", "says"),
    [
        (receipt(500, 2000, 50), "reuse", []),
        (receipt(500, 2000, 51), "reuse", ["do not sum to 2550"]),
        (receipt(500, 2000, 50), "exact", ["2000 tokens were moved under exact"]),
        (None, "reuse", ["no receipt came back"]),
    ],
)
def test_a_receipt_has_to_fit_its_request(told: dict[str, Any] | None, fidelity: str, says: list[str]) -> None:
    failures = check_receipt(fidelity, Ask((1,) * 2550, "", "s", fidelity), told)
    assert len(failures) == len(says)
    assert all(part in failure for part, failure in zip(says, failures, strict=True))


@pytest.mark.parametrize(("kept", "moved", "is_right"), [(500, 1800, True), (2500, 0, True), (500, 1799, False)])
def test_nine_tenths_behind_the_edit_have_to_come_along(kept: int, moved: int, is_right: bool) -> None:
    made = cell()
    made.receipts["reuse"] = receipt(kept, moved, 0)
    assert (check_reused("reuse", made) == []) is is_right


def test_what_repair_computes_came_along_too() -> None:
    made = cell()
    made.receipts["repair"] = receipt(500, 1600, 0) | {"repaired_tokens": 200}
    assert check_reused("repair", made) == []
    made.receipts["repair"]["repaired_tokens"] = 199
    assert check_reused("repair", made) == ["repair: reused 1799 of the 2000 tokens behind the edit (None)"]


def test_a_sweep_has_every_kind_everywhere_but_those_without_a_place() -> None:
    cells = make_cells(list(KINDS), (1500, 3000), POSITIONS)
    assert len(cells) == 2 * (3 * len(KINDS) - 2 * len(WITHOUT_POSITION))
    assert len({(one.kind, one.shape) for one in cells}) == len(cells)
