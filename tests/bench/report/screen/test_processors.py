"""One benchmark on two kinds of processors: which file is recorded where, and both on the page."""

from __future__ import annotations

import copy
import json
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from acmserve.bench.harness.benchmark import BenchmarkRun
from acmserve.bench.harness.machine import is_of_processor
from acmserve.bench.harness.markdown_text import MET, MISSED
from acmserve.bench.report import all as all_module
from acmserve.bench.report.all import EndedRun, all_runs, chosen_runs
from acmserve.bench.report.decision import NUMBERS
from acmserve.bench.report.ledger import read_ledger
from acmserve.bench.report.page import SECTIONS, page, sections_of
from acmserve.bench.report.page_height import check_page
from acmserve.bench.report.rerun_plan import of_processor, plan_reruns
from acmserve.bench.report.screen.never import never_measured
from acmserve.bench.report.sections.edits import EDITS, KINDS_OF_PROCESSORS, RESULT, WITH_AMX
from acmserve.bench.report.sections.missed import BESIDE
from acmserve.bench.report.sitting import Sitting, refusal
from acmserve.bench.report.sources import find_sources
from acmserve.errors import AcmError
from tests.support.docs.figures import read_result
from tests.support.docs.pages import ROOT, read_page

FOLD = NUMBERS[0]
SOURCES = {name: find_sources()[name] for name in KINDS_OF_PROCESSORS}
XEON = {"cpu": "Intel Xeon", "vectors": "AMX", "cores": 2}


def on_amx(times_sooner: float) -> dict[str, Any]:
    """The recorded run as a processor with matrix units might make it. Stock takes so many times as long as `reuse`."""
    report: dict[str, Any] = copy.deepcopy(read_result(RESULT))
    report["machine"] |= XEON
    times = report["cells"][0]["seconds_to_first_token"]
    times["append@defaults"] = times["reuse@defaults"]
    times["defaults"] = [times_sooner * one for one in times["reuse@defaults"]]
    return report


@pytest.mark.parametrize(
    ("with_amx", "vectors", "may"),
    [
        *((None, one, True) for one in ("AMX", "AVX2", None)),
        *((True, one, one == "AMX") for one in ("AMX", "AVX-512", "AVX2", None)),
        *((False, one, one != "AMX") for one in ("AMX", "AVX-512", "AVX2", None)),
    ],
)
def test_a_result_is_of_one_kind_of_processor(with_amx: bool | None, vectors: str | None, may: bool) -> None:
    assert is_of_processor(with_amx, vectors) is may


def test_each_kind_has_a_source_with_the_same_command() -> None:
    assert {name: source.with_amx for name, source in SOURCES.items()} == {RESULT: False, WITH_AMX: True}
    assert {source.command for source in SOURCES.values()} == {"acmserve bench edit"}


def test_what_is_recorded_was_measured_on_its_kind() -> None:
    there = [name for name in SOURCES if (ROOT / f"benchmarks/results/{name}.json").is_file()]
    assert RESULT in there
    for name in there:
        assert is_of_processor(SOURCES[name].with_amx, read_result(name)["machine"].get("vectors")), name


def test_a_machine_measures_and_records_the_file_of_its_kind_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan = plan_reruns({}, SOURCES)
    assert sorted(one.names for one in plan) == [(RESULT,), (WITH_AMX,)]
    for vectors, own, other in (("AMX", WITH_AMX, RESULT), ("AVX-512", RESULT, WITH_AMX)):
        left, told = of_processor(plan, vectors)
        assert [one.names for one in left] == [(own,)]
        assert told == f"Left out, since they are of another kind of processor: {other}."
    assert of_processor(plan[:0], "AMX") == ([], "")
    (amx,) = (one for one in plan if one.with_amx)
    assert amx.lines()[1].endswith("edit-cpu-amx: never recorded, on a processor with AMX")
    written: list[str] = []

    def run(self: Sitting, words: Sequence[str]) -> int:
        written.append(Path(words[words.index("--json") + 1]).name)
        return 1

    monkeypatch.setattr(Sitting, "_run", run)
    told = Sitting(tmp_path / "results", tmp_path / "unfinished", sources=SOURCES).measure(amx)
    assert written == ["edit-cpu-amx.json"]
    assert told == "wrote no edit-cpu-amx.json, exit code 1"


def test_a_result_of_the_other_kind_is_refused() -> None:
    report = on_amx(30.0)
    commit = {"commit": "", "changed": []}
    assert refusal(SOURCES[RESULT], report | {"machine": XEON | commit}) == "it is of a processor with AMX"
    other = read_result(RESULT)["machine"]["vectors"]
    machine = XEON | commit | {"vectors": other}
    assert refusal(SOURCES[WITH_AMX], report | {"machine": machine}) == "it is of a processor without AMX"
    assert "processor" not in refusal(SOURCES[WITH_AMX], report | {"machine": XEON | commit}), "control"


