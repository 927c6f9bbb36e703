"""The bars of `bench scale`, on made records: each is met by one and missed by another. No clock, no engine."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from acmserve.bench.agent.result_table import told_by
from acmserve.bench.edit.gate import AnswerDistance
from acmserve.bench.report.ledger import read_ledger
from acmserve.bench.report.page import sections_of
from acmserve.bench.report.sections.missed import BESIDE
from acmserve.bench.report.sections.scale import SCALE
from acmserve.bench.scale.bars import by_holes, by_length, judge_scale
from acmserve.bench.scale.cells import ScaleCell, plan_cells
from acmserve.bench.scale.main import scale_report
from acmserve.bench.scale.run import ScaleTimes
from acmserve.bench.scale.table import BARS, TIMES_TABLES
from acmserve.errors import AcmError

CONTEXTS, NUM = (1024, 8192, 32_768), 5
CELLS = plan_cells(CONTEXTS, (0.5,), (1, 64), at=8192)
ABOUT = {"contexts": list(CONTEXTS), "numbers_of_holes": [1, 64], "rounds": 2, "model": "m"}
SAME, OTHER = AnswerDistance(32, 32, 0.0), AnswerDistance(32, 3, 0.5)
NOISE = (1.0, 1.01, 0.99, 1.02, 0.98)
AT_DEFAULTS = {"reuse": 0.1, "append": 0.1, "auto": 1.0}
RECEIPT = {"kept_tokens": 100, "moved_tokens": 700, "computed_tokens": 38}

Change = Callable[[ScaleCell, dict[str, float]], None]


def unchanged(cell: ScaleCell, seconds: dict[str, float]) -> None:
    pass


def measured(change: Change = unchanged, num: Callable[[ScaleCell], int] = lambda cell: NUM) -> list[ScaleTimes]:
    """All cells: an edit is an append, stock takes 30 times as long, and `auto` ten times."""
    found = []
    for cell in CELLS:
        seconds = {f"{name}@defaults": one for name, one in AT_DEFAULTS.items()} | {"defaults": 3.0}
        if cell.context_tokens <= 8192:
            seconds |= {"reuse": 0.2, "append": 0.2, "auto": 1.5, "exact": 6.0, "stock": 6.0}
        if not cell.is_plain:
            seconds = {name: one for name, one in seconds.items() if name not in ("exact", "stock", "defaults")}
        change(cell, seconds)
        size = {name: 2 if name.startswith(("reuse", "append")) else 1 for name in seconds}
        # Cells that are compared have noise of their own.
        noises = (NOISE[cell.num_holes % NUM :] + NOISE)[: num(cell)]
        times = {name: [one * noise for noise in noises for _ in range(size[name])] for name, one in seconds.items()}
        receipts = dict.fromkeys(("reuse", "exact", "auto", "reuse@defaults", "auto@defaults"), RECEIPT)
        answers = {"exact": SAME, "reuse": OTHER} if "reuse" in seconds else {}
        found.append(ScaleTimes(cell, num(cell), seconds=times, receipts=receipts, answers=answers))
    return found


def report(change: Change = unchanged, num: Callable[[ScaleCell], int] = lambda cell: NUM) -> dict[str, Any]:
    return scale_report(measured(change, num), NUM, is_timed=True, about=ABOUT)


def missed(made: dict[str, Any]) -> list[str]:
    return [bar["what"] for bar in made["bars"] if not bar["is_met"]]


def test_folds_like_appends_meet_every_bar() -> None:
    made = report()
    assert made["gate"]["green"]
    assert missed(made) == []
    assert [bar["what"].rpartition(",")[0] for bar in made["bars"][:3]] == [
        "fold of 1,024 tokens, in appends",
        "fold of 8,192 tokens, in appends",
        "fold of 32,768 tokens, in appends",
    ]
    assert [bar["what"] for bar in made["bars"] if "float32" in bar["what"]] == [
        f"fold of {length} tokens, in appends, float32, eager" for length in ("1,024", "8,192")
    ]
    assert [(bar["value"], bar["bar"]) for bar in made["bars"][-3:]] == [(30.0, 20.0), (1.0, 1.1), (1.0, 1.1)]
    assert made["bars"][-1]["interval"][0] < 1.0 < made["bars"][-1]["interval"][1]
    shown = "\n".join(" ".join(line.split()) for line in told_by(BARS, *TIMES_TABLES)(made))
    assert "fold of 32,768 tokens, in appends, vLLM's defaults 1.00 [1.00, 1.00] at most 1.1 met" in shown
    assert "stock over reuse at 32,768 tokens, both at vLLM's defaults 30.00" in shown


def slower(name: str, factor: float, is_meant: Callable[[ScaleCell], bool]) -> Change:
    def change(cell: ScaleCell, seconds: dict[str, float]) -> None:
        if is_meant(cell) and name in seconds:
            seconds[name] *= factor

    return change


@pytest.mark.parametrize(
    ("name", "factor", "is_meant", "what"),
    [
        (
            *("append@defaults", 0.9, lambda cell: cell.context_tokens == 1024),
            "fold of 1,024 tokens, in appends, vLLM's defaults",
        ),
        (
            *("append", 0.9, lambda cell: cell == ScaleCell(8192)),
            "fold of 8,192 tokens, in appends, float32, eager",
        ),
        (
            *("defaults", 0.6, lambda cell: cell.context_tokens == 32_768),
            "stock over `reuse` at 32,768 tokens, both at vLLM's defaults",
        ),
        (
            *("auto@defaults", 1.3, lambda cell: cell.num_holes == 64),
            "64 holes over 1, as many new tokens, `auto`, vLLM's defaults",
        ),
        (
            *("reuse@defaults", 1.3, lambda cell: cell.num_holes == 64),
            "64 holes over 1, as many new tokens, `reuse`, vLLM's defaults",
        ),
    ],
)
def test_what_is_too_slow_misses_its_own_bar(
    name: str, factor: float, is_meant: Callable[[ScaleCell], bool], what: str
) -> None:
    made = report(slower(name, factor, is_meant))
    assert missed(made) == [what]
    assert "missed" in "\n".join(told_by(BARS)(made))


def test_the_worse_end_of_an_interval_is_judged() -> None:
    """1.09 would be met by what was seen. Noise of two percent puts the end of it above 1.1, and 1.05 meets it."""
    is_many = lambda cell: cell.num_holes == 64  # noqa: E731
    near, clear = (report(slower("auto@defaults", factor, is_many)) for factor in (1.09, 1.05))
    assert near["bars"][-1]["value"] == 1.09
    assert near["bars"][-1]["interval"][1] > 1.1
    assert missed(near) == [near["bars"][-1]["what"]]
    assert missed(clear) == []


def test_a_length_that_was_cut_is_left_out_and_misses_its_bars() -> None:
    made = report(num=lambda cell: 3 if cell.context_tokens == 32_768 else NUM)
    assert [cell["context_tokens"] for cell in by_length(made)] == [1024, 8192]
    assert made["repetitions"] == NUM
    (left,) = made["left_out"]
    assert (left["cell"], left["num_whole"]) == ("32,768 tokens, 1 hole from 10 %", 3)
    assert len(left["seconds_to_first_token"]["defaults"]) == 3
    assert missed(made) == [
        "fold of 32,768 tokens, in appends, vLLM's defaults",
        "stock over `reuse` at 32,768 tokens, both at vLLM's defaults",
    ]
    assert "not measured" in "\n".join(told_by(BARS)(made))


def test_without_a_length_there_is_no_result() -> None:
    with pytest.raises(AcmError, match="no length was measured 5 times"):
        report(num=lambda cell: 1)


def test_holes_with_other_numbers_of_new_tokens_are_not_compared() -> None:
    """Files of older runs have them. There the cell with one hole is that of the lengths."""
    made = report()
    made["cells"] = [cell for cell in made["cells"] if cell["num_holes"] != 1 or cell["new_tokens"] == 38]
    assert [cell["new_tokens"] for cell in by_holes(made)] == [38, 542]
    assert [bar.value for bar in judge_scale(made)[-2:]] == [None, None]


def shown_page(folder: Path, made: dict[str, Any]) -> str:
    (folder / "scale.json").write_text(json.dumps(made | {"machine": {}}), encoding="utf-8")
    return "\n".join(sections_of(SCALE, folder, read_ledger(folder)))


def test_the_page_tells_bars_settings_and_what_was_left_out(tmp_path: Path) -> None:
    shown = shown_page(tmp_path, report())
    assert "takes 1.00 appends at 1,024 tokens, and 1.00 at 32,768. There stock vLLM takes 30 times as long" in shown
    assert "and 3.0 times as long as `auto`. Of 8 bars 8 are met." in shown
    assert "| stock over `reuse` at 32,768 tokens, both at vLLM's defaults | 30.00 [" in shown
    assert "Times are medians of 5 repetitions, with 2 rounds of `reuse` in each." in shown
    cut = shown_page(tmp_path, report(num=lambda cell: 3 if cell.context_tokens == 32_768 else NUM))
    assert "and 1.00 at 8,192" in cut
    assert "Left out: 32,768 tokens, 1 hole from 10 %, of 3 repetitions." in cut
    assert "Of 8 bars 6 are met." in cut


def test_a_missed_bar_stands_on_the_first_screen() -> None:
    (bar,) = (one for one in BESIDE if one.files == ("scale",))
    assert bar.told({"scale": report()}) == ""
    told = bar.told({"scale": report(slower("defaults", 0.6, lambda cell: cell.context_tokens == 32_768))})
    assert told.startswith("Long contexts: stock over `reuse` at 32,768 tokens, both at vLLM's defaults, is 18.00 [")
    assert told.endswith("], and was to be 20.0 at least.")
    cut = bar.told({"scale": report(num=lambda cell: 3 if cell.context_tokens == 32_768 else NUM)})
    assert "was not measured" in cut
    assert cut.endswith(" Missed bars of long contexts and many holes: 2.")
