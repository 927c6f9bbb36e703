"""The report of `bench edit`: ratios with their targets on a green gate, and none on a red one."""

from __future__ import annotations

import pytest

from acmserve.bench.edit.cases import EditSizes
from acmserve.bench.edit.main import as_report, as_table, main
from acmserve.bench.edit.run import APPEND, APPEND_TWO, CASES, FOLD, STOCK, TWO_HOLES, EditMeasurement


def measured(*failures: str) -> EditMeasurement:
    seconds = {case: [2.0, 2.2, 2.1] for case in CASES}
    seconds |= {
        APPEND: [0.10, 0.11, 0.10],
        APPEND_TWO: [0.10, 0.10, 0.10],
        FOLD: [0.12, 0.11, 0.30],
        TWO_HOLES: [0.16, 0.16, 0.16],
    }
    return EditMeasurement(seconds=seconds, failures=list(failures), num_reuse_agrees=3)


def test_green_gate_reports_ratios_of_medians_and_which_targets_are_met() -> None:
    table = "\n".join(as_table(measured()))
    assert f"{FOLD} / {APPEND}: 1.200 (target 1.250 or less: met)" in table
    assert f"{TWO_HOLES} / {APPEND_TWO}: 1.600 (target 1.500 or less: missed)" in table
    assert f"{FOLD} / {STOCK}: 0.057 (target 0.125 or less: met)" in table
    assert len(as_report(measured(), EditSizes())["ratios"]) == 3


def test_red_gate_gives_the_failure_and_no_ratio() -> None:
    red = measured("bench-1: after the fold exact gave token (7,), the stock engine (8,)")
    table = "\n".join(as_table(red))
    assert "GATE RED" in table
    assert "exact gave token (7,)" in table
    assert " / " not in table
    report = as_report(red, EditSizes())
    assert report["ratios"] == []
    assert report["gate"]["green"] is False


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--sizes", "3000"], "--sizes and --positions go with --kinds or --sweep"),
        (["--sweep", "--sizes", "9000"], "'9000' is not a number of tokens from 500 to 7000"),
        (["--kinds", "folds"], "'folds'"),
        (["--sweep", "--kinds", "all"], "not allowed with"),
    ],
)
def test_wrong_usage_names_the_bad_option(arguments: list[str], says: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stop:
        main(arguments)
    assert stop.value.code == 2
    assert says in capsys.readouterr().err
