"""How long a command takes: what was recorded elsewhere is no bound for what was ended here."""

from __future__ import annotations

import argparse
import json
import math
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from acmserve.bench.harness.benchmark import find_benchmarks
from acmserve.bench.harness.options import as_json, partial_file
from acmserve.bench.report import reruns
from acmserve.bench.report.ledger import LedgerRow
from acmserve.bench.report.rerun_plan import NEVER, Rerun, fits, next_rerun
from acmserve.bench.report.sitting import Sitting, read_noted, words_of
from acmserve.bench.report.sources import ResultSource, find_sources

COUNTS = ResultSource("counts", "make counts", ("nowhere",), is_timed=False)


def row_of(name: str, seconds: float | None) -> LedgerRow:
    return LedgerRow(find_sources()[name], "", "", "", "", "", seconds, "older than the code")


@pytest.mark.parametrize(
    ("recorded", "noted", "told"),
    [(600.0, 900.0, 900.0), (600.0, 300.0, 600.0), (None, 900.0, 900.0), (600.0, None, 600.0), (None, None, None)],
)
def test_the_longer_of_what_was_recorded_and_what_was_ended_counts(
    recorded: float | None, noted: float | None, told: float | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a slower machine the recorded time began the same run in each sitting, and cut it."""
    row = row_of("trace", recorded)
    monkeypatch.setattr(reruns, "UNFINISHED", tmp_path)
    monkeypatch.setattr(reruns, "read_ledger", lambda *_: {"trace": row})
    monkeypatch.setattr("acmserve.bench.report.rerun_plan._why", lambda *_: [])
    if noted is not None:
        (tmp_path / "took-at-least.json").write_text(json.dumps({"trace": noted}), encoding="utf-8")
    options = argparse.Namespace(results=tmp_path, only=("trace",), counts=False)
    assert [one.seconds for one in reruns._plan(options)] == [told]


RESUMES = Rerun("resumes", ("resumes",), 3000.0, True, NEVER, goes_on=True)
SAMPLES = Rerun("samples", ("samples",), 6000.0, False, NEVER, takes_limit=True)
REPETITIONS = Rerun("repetitions", ("repetitions",), 3000.0, True, NEVER, takes_limit=True)
OTHER = Rerun("other", ("other",), 3000.0, True, NEVER)
SHORT = Rerun("short", ("short",), 100.0, False, NEVER)


@pytest.mark.parametrize(
    ("one", "least"),
    [(RESUMES, 600.0), (SAMPLES, 600.0), (REPETITIONS, 3060.0), (OTHER, 3510.0), (replace(RESUMES, seconds=50), 117.5)],
)
def test_what_is_not_lost_or_limits_itself_begins_in_a_rest_of_the_time(one: Rerun, least: float) -> None:
    """Times that limit themselves have too few repetitions there, so that they need their seconds, without a margin."""
    assert fits(one, least)
    assert not fits(one, least - 1)


@pytest.mark.parametrize(
    ("one", "seconds_left", "limit"),
    [
        (SAMPLES, 750.0, 10.0),
        (SAMPLES, 6960.0, None),
        (SAMPLES, math.inf, None),
        (replace(SAMPLES, seconds=None), 750.0, 10.0),
        (REPETITIONS, 3165.0, 45.0),
        (RESUMES, 750.0, None),
        (OTHER, 750.0, None),
    ],
)
def test_what_takes_a_limit_gets_the_time_that_is_left_where_it_would_not_end_without(
    one: Rerun, seconds_left: float, limit: float | None
) -> None:
    assert one.limit_minutes(seconds_left) == limit


def test_what_its_source_or_its_benchmark_expects_is_known() -> None:
    """Three quarters of an hour for a policy, as the command says, and the stages of the recorded training."""
    told = {name: source.minutes for name, source in find_sources().items() if source.minutes is not None}
    assert {"learner": 50, "precompute-paired-thoughts": 45, "soak": 32, "eval-maps": 60}.items() <= told.items()


def test_what_ends_in_the_time_comes_before_what_only_begins_in_it() -> None:
    waiting = [RESUMES, SAMPLES, SHORT]
    assert next_rerun(waiting, 700.0, lambda: True) == SHORT
    assert next_rerun(waiting[:2], 700.0, lambda: True) == RESUMES
    assert next_rerun(waiting[:2], 700.0, lambda: False) == SAMPLES
    assert next_rerun(waiting, 6000.0, lambda: True) == RESUMES


def test_the_limit_reaches_the_command(tmp_path: Path) -> None:
    sources, told = find_sources(), ["--max-minutes", "12.5"]
    assert words_of(sources["eval"].command, tmp_path / "eval.json", 12.5)[-2:] == told
    assert words_of("make eval-learner", tmp_path / "eval-learner.json", 12.5) == [
        *("make", "eval-learner"),
        "ARGS=--max-minutes 12.5",
    ]
    assert sum("--max-minutes" in word for word in words_of(sources["eval"].command, tmp_path / "eval.json")) == 0


def test_every_source_that_takes_a_limit_or_goes_on_is_told(tmp_path: Path) -> None:
    sources = find_sources().values()
    evals = {"eval", "eval-learner", "eval-maps", "eval-rlm", "eval-terminal"}
    limited = {source.name for source in sources if source.takes_limit}
    assert limited == evals | {"edit-cpu", "edit-cpu-amx", "edit-kinds", "gpu", "scale", "scale-counts"}
    paired = {"precompute-paired", "precompute-paired-clear", "precompute-paired-thoughts"}
    assert {source.name for source in sources if source.goes_on} >= evals | paired | {"gpu"}
    for source in sources:
        words = source.command.split()
        if words[0] == "acmserve":
            assert source.takes_limit is find_benchmarks()[words[2]].load().takes_limit, source.name


def held(folder: Path, seconds: float, monkeypatch: pytest.MonkeyPatch, done: int, steps: int) -> Sitting:
    """A sitting whose command is ended after so many seconds and steps."""
    file = folder / "unfinished/counts.json"
    file.parent.mkdir()

    def run(self: Sitting, words: Sequence[str]) -> int | None:
        told = {"partial": True, "steps_done": done, "steps": steps}
        partial_file(file).write_text(as_json(told), encoding="utf-8")

    monkeypatch.setattr(Sitting, "_run", run)
    monkeypatch.setattr("acmserve.bench.report.sitting.use_between", lambda *_: {"seconds": seconds})
    return Sitting(folder / "results", file.parent, 600.0, sources={"counts": COUNTS})


@pytest.mark.parametrize(("done", "steps", "noted"), [(0, 8, 200.0), (2, 8, 400.0), (9, 3, 100.0)])
def test_no_time_is_noted_that_is_shorter_than_the_time_that_was_spent(
    done: int, steps: int, noted: float, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The steps of a later part of a run may be fewer than those that are done."""
    sitting = held(tmp_path, 100.0, monkeypatch, done, steps)
    assert sitting.measure(Rerun(COUNTS.command, ("counts",), 5.0, False, NEVER))
    assert read_noted(tmp_path / "unfinished") == {"counts": noted}


def test_a_part_that_is_cut_off_ends_no_sitting(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its process was killed while it wrote. Nothing goes on with it, and it tells no steps."""
    sitting = held(tmp_path, 100.0, monkeypatch, 2, 8)
    monkeypatch.setattr("tests.bench.report.test_minutes.as_json", lambda _: '{"partial": tr')
    assert sitting.measure(Rerun(COUNTS.command, ("counts",), 5.0, False, NEVER))
    assert read_noted(tmp_path / "unfinished") == {"counts": 200.0}
    file = tmp_path / "precompute-paired.json"
    partial_file(file).write_text('{"partial": tr', encoding="utf-8")
    assert "--resume" not in words_of(find_sources()["precompute-paired"].command, file)


def test_what_was_noted_is_forgotten_when_the_result_is_recorded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for folder in ("results", "unfinished"):
        (tmp_path / folder).mkdir()
    unfinished = tmp_path / "unfinished"
    (unfinished / "took-at-least.json").write_text('{"counts": 9000.0, "other": 5.0}', encoding="utf-8")

    def run(self: Sitting, words: Sequence[str]) -> int | None:
        (unfinished / "counts.json").write_text('{"gate": {"green": true}}', encoding="utf-8")
        return 0

    monkeypatch.setattr(Sitting, "_run", run)
    monkeypatch.setattr("acmserve.bench.report.sitting.refusal", lambda *_: "")
    sitting = Sitting(tmp_path / "results", unfinished, 600.0, sources={"counts": COUNTS})
    assert sitting.measure(Rerun(COUNTS.command, ("counts",), 5.0, False, NEVER)) is None
    assert read_noted(unfinished) == {"other": 5.0}