@pytest.mark.parametrize(("vectors", "own"), [("AMX", WITH_AMX), ("AVX2", RESULT)])
def test_bench_all_runs_it_once_under_the_name_of_its_kind(
    vectors: str,
    own: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    ran: list[str] = []

    def run_one(run: BenchmarkRun, folder: Path, is_quick: bool) -> EndedRun:
        ran.append(run.name)
        return EndedRun(run, 0.0, None)

    monkeypatch.setattr(all_module, "vectors_here", lambda: vectors)
    monkeypatch.setattr(all_module, "run_one", run_one)
    assert all_module.main(["--out", str(tmp_path), "--only", own]) == 0
    assert ran == [own]
    capsys.readouterr()
    (other,) = SOURCES.keys() - {own}
    assert all_module.main(["--out", str(tmp_path), "--only", other]) == 0, "its name is known"
    assert ran == [own]
    shown = capsys.readouterr().out
    assert f"Left out, since they are of another kind of processor: {other}." in shown
    assert "nothing was run" in shown
    assert "every run passed" not in shown


@pytest.mark.parametrize(("vectors", "own"), [("AMX", WITH_AMX), ("AVX-512", RESULT), (None, RESULT)])
@pytest.mark.parametrize("is_quick", [True, False])
def test_bench_all_has_one_fold_on_either_kind_also_when_it_is_quick(
    vectors: str | None, own: str, *, is_quick: bool
) -> None:
    chosen, told = chosen_runs(all_runs(), vectors, is_quick=is_quick)
    assert [run.name for run in chosen if run.name in SOURCES] == [own]
    (other,) = SOURCES.keys() - {own}
    assert told == f"Left out, since they are of another kind of processor: {other}."
    (run,) = (run for run in chosen if run.name == own)
    assert run.quick == ("edit", "--quick")


@pytest.mark.parametrize(("sooner", "verdict"), [(20.5, MET), (19.5, MISSED)])
def test_the_first_screen_tells_both_kinds_and_judges_each(sooner: float, verdict: str) -> None:
    alone = {RESULT: read_result(RESULT)}
    assert FOLD.verdict(alone) == MET
    assert FOLD.bar_told(alone).endswith(", without AMX")
    both = alone | {WITH_AMX: on_amx(sooner)}
    assert FOLD.files_of(both) == [RESULT, WITH_AMX]
    assert FOLD.verdict(both) == verdict
    assert FOLD.bar_told(both).endswith(", without AMX and with AMX")
    assert f"On Intel Xeon (AMX) 0.15 s, 1.00 plain appends, {sooner:.1f} times sooner" in FOLD.text(both)
    assert FOLD.text(alone).split(",")[1] in FOLD.text(both)
    assert FOLD.beside(both).startswith("Without AMX: `exact` 4.8 s")
    assert ". With AMX: `exact` 4.8 s" in FOLD.beside(both)
    assert "In float32" in FOLD.beside(alone)
    if verdict == MISSED:
        said = "missed on a processor with AMX, where stock prefills several times faster."
        assert FOLD.reason(both) == said


def test_a_bar_that_is_missed_without_amx_does_not_blame_matrix_units() -> None:
    slow = on_amx(19.0) | {"machine": read_result(RESULT)["machine"]}
    assert FOLD.reason({RESULT: slow, WITH_AMX: on_amx(30.0)}) == "missed on a processor without AMX."
    both = {RESULT: slow, WITH_AMX: on_amx(19.0)}
    assert FOLD.reason(both) == "missed on a processor without AMX and on one with AMX."


def test_the_other_kind_has_a_section_and_bars_once_it_is_recorded(tmp_path: Path) -> None:
    for name, report in ((RESULT, read_result(RESULT)), (WITH_AMX, on_amx(9.0))):
        (tmp_path / f"{name}.json").write_text(json.dumps(report), encoding="utf-8")
    sections = [one for one in EDITS if one.files[0] in SOURCES]
    shown = "\n".join(sections_of(sections, tmp_path, read_ledger(tmp_path)))
    assert shown.count("### The turn after a fold") == 2
    assert "### The turn after a fold on a processor with AMX" in shown
    assert "Measured on Intel Xeon (AMX), 2 cores." in shown
    (bar,) = (one for one in BESIDE if one.files == (WITH_AMX,))
    assert "appends after a fold on a processor with AMX and starts" in bar.told({WITH_AMX: on_amx(9.0)})
    (tmp_path / f"{WITH_AMX}.json").unlink()
    shown = "\n".join(sections_of(sections, tmp_path, read_ledger(tmp_path)))
    assert shown.count("### The turn after a fold") == 1


def test_the_page_has_room_for_both_kinds(tmp_path: Path) -> None:
    """`page` raises where it is too high. With an appendix of three screens it is."""
    for file in (ROOT / "benchmarks/results").glob("*.json"):
        shutil.copy(file, tmp_path)
    (tmp_path / f"{WITH_AMX}.json").write_text(json.dumps(on_amx(9.0)), encoding="utf-8")
    shown = page(SECTIONS, tmp_path)
    assert "### The turn after a fold on a processor with AMX" in shown
    with pytest.raises(AcmError, match="pixels high"):
        check_page(shown + "\n\nToo long." * 60, ())


def test_it_is_never_measured_until_it_is_recorded() -> None:
    assert any("matrix units (AMX)" in text for text in never_measured({}, {RESULT}))
    assert not any("AMX" in text for text in never_measured({}, {RESULT, WITH_AMX}))


def test_the_readme_says_on_which_kind_its_factor_holds() -> None:
    """Whoever records the other kind has to tell its factor there, too."""
    page = read_page("README.md")
    is_recorded = (ROOT / f"benchmarks/results/{WITH_AMX}.json").is_file()
    assert "on two cores of an AMD EPYC without AMX" in page
    assert ("With AMX stock prefills faster, and nobody has timed that pair." in page) is not is_recorded
