"""The first screen: what stands for turns a second until loads are run, how bars are judged, and their limits."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from acmserve.bench.harness.markdown_text import MET, MISSED, NOT_MEASURED
from acmserve.bench.report import page as page_module
from acmserve.bench.report.decision import NUMBERS, first_screen
from acmserve.bench.report.page import page
from acmserve.bench.report.screen.never import NEVER, never_measured
from acmserve.bench.report.sections.loads import LOADS, NUM_SESSIONS, pauses_told
from acmserve.bench.report.sections.micro import MICRO
from acmserve.bench.report.sections.missed import BESIDE
from tests.support.docs.figures_of_records import families_too_far
from tests.support.docs.pages import ROOT, read_page
from tests.support.recorded.ledger import committed_ledger

RESULTS = ROOT / "benchmarks/results"
FOLD, STEP = NUMBERS[0], NUMBERS[4]
NUMBER = next(number for number in NUMBERS if number.question.startswith("Turns a second"))


def single() -> dict[str, Any]:
    """Rates of one session: by the first policy many turns edit, by the second one few."""
    counts = {"recency@1": (3, {"exact": (1.1, 90), "reuse": (2.5, 20), "stock": (1.0, 100)})}
    counts["cwl"] = (1, {"exact": (1.0, 50), "reuse": (1.1, 40), "stock": (1.0, 50)})
    rows = [
        {
            "policy": policy,
            "server": server,
            "num_turns": 12,
            "num_edits": num_edits,
            "turns_per_second": {"median": rate},
            "computed_tokens": num,
        }
        for policy, (num_edits, servers) in counts.items()
        for server, (rate, num) in servers.items()
    ]
    return {"rows": rows}


def load(ratio: float, *servers: str) -> dict[str, Any]:
    computed = {"reuse": 20, "stock": 80}
    rows = [
        {
            "policy": "recency@1",
            "server": server,
            "num_turns": 48,
            "num_edits": 16,
            "rate_beside_stock": {"ratio": ratio if server == "reuse" else 1.0, "interval": [0.9, 2.3]},
            "computed_tokens": computed.get(server, 50),
        }
        for server in ("exact", "reuse", "stock", *servers)
    ]
    return {"rows": rows}


def test_one_session_is_told_and_meets_no_bar() -> None:
    """2.5 times would meet it. The other policy of that file, of rare edits, is a bound and no verdict."""
    reports = {"trace": single()}
    assert NUMBER.verdict(reports) == NOT_MEASURED
    assert NUMBER.text(reports) == "2.50 times with one session in float32"
    assert NUMBER.beside(reports) == (
        "`exact` 1.10 times. 3 of 12 turns edit. Where 1 of 12 does, tokens allow `reuse` 1.25 times at most"
    )


@pytest.mark.parametrize(
    ("ratios", "verdict"),
    [
        ({"trace-4": 2.0, "trace-16": 2.4}, MET),
        ({"trace-4": 2.4, "trace-16": 1.99}, MISSED),
        ({"trace-4": 1.99, "trace-16": 2.4}, MISSED),
        ({"trace-16": 1.99}, MISSED),
        ({"trace-4": 2.4}, NOT_MEASURED),
    ],
)
def test_the_bar_is_held_against_both_loads(ratios: dict[str, float], verdict: str) -> None:
    reports = {"trace": single()} | {name: load(ratio) for name, ratio in ratios.items()}
    assert NUMBER.verdict(reports) == verdict
    assert "float32" not in NUMBER.text(reports)


def test_other_ways_and_what_tokens_allow_are_told_beside() -> None:
    reports = {"trace": single(), "trace-4": load(1.5, "auto"), "trace-16": load(1.6)}
    assert NUMBER.text(reports) == "1.50 [0.90, 2.30] with 4, 1.60 [0.90, 2.30] with 16 sessions"
    assert NUMBER.beside(reports) == (
        "`auto` 1.00 [0.90, 2.30] with 4. `exact` 1.00 [0.90, 2.30] with 4, 1.00 [0.90, 2.30] with 16. "
        "16 of 48 turns edit. Where 1 of 12 does, tokens allow `reuse` 1.25 times at most"
    )
    assert NUMBER.reason(reports) == "by tokens alone it would be 4.00 and 4.00."


def test_a_load_without_a_stock_engine_is_none() -> None:
    report = load(2.4)
    report["rows"][1]["rate_beside_stock"] = None
    assert NUMBER.text({"trace": single(), "trace-4": report}) == "2.50 times with one session in float32"


def are(num: int) -> str:
    return f"{num} is" if num == 1 else f"{num} are"


def test_the_first_screen_counts_what_was_not_measured_apart() -> None:
    rows = committed_ledger()
    rows |= dict.fromkeys(NUM_SESSIONS, rows["trace"])
    reports = {name: json.loads((RESULTS / f"{name}.json").read_text()) for one in NUMBERS for name in one.files}
    reports["step-instructions"].pop("share_intervals", None)
    others = sum(one.verdict(reports) == MISSED for one in NUMBERS)
    assert f"**Of 5 bars {are(others)} missed, 2 are not measured**." in first_screen(reports, rows)
    reports["step-instructions"]["share_intervals"] = {"acmserve": [0.008, 0.01]}
    assert f"**Of 5 bars {are(others)} missed, 1 is not measured**." in first_screen(reports, rows)
    for ratio, told in (
        (1.9, f"**Of 5 bars {are(others + 1)} missed**."),
        (2.0, f"**Of 5 bars {are(others)} missed**."),
    ):
        screen = first_screen(reports | {name: load(ratio) for name in NUM_SESSIONS}, rows)
        assert told in screen
        reason = f"- {NUMBER.question}: by tokens alone it would be 4.00 and 4.00."
        assert (reason in screen) is (ratio < 2)


def test_the_page_reads_the_loads_once_they_are_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With every section left out, so the first screen alone reads files."""
    monkeypatch.setattr(page_module, "check_page", lambda *_: None)
    for file in RESULTS.glob("*.json"):
        if file.stem not in NUM_SESSIONS:
            shutil.copy(file, tmp_path)
    assert "with one session in float32" in page((), tmp_path)
    for name in NUM_SESSIONS:
        (tmp_path / f"{name}.json").write_text(json.dumps(load(2.4) | {"repetitions": 5}), encoding="utf-8")
    shown = page((), tmp_path)
    assert "2.40 [0.90, 2.30] with 4, 2.40 [0.90, 2.30] with 16 sessions" in shown
    assert "with one session in float32" not in shown


