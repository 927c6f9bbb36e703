"""The page of benchmarks: a section without its results is an error, unless it is an optional one."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from acmserve.bench.harness.markdown_text import MET, MISSED
from acmserve.bench.provenance.code_state import CURRENT, OLDER
from acmserve.bench.provenance.repetitions import OLDER_WITH_FEWER, find_repetitions
from acmserve.bench.repairs.thoughts import TASK
from acmserve.bench.report.decision import NUMBERS, first_screen
from acmserve.bench.report.ledger import read_ledger
from acmserve.bench.report.page import _read, sections_of
from acmserve.bench.report.page_section import PageSection
from acmserve.bench.report.sections.agents import AGENTS
from acmserve.bench.report.sections.loads import LOADS
from acmserve.bench.report.sections.missed import BESIDE, DROPPED, PAIRED, beside_lines
from acmserve.bench.report.sections.thoughts import RESULT, THOUGHTS, THOUGHTS_GROUP
from acmserve.bench.report.sources import find_sources
from acmserve.errors import AcmError
from tests.support.docs.pages import ROOT
from tests.support.recorded.ledger import committed_ledger

RESULTS = ROOT / "benchmarks/results"
COUNTS = ("prompt_tokens", "kept_tokens", "moved_tokens", "computed_tokens", "precomputed_tokens")


def made_way(name: str, seconds: float, *counts: int) -> dict[str, Any]:
    times = {"median_seconds": seconds, "median_append_seconds": 0.3, "appends": seconds / 0.3}
    return {"name": name, **times, "median_tokens": dict(zip(COUNTS, counts, strict=False))}


def made_report() -> dict[str, Any]:
    ways = [made_way("reuse", 0.33, 1500, 40, 1400, 60, 0), made_way("stock", 9.0)]
    return {"sizes": "30 steps", "num_chains": 2, "ways": ways}


def written(folder: Path, report: dict[str, Any]) -> Path:
    (folder / f"{RESULT}.json").write_text(json.dumps(report), encoding="utf-8")
    return folder


def page(sections: Sequence[PageSection], folder: Path) -> str:
    return "\n".join(sections_of(sections, folder, read_ledger(folder)))


def test_dropped_reasoning_stands_on_the_page_once_it_was_measured(tmp_path: Path) -> None:
    assert page(THOUGHTS, tmp_path) == ""
    shown = page(THOUGHTS, written(tmp_path, made_report()))
    assert "### Dropped reasoning" in shown
    assert "| stock vLLM | 9,000 ms | 300 ms | 30.00 |  |  |" in shown
    assert "| `reuse` | 330 ms | 300 ms | 1.10 | 1,400 | 60 |" in shown
    assert "The medians of 2 chains" in shown
    assert shown.count(f"<summary>{THOUGHTS_GROUP}</summary>") == 1
    assert shown.count("<details") == shown.count("</details>") == 2


def test_any_other_section_needs_its_results(tmp_path: Path) -> None:
    with pytest.raises(AcmError, match=r"precompute-thoughts\.json is missing"):
        page([replace(section, is_optional=False) for section in THOUGHTS], tmp_path)


def test_sections_of_a_group_are_folded_together(tmp_path: Path) -> None:
    written(tmp_path, made_report())
    shown = page([replace(THOUGHTS[0], group="Both", title=title) for title in ("One", "Two")], tmp_path)
    assert shown.count("<summary>Both</summary>") == 1
    assert shown.count("<details") == shown.count("</details>") == 3


UNKNOWN = "Other work on the machine was not recorded."


@pytest.mark.parametrize(
    ("names", "told"),
    [
        (("edit-kinds",), f"2 repetitions. {UNKNOWN}"),
        (("edit-kinds", "kernel"), f"In edit-kinds.json: 2 repetitions. {UNKNOWN}"),
        (("gpu",), "3 repetitions."),
        (("edit-cpu",), ""),
        (("commits",), ""),
    ],
)
def test_a_timed_section_tells_what_its_times_lack(names: tuple[str, ...], told: str, tmp_path: Path) -> None:
    """`edit-cpu` lacks nothing. `commits` has counts alone."""
    quiet = {"use": {"other_share": 0.01, "stolen_share": 0.0}}
    found: dict[str, dict[str, Any]] = {
        "edit-kinds": {"cells": [{"num_repetitions": 2}]},
        "kernel": quiet | {"rounds": 9},
        "gpu": quiet | {"stages": {"fold": {"repetitions": 3, "rounds": 1}}},
        "edit-cpu": quiet | {"cells": [{"num_repetitions": 5}]},
        "commits": {},
    }
    for name in names:
        (tmp_path / f"{name}.json").write_text(json.dumps(found[name]), encoding="utf-8")
    section = PageSection("One", "Which?", "make it", "Green.", names, ())
    shown = page([section], tmp_path).splitlines()
    lines = [line for line in shown if "repetition" in line or UNKNOWN in line]
    assert lines[:1] == [told] * bool(told)
    assert not told or shown.index(told) > shown.index("<summary>Numbers, gate and command</summary>")


@pytest.mark.parametrize(
    "found",
    [{"repetitions": 4}, {"cells": [{"num_repetitions": 5}, {"num_repetitions": 4}]}, {"stages": {"a": {"rounds": 4}}}],
)
def test_times_of_too_few_repetitions_are_refused_wherever_the_number_stands(
    found: dict[str, Any], tmp_path: Path
) -> None:
    """Of committed files that have fewer each is named with its number. A run of them with less is refused, too."""
    for name in ("kernel", "commits", "gpu", "edit-kinds"):
        (tmp_path / f"{name}.json").write_text(json.dumps(found), encoding="utf-8")
    with pytest.raises(AcmError, match=r"kernel\.json: its 4 repetitions are too few, times need 5"):
        _read(tmp_path / "kernel.json")
    assert _read(tmp_path / "commits.json"), "nothing is timed"
    assert _read(tmp_path / "gpu.json")
    (tmp_path / "gpu.json").write_text(json.dumps({"repetitions": 2}), encoding="utf-8")
    with pytest.raises(AcmError, match="its 2 repetitions are too few"):
        _read(tmp_path / "gpu.json")


@pytest.mark.parametrize("name", OLDER_WITH_FEWER)
def test_committed_files_with_fewer_repetitions_are_as_they_are_named(name: str) -> None:
    """Where one is measured again its name has to leave the list."""
    report = json.loads((RESULTS / f"{name}.json").read_text(encoding="utf-8"))
    assert find_repetitions(report)[0] == OLDER_WITH_FEWER[name]


@pytest.mark.parametrize("share", ["other_share", "stolen_share"])
def test_times_of_a_busy_machine_are_refused_and_counts_are_not(share: str, tmp_path: Path) -> None:
    use = {"seconds": 9.0, "other_share": 0.0, "stolen_share": 0.0}
    for name, found in (("trace", 0.11), ("kernel", 0.1), ("commits", 0.9)):
        (tmp_path / f"{name}.json").write_text(json.dumps({"use": use | {share: found}}), encoding="utf-8")
    assert _read(tmp_path / "kernel.json")
    assert _read(tmp_path / "commits.json")
    with pytest.raises(AcmError, match=r"trace\.json was measured on a busy machine: other work took .* again"):
        _read(tmp_path / "trace.json")


@pytest.mark.parametrize(
    ("appends", "sooner", "is_met", "auto"),
    [(1.0, 21.0, True, "met"), (1.0, 19.9, False, "met"), (1.11, 21.0, False, "missed"), (1.0, 16.0, False, "missed")],
)
def test_a_bar_is_missed_or_met_by_the_results(appends: float, sooner: float, is_met: bool, auto: str) -> None:
    """Like with like: neither stock nor an append at other flags changes anything. `auto` takes 1.4 times as long."""
    rows = committed_ledger()
    reports = {name: json.loads((RESULTS / f"{name}.json").read_text()) for one in NUMBERS for name in one.files}
    times = reports["edit-cpu"]["cells"][0]["seconds_to_first_token"]
    reuse = times["reuse@defaults"]
    times |= {"append@defaults": [s / appends for s in reuse], "defaults": [s * sooner for s in reuse]}
    times |= {"append": [s / 9 for s in reuse], "stock": reuse, "auto@defaults": [1.4 * s for s in reuse]}
    shown = "\n".join(first_screen(reports, rows))
    assert (f"- {NUMBERS[0].question}: {NUMBERS[0].reason(reports)}" in shown) is not is_met
    assert f"{appends:.2f} plain appends, {sooner:.1f} times sooner than stock by p90" in shown
    assert f"{NUMBERS[0].bar_told(reports)}: {'met' if is_met else '**missed**'}" in shown
    assert f"Its bars of 1.5 and 12 are {auto}." in shown


def test_other_turns_are_held_against_their_bar_too() -> None:
    """All waiting reaches its own. The end of an interval is what counts for the others."""
    (number,) = (one for one in NUMBERS if one.files == PAIRED)
    reports = {name: json.loads((RESULTS / f"{name}.json").read_text(encoding="utf-8")) for name in PAIRED}
    waiting = [reports[name]["bars"][2] for name in PAIRED]
    for bar in waiting:
        bar["value"] = 0.8
    for name in PAIRED:
        for bar in reports[name]["bars"][:2]:
            bar["interval"] = [0.97, 1.03]
    assert number.verdict(reports) == MET
    reports[PAIRED[1]]["bars"][1]["interval"][1] = 1.04
    assert number.verdict(reports) == MISSED
    assert number.reason(reports) == "ordinary turns may take 1.04 times, by the interval's end."
    waiting[0]["value"] = 0.81
    assert number.reason(reports).endswith("were ready. And ordinary turns may take 1.04 times, by the interval's end.")


@pytest.mark.parametrize(("state", "says"), [(CURRENT, f"Of today's code: {NUMBERS[0].question}."), (OLDER, "")])
def test_the_first_screen_names_what_is_of_todays_code(state: str, says: str) -> None:
    rows = {name: replace(row, state=OLDER) for name, row in committed_ledger().items()}
    rows["edit-cpu"] = replace(rows["edit-cpu"], state=state)
    reports = {name: json.loads((RESULTS / f"{name}.json").read_text()) for one in NUMBERS for name in one.files}
    (marked,) = (line for line in first_screen(reports, rows) if OLDER in line)
    assert marked.partition("*. ")[2] == says


def edited_turns(appends: float) -> dict[str, Any]:
    return {"bars": [{}, {"value": appends, "num_turns": 9, "is_met": appends <= 1.5}]}


def batches(times_fewer: float) -> dict[str, Any]:
    counts = {"cwl-batched-without": int(100 * times_fewer), "cwl-moves": 100}
    return {"runs": [{"name": name, "total_computed_tokens": num} for name, num in counts.items()]}


def drafted(times: float) -> dict[str, Any]:
    accepted = {"median": 4, "least": 0, "most": 50, "median_share": 0.08}
    kind = {"kind": "ordinary text", "over_exact": {"median": times}, "accepted": accepted}
    case = {"exact_seconds": 10.0, "drafted_seconds": 10 * times, "drafted_tokens": 50, "accepted_tokens": 4}
    return {"kinds": [kind], "bars": [{"is_met": times < 1}], "cases": [case]}


LOST = {"summary": [{"task": TASK, "way": "reuse", "role": "all", "right_beside_exact": -0.2}]}


def counted(clearing: int) -> dict[str, Any]:
    computed = {"none": 100, "clear_tool_uses": clearing, "recency@1": 253}
    rows = [{"policy": policy, "server": "auto", "computed_tokens": num} for policy, num in computed.items()]
    return {"trace-auto": {"rows": [*rows, {"policy": "none", "server": "exact", "computed_tokens": 100}]}}


def timed(name: str, *medians: float, limit: float | None = 20.0) -> dict[str, Any]:
    return {name: {"rows": [{"name": "eviction pass", "median_ms": one, "limit_ms": limit} for one in medians]}}


BARS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "1.16 times what is new with clearing, 1.15 at most. With a third of the turns edited it is 2.53.": (
        counted(116),
        counted(115),
    ),
    "takes 2.00 and 1.50 appends by p90": (
        {name: edited_turns(value) for name, value in zip(PAIRED, (2.0, 1.5), strict=True)},
        {name: edited_turns(1.5) for name in PAIRED},
    ),
    "The turn behind dropped reasoning takes 2.00 appends by p90 with precompute, 1.5 at most, of 9 turns.": tuple(
        {DROPPED: edited_turns(value)} for value in (2.0, 1.5)
    ),
    "`auto` takes 1.3 appends behind dropped reasoning, 1.25 at most. A move alone loses 20 points": tuple(
        {RESULT: {"ways": [{"name": "auto", "appends": value}]}, "repairs-thoughts": LOST} for value in (1.26, 1.25)
    ),
    "takes 1.20 times as long as `exact` alone. In the median case 8 % of its drafted": tuple(
        {"speculation": drafted(value)} for value in (1.2, 0.9)
    ),
    "compute 4.00 and 6.00 times fewer": (
        {"budget-windows": batches(4.0), "budget-recurrent": batches(6.0)},
        {"budget-windows": batches(5.0), "budget-recurrent": batches(6.0)},
    ),
    "A move has 79 % of the speed": tuple(
        {"kernel": {"rows": [{"what": "move", "ratio": value}]}} for value in (0.79, 0.8)
    ),
    "Of 3 searches 2 take more than 20 ms, up to 23.1 ms.": (
        timed("search", 22.3, 23.06, 20.0),
        timed("search", 20.0, 1.0),
    ),
    "Eviction pass: 35.7 ms, 20 at most.": (
        timed("budget-pass", 35.7, 2.0),
        timed("budget-pass", 35.7, limit=None),
    ),
}


@pytest.mark.parametrize("said", BARS)
def test_a_bar_beside_the_five_is_told_while_it_is_missed(said: str) -> None:
    """By the first report. The second one meets it."""
    missed, met = BARS[said]
    (bar,) = (one for one in BESIDE if set(one.files) == missed.keys())
    assert said in bar.told(missed)
    assert bar.told(met) == ""


def test_bars_of_one_topic_stand_in_one_line() -> None:
    missed = {name: report for said in BARS for name, report in BARS[said][0].items()}
    lines = beside_lines(missed)
    (line,) = (line for line in lines if "appends behind dropped reasoning" in line)
    assert "what is new with clearing" in line
    (line,) = (line for line in lines if "searches" in line)
    assert "Eviction pass" in line
    assert len(lines) == 7
    assert beside_lines({name: report for said in BARS for name, report in BARS[said][1].items()}) == []


def test_a_load_stands_on_the_page_once_it_was_run(tmp_path: Path) -> None:
    """With the tables and the gate of `bench trace`, of which the recorded one is a result."""
    assert page(LOADS, tmp_path) == ""
    beside = {"rate_beside_stock": {"ratio": 2.0, "interval": [1.9, 2.1]}, "edited_beside_stock": None}
    report = json.loads((RESULTS / "trace.json").read_text(encoding="utf-8"))
    report |= {"rows": [row | beside for row in report["rows"] if row["policy"] == "recency@1"], "repetitions": 5}
    (tmp_path / "trace-4.json").write_text(json.dumps(report), encoding="utf-8")
    shown = page(LOADS, tmp_path)
    assert "`reuse` answers 2.00 [1.90, 2.10] times as many turns a second as stock vLLM, and `exact` 2.00" in shown
    first = report["rows"][0]
    told = f"Of {first['num_turns']} turns {first['num_edits']} edit. Answers have {report['max_tokens']} tokens."
    assert told in shown
    assert "Waiting for first tokens after an edit" not in shown, "an older file"
    command = find_sources()["trace-4"].command
    assert f"**Command**: `{command}`" in shown
    assert f"**Command**: `{find_sources()['trace-auto'].command}`" in page(LOADS, RESULTS)


@pytest.mark.parametrize("name", ["trace-4", "trace-4-clear", "trace-16", "trace-open"])
def test_a_load_tells_first_tokens_after_an_edit_and_its_command(name: str) -> None:
    (section,) = (one for one in LOADS if one.files[0] == name)
    assert section.command == find_sources()[name].command
    beside = {"rate_beside_stock": {"ratio": 2.0, "interval": [1.9, 2.1]}}
    edited = {"edited_beside_stock": {"ratio": 0.3, "interval": [0.2, 0.4]}}
    rows = [{"server": "reuse"} | beside | edited, {"server": "exact"} | beside | {"edited_beside_stock": None}]
    assert callable(section.answer)
    told = section.answer({name: {"rows": rows}})
    assert told.endswith("Waiting for first tokens after an edit, in stock's: `reuse` 0.30 [0.20, 0.40].")


def test_recorded_agents_and_a_full_pool_tell_auto_where_it_ran() -> None:
    sections = {one.files[0]: one for one in AGENTS if one.files[0] in ("trace-real", "trace-pool")}
    turns = [{"computed_tokens": [7], "is_edited": [1]}]
    rows = [
        {"server": server, "computed_tokens": 7, "turns": turns, "policy": "cwl"}
        for server in ("stock", "exact", "reuse", "auto")
    ]
    for name, section in sections.items():
        assert section.command == find_sources()[name].command
        assert callable(section.answer)
        assert "`auto` 7, and `reuse` 7" in section.answer({name: {"rows": rows, "pool_tokens": 9}})
        assert "`auto`" not in section.answer({name: {"rows": rows[:3], "pool_tokens": 9}}), "an older file"


def test_what_auto_computes_is_told_beside_what_is_new() -> None:
    """What is new is what `exact` computes of the same turns without an edit."""
    (section,) = (one for one in LOADS if one.files == ("trace-auto",))
    computed = {"none": (100, 100), "clear_tool_uses": (120, 300), "recency@1": (250, 400)}
    rows = [
        {"policy": policy, "server": server, "computed_tokens": found}
        for policy, pair in computed.items()
        for server, found in zip(("auto", "stock"), pair, strict=True)
    ]
    rows.append({"policy": "none", "server": "exact", "computed_tokens": 100})
    assert callable(section.answer)
    told = section.answer({"trace-auto": {"rows": rows}})
    assert told.startswith("Of 100 tokens that are new `auto` computes 1.20 times as many with clearing, where stock")
    assert "It is 2.50 times as many with a third of the turns edited, where stock computes 4.00." in told


def test_every_number_says_what_fidelity_it_is_about() -> None:
    assert len(NUMBERS) == 5
    assert {number.fidelity for number in NUMBERS} <= {"`exact`", "`auto`", "`repair`", "`reuse`", "none"}
