"""Every benchmark with a row of `exact` holds it against stock vLLM, and times are told of enough repetitions."""

from __future__ import annotations

import ast
import importlib
from collections.abc import Iterator
from pathlib import Path

import pytest

from acmserve.bench.harness.benchmark import Benchmark, find_benchmarks
from acmserve.bench.provenance.measured import LEAST_REPETITIONS
from acmserve.bench.report.all import all_runs
from tests.support.docs.pages import ROOT

GATES = {"check_exact", "check_scripted", "check_control", "compare_answers"}
"""Functions that compare 32 tokens and their log-probabilities. Each stands beside a control of moved KV."""
OTHERWISE = {
    "families": "distances of logits, from the prompt computed alone, with a control in every family",
}
REPEATS = ("repetitions", "rounds", "cases", "chains", "foreground")
UNREPEATED = {
    "micro": "pytest-benchmark repeats by itself, and more often",
}


def calls_of(text: str) -> set[str]:
    """Names of the functions that a module calls."""
    nodes = (node.func for node in ast.walk(ast.parse(text)) if isinstance(node, ast.Call))
    return {node.id if isinstance(node, ast.Name) else getattr(node, "attr", "") for node in nodes}


def calls_below(folder: Path) -> set[str]:
    return set().union(*(calls_of(file.read_text(encoding="utf-8")) for file in folder.glob("*.py")))


def compared() -> Iterator[tuple[str, Path]]:
    """The benchmarks whose results have a row of `exact`, and their folders."""
    for name, found in find_benchmarks().items():
        if any(not run.no_exact for run in found.load().runs):
            yield name, ROOT / "benchmarks" / found.module.split(".")[-2]


@pytest.mark.parametrize(
    ("name", "folder"), list(compared()), ids=lambda value: value if isinstance(value, str) else ""
)
def test_a_row_of_exact_is_held_against_stock(name: str, folder: Path) -> None:
    assert bool(GATES & calls_below(folder)) is not (name in OTHERWISE)


def test_a_benchmark_without_the_gate_is_found(tmp_path: Path) -> None:
    """Negative control. A comment and an import are no call."""
    (tmp_path / "main.py").write_text("from x import check_exact\n# check_exact()\nreceipts_add_up()\n")
    assert not GATES & calls_below(tmp_path)
    (tmp_path / "run.py").write_text("found = gate.check_exact(ask, text)\n")
    assert GATES & calls_below(tmp_path)


def num_repetitions(benchmark: Benchmark, arguments: tuple[str, ...]) -> int:
    """The most of what a run repeats, by its own parser. Defaults of a benchmark with a `DEFAULTS` are those."""
    module = importlib.import_module(benchmark.run.__module__)
    options = vars(module._parser().parse_args(arguments))
    found = {name: options.get(name) or getattr(module, "DEFAULTS", {}).get(name) for name in REPEATS}
    given = [found[name] for name in REPEATS if f"--{name}" in arguments]
    return max(given or [int(value) for name, value in found.items() if value and name != "foreground"], default=0)


TIMED = [run for run in all_runs() if run.is_timed]


@pytest.mark.parametrize("run", TIMED, ids=[run.name for run in TIMED])
def test_what_is_timed_is_repeated_often_enough(run: object) -> None:
    (benchmark, arguments) = next(
        (found.load(), one.arguments[1:])
        for found in find_benchmarks().values()
        for one in found.load().runs
        if one == run
    )
    said = " ".join([benchmark.name, *arguments])
    if any(said.startswith(name) for name in UNREPEATED):
        return
    assert num_repetitions(benchmark, arguments) >= LEAST_REPETITIONS


def test_too_few_repetitions_are_found() -> None:
    """Negative control."""
    trace = find_benchmarks()["trace"].load()
    assert num_repetitions(trace, ()) == LEAST_REPETITIONS
    assert num_repetitions(trace, ("--repetitions", "4")) == 4
    precompute = find_benchmarks()["precompute"].load()
    assert num_repetitions(precompute, ("--chains", "3")) == 3