def test_a_bar_of_a_card_is_judged_by_the_end_of_its_interval() -> None:
    bars = [one for one in BESIDE if one.files == ("gpu",)]

    def told(end: float) -> list[str]:
        stage = {"over_stock": {"ratio": 1.0077, "interval": [1.0012, end]}, "bar": 1.01, "is_met": True}
        stage["seconds"] = {"stock": [1.0, 2.0, 3.0]}
        return [bar.told({"gpu": {"stages": {"overhead": stage}}}) for bar in bars[-1:]]

    said = "Requests without a session take 1.0077 [1.0012, 1.0146] times as long on a GPU in 3 repetitions"
    assert told(1.0146) == [f"{said}, 1.01 at most by the interval's end."]
    assert told(1.01) == [""]
    assert bars[-1].told({"gpu": {"stages": {}}}) == "", "a run without this stage"


@pytest.mark.parametrize("name", ["search", "budget-pass", "identity"])
def test_a_limit_stands_beside_its_median(name: str) -> None:
    """Met or missed, and the answer counts those that are missed."""
    (section,) = (one for one in MICRO if one.files == (name,))
    report = json.loads((RESULTS / f"{name}.json").read_text(encoding="utf-8"))
    limited = [row for row in report["rows"] if "limit_ms" in row]
    for row in limited:
        row["median_ms"] = row["limit_ms"]
    assert callable(section.answer)
    assert section.answer({name: report}).endswith(f"Of {len(limited)} medians with a limit none misses it.")
    assert not any("missed" in row[-1] for row in section.tables[0].rows({name: report}))
    limited[0]["median_ms"] *= 1.001
    assert section.answer({name: report}).endswith(f"Of {len(limited)} medians with a limit 1 misses it.")
    shown = [row[-1] for row in section.tables[0].rows({name: report}) if "missed" in row[-1]]
    limit = f"{limited[0]['limit_ms']:g} ms: **missed**"
    assert shown == [f"{limit}, by 1 of 6" if name == "search" else limit]


def test_a_bar_says_at_which_length_it_was_held() -> None:
    cell = {"kind": "fold", "context_tokens": 8_192}
    told = FOLD.bar_told({"edit-cpu": {"cells": [cell]}})
    assert told == "1.1 appends, 20 times sooner, at 8,192 tokens, without AMX"
    assert dict(NEVER)["scale"].startswith("A fold at any other length or place on a CPU")


@pytest.mark.parametrize(
    ("share", "ends", "verdict", "text"),
    [
        (0.00994, None, NOT_MEASURED, "+0.99 % without an interval"),
        (0.0101, None, NOT_MEASURED, "+1.01 % without an interval"),
        (0.009, [0.008, 0.01], MET, "+0.90 % [0.80, 1.00]"),
        (0.009, [0.007, 0.011], MISSED, "+0.90 % [0.70, 1.10]"),
    ],
)
def test_a_step_is_judged_by_the_worse_end_and_one_count_decides_nothing(
    share: float, ends: list[float] | None, verdict: str, text: str
) -> None:
    """Two tenths of a percent were seen to be the layout of memory, on either side of the bar."""
    found: dict[str, Any] = {"share_beside_stock": {"acmserve": share, "connector": 0.007}}
    reports = {"step-instructions": found | ({"share_intervals": {"acmserve": ends}} if ends else {})}
    assert (STEP.verdict(reports), STEP.text(reports)) == (verdict, text)
    assert STEP.bar_told(reports) == "+1 % by the interval's end"


