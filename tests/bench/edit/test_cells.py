"""The reports of `bench edit`: a red cell tells no time, the others do, and the tables say what was measured."""

from __future__ import annotations

from typing import Any

import pytest

from acmserve.bench.agent.result_table import told_by
from acmserve.bench.edit.kinds import EditSizes
from acmserve.bench.edit.main import main
from acmserve.bench.edit.receipts import tokens_in_words, told_tokens
from acmserve.bench.edit.run import SERIES, Cell, as_report, check_reused
from acmserve.bench.edit.table import (
    KINDS_TABLE,
    LLAMA_TABLE,
    TURNS,
    TURNS_AT_DEFAULTS,
    p90_of_slowest,
    sooner_interval,
    times_sooner,
    times_sooner_at_worst,
)
from acmserve.bench.harness.engine import Ask, check_receipt
from acmserve.bench.harness.llama_cpp import BEST, OWN_DEFAULTS
from acmserve.bench.provenance.drawn_order import draw_order

TIMES = {"reuse": 0.24, "repair": 0.5, "append": 0.2, "auto": 0.4, "exact": 5.0, "stock": 6.0, "defaults": 4.0}
TIMES |= {"reuse@defaults": 0.16, "append@defaults": 0.1}


def receipt(kept: int, moved: int, computed: int) -> dict[str, Any]:
    return {"kept_tokens": kept, "moved_tokens": moved, "computed_tokens": computed, "fallback_reason": None}


def cell(kind: str = "fold", *failures: str) -> Cell:
    seconds = {name: [TIMES[name], TIMES[name] * 2, TIMES[name]] if name in TIMES else [] for name in SERIES}
    made = Cell(kind, 50, seconds=seconds, receipts={"reuse": receipt(500, 2000, 50)}, failures=list(failures))
    made.num_front, made.num_behind = 500, 2000
    return made


def report_of(*cells: Cell) -> dict[str, Any]:
    return as_report(cells, EditSizes())


def table(report: dict[str, Any]) -> str:
    return "\n".join(
        " ".join(line.split()) for line in told_by(TURNS_AT_DEFAULTS, TURNS, KINDS_TABLE, LLAMA_TABLE)(report)
    )


def test_a_green_cell_tells_medians_and_counts() -> None:
    report = report_of(cell())
    [row] = report["cells"]
    assert report["gate"]["green"]
    assert row["medians"] == TIMES
    assert times_sooner(report, "reuse", "stock") == pytest.approx(25)
    assert times_sooner(report, "reuse@defaults", "defaults") == pytest.approx(25)
    assert "plain append, 50 new tokens 200 ms 200 to 400 ms" in table(report)
    assert "fold, reuse 240 ms 240 to 480 ms 500 2,000 50" in table(report)
    assert "fold, auto 400 ms 400 to 800 ms" in table(report)
    defaults, flags = table(report).split("Both in float32, and eager.")
    assert "fold, stock vLLM 4,000 ms" in defaults
    assert "fold, stock vLLM 6,000 ms" in flags
    assert "fold, reuse 160 ms 160 to 320 ms" in defaults
    assert "exact (default)" in flags
    assert "exact (default)" not in defaults, "what was not measured has no row"
    assert "fold 200 ms 240 ms 500 ms 5,000 ms 6,000 ms" in table(report)


def test_tokens_are_those_of_the_repetition_whose_time_is_told() -> None:
    """Each repetition has another text, so `auto` computes other tokens in it. Where all agree, one number is told."""
    made = cell()
    for computed in (1900, 2600, 1104):
        one = Cell("fold", seconds={"stock": [6.0], "auto": [2.0]})
        one.keep_receipt("auto", receipt(500, 3050 - computed, computed))
        one.keep_receipt("exact", receipt(500, 0, 3050))
        made.take(one)
    row = report_of(made)["cells"][0]
    assert row["receipts"]["auto"]["computed_tokens"] == 1104
    assert told_tokens(row, "auto", "computed") == "1,900 (1,104 to 2,600)"
    assert told_tokens(row, "exact", "computed") == "3,050"
    assert told_tokens(row, "stock", "computed") == ""
    assert tokens_in_words(row, "auto") == "it computes 1,900 tokens in the median, and 1,104 to 2,600"
    assert "fold, auto 1,400 ms 400 to 2,000 ms 500 1,150 (450 to 1,946) 1,900 (1,104 to 2,600)" in table(
        report_of(made)
    )


def test_a_file_that_has_one_receipt_says_that_it_is_the_last() -> None:
    row = report_of(cell())["cells"][0]
    row["receipts"]["auto"] = receipt(500, 1946, 1104)
    assert "all_receipts" not in row
    assert told_tokens(row, "auto", "computed") == "1,104 in the last repetition"
    assert told_tokens(row, "reuse", "computed") == "50", "the sizes of an edit decide"
    assert tokens_in_words(row, "auto") == "in the last repetition it computed 1,104 tokens"
    row["num_repetitions"] = 1
    assert told_tokens(row, "auto", "computed") == "1,104"


def test_times_sooner_has_an_interval_over_repetitions() -> None:
    """Three times of ours and one of the other to a repetition."""
    report = report_of(cell())
    times = report["cells"][0]["seconds_to_first_token"]
    report["cells"][0]["num_repetitions"] = 3
    times |= {"reuse": [0.1] * 3 + [0.2] * 3 + [0.4] * 3, "stock": [2.0, 4.0, 8.0]}
    assert times_sooner(report, "reuse", "stock") == pytest.approx(20)
    assert sooner_interval(report, "reuse", "stock") == [20.0, 20.0], "the machine slowed down, for both alike"
    times["stock"] = [8.0, 4.0, 2.0]
    low, high = sooner_interval(report, "reuse", "stock")
    assert times_sooner(report, "reuse", "stock") == pytest.approx(20)
    assert low < 20 < high


def test_a_p90_has_as_many_figures_on_either_side() -> None:
    """Of fifteen times the 90th percentile would leave out the slowest, where the other side's five leave out none."""
    report = report_of(cell())
    report["cells"][0]["num_repetitions"] = 5
    times = report["cells"][0]["seconds_to_first_token"]
    times |= {"reuse": [0.1] * 7 + [0.8] + [0.1] * 7, "stock": [2.0, 4.0, 8.0, 4.0, 4.0]}
    assert times_sooner(report, "reuse", "stock") == pytest.approx(40)
    assert times_sooner_at_worst(report, "reuse", "stock") == pytest.approx(8.0 / 0.8)
    assert p90_of_slowest([5.0, 1.0, 2.0], 3) == 5.0
    assert p90_of_slowest([float(one) for one in range(1, 11)], 10) == 9.0
    assert p90_of_slowest([float(one) for one in range(1, 11)], 5) == 10.0


def test_who_goes_first_is_drawn_anew_and_can_be_drawn_again() -> None:
    orders = [draw_order(SERIES, f"edit-{number} fold") for number in range(5)]
    assert all(sorted(order) == sorted(SERIES) for order in orders)
    assert len({order[0] for order in orders}) > 1
    assert draw_order(SERIES, "edit-3 fold") == orders[3]


def test_llama_cpp_is_told_where_it_was_measured_and_only_there() -> None:
    with_llama, without = cell(), cell("deletion")
    with_llama.seconds[BEST.name] = [4.0]
    with_llama.receipts[BEST.name] = {"kept_tokens": 500, "computed_tokens": 2050}
    report = report_of(with_llama, without)
    assert [row["medians"].get(BEST.name) for row in report["cells"]] == [4.0, None]
    assert "llama.cpp in two ways" not in table(report)
    assert "fold 200 ms 240 ms 500 ms 5,000 ms 6,000 ms 4,000 ms 2,050" in table(report)
    assert "deletion 200 ms 240 ms 500 ms 5,000 ms 6,000 ms\n" in table(report)
    with_llama.seconds[OWN_DEFAULTS.name] = [3.0]
    with_llama.receipts[OWN_DEFAULTS.name] = {"kept_tokens": 2490, "computed_tokens": 60}
    assert "fold 50 4,000 ms 2,050 3,000 ms 60" in table(report_of(with_llama, without))


def test_a_red_cell_tells_why_and_no_time_while_the_others_do() -> None:
    report = report_of(cell("fold", "reuse: reused 3 of the 2000 tokens"), cell("deletion"))
    red, green = report["cells"]
    assert (red["green"], red["medians"], red["seconds_to_first_token"]) == (False, {}, {})
    assert green["medians"] == TIMES
    assert report["gate"]["failures"] == ["fold: reuse: reused 3 of the 2000 tokens"]
    assert table(report).endswith("fold: reuse: reused 3 of the 2000 tokens")


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
    failures = check_receipt(Ask((1,) * 2550, "", "s", fidelity), told)
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


@pytest.mark.parametrize(
    ("arguments", "says"), [(["--kinds", "folds"], "'folds'"), (["--repetitions", "0"], "'0' is not a positive number")]
)
def test_wrong_usage_names_the_bad_option(arguments: list[str], says: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stop:
        main(arguments)
    assert stop.value.code == 2
    assert says in capsys.readouterr().err