def test_a_bar_of_a_part_says_which_and_the_whole_is_listed_until_it_is_counted() -> None:
    assert STEP.question.startswith("Scheduler half of a decode step")
    assert {"HTTP", "prefill", "worker's"} <= set(dict(NEVER)["request-instructions"].replace(",", " ").split())


@pytest.mark.parametrize(
    ("command", "scale", "told"),
    [
        ("--repetitions 1", {"scale": 0.02}, " (1 repetition, pauses at 2 %, answers of 16 tokens)"),
        ("--repetitions 5", {"scale": 0.02}, " (pauses at 2 %, answers of 16 tokens)"),
        ("--repetitions 5", {"scale": 1}, " (answers of 16 tokens)"),
        ("", {}, " (answers of 16 tokens)"),
        ("", {"max_tokens": 0}, ""),
    ],
)
def test_a_rate_says_what_it_rests_on(command: str, scale: dict[str, float], told: str) -> None:
    """An older file tells its repetitions by its command alone."""
    report = json.loads((RESULTS / "trace.json").read_text(encoding="utf-8"))
    for key in ("scale", "repetitions"):
        report.pop(key, None)
    report |= {"machine": {"command": f"acmserve bench trace {command}"}} | scale
    assert NUMBER.text({"trace": report}).endswith(f" times with one session in float32{told}")


def test_a_load_tells_how_long_an_agent_waits() -> None:
    assert pauses_told({}) == pauses_told({"scale": 1}) == ""
    (section,) = (one for one in LOADS if one.files == ("trace-4",))
    (note,) = (note for note in section.notes if callable(note) and note.__name__ == "edits")
    report = {"rows": [{"num_turns": 12, "num_edits": 3}], "max_tokens": 16, "scale": 0.02}
    assert note({"trace-4": report}) == (
        "Of 12 turns 3 edit. Answers have 16 tokens. Between turns an agent waits 2 % of what was recorded."
    )
    assert "Answers have as many tokens as the recorded ones." in note({"trace-4": report | {"max_tokens": 0}})


def test_what_a_run_on_a_card_lacks_is_never_measured() -> None:
    """Each part by itself. A suite that was run whole lacks none, and one that was never run has a row of its own."""
    stages: dict[str, Any] = {name: {} for name in ("holes", "fold-fp8", "sessions-fp8")}
    stages["fold"] = {"cells": [{"context_tokens": 131_072}, {"context_tokens": 4_096}]}
    said = "On a GPU: {}drafts of speculation."

    def told(stages: dict[str, Any]) -> str:
        return never_measured({"gpu": {"stages": stages}}, {"gpu"})[-1]

    assert told(stages) == said.format("")
    parts = {
        "fold": "131,072 tokens, ",
        "fold-fp8": "folds in fp8, ",
        "sessions-fp8": "sessions in fp8, ",
        "holes": "many holes in one pass, ",
    }
    for name, text in parts.items():
        assert told({other: stage for other, stage in stages.items() if other != name}) == said.format(text)
    assert told({}) == said.format("".join(parts.values()))
    stages["fold"] = {"cells": [{"context_tokens": 65_536}]}
    assert told(stages) == said.format(parts["fold"])
    assert never_measured({}, {"gpu"})[-1] == said.format("")
    assert dict(NEVER)["gpu"] in never_measured({}, ())
    assert dict(NEVER)["gpu"] not in never_measured({}, {"gpu"})


@pytest.mark.parametrize("name", ["trace-pool", "trace-16", "scale", "precompute-paired-thoughts"])
def test_what_the_issues_ask_for_is_never_measured_until_its_result_is_there(name: str) -> None:
    text = dict(NEVER)[name]
    assert text in never_measured({}, ())
    assert text not in never_measured({}, {name})


def test_each_sentence_of_what_was_never_measured_stands_by_itself() -> None:
    """Any of those before it may be recorded, and is told no more then."""
    assert [text for _, text in NEVER if "of them" in text or text.startswith(("Four with", "Sixteen of"))] == []
    for name, text in (("trace-4-clear", "Four sessions with clearing"), ("trace-16", "Sixteen sessions at a time.")):
        others = {other for other, _ in NEVER if other != name}
        assert any(told.startswith(text) for told in never_measured({}, others))


def test_what_no_benchmark_measures_is_told_whatever_is_recorded() -> None:
    told = never_measured({}, {name for name, _ in NEVER if name})
    assert {"Thirty-two sessions at a time.", "Times of real agents, of which tokens are counted."} <= set(told)


def test_the_readme_says_why_auto_is_no_default_while_it_misses_its_bar() -> None:
    """Where no family misses it any more, somebody has to decide anew."""
    report = json.loads((RESULTS / "repairs.json").read_text(encoding="utf-8"))
    said = "than its bar allows, so sessions that nobody configured have `exact`." in read_page("README.md")
    assert said is not families_too_far(report).startswith("0 ")
