"""What a benchmark is to the command line: a name, a line of help, and who runs it.

A file of `benchmarks/*/` that defines `BENCHMARK` is a benchmark, and nothing else lists it:

    BENCHMARK = Benchmark("toy", "what the toy tells", main)

Decision: names and help are read from the source, so `acmserve bench --help` imports no benchmark.
"""

from __future__ import annotations

import ast
import importlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

PACKAGE = "acmserve.bench"
_MARK = "\nBENCHMARK = Benchmark("


@dataclass(frozen=True, slots=True)
class BenchmarkRun:
    """One run of `acmserve bench all`: the stem of its files, and what follows `acmserve bench`.

    `quick` is what follows it in `bench all --quick`, () for one that is no part of it. `can_plot`: it knows `--plot`.
    `measures` are the paths of the product that its numbers are about (`measured.py`). `is_timed`: they depend on how
    busy the machine is. Every result has a row of `exact`, or `no_exact` says why there is none. `repeats` says
    which of its counts the suite asks for again: all of them where nothing is timed. `resume_flags` let it go on where
    one with the same `--json` was ended, () where it does so anyway, None where it begins anew. `minutes` are about
    those that it takes, for as long as no result has recorded them. One that is not `is_recorded` has no file among the
    results: what it tells is no evidence, or another run tells it better. `with_amx`: only a processor with matrix
    units makes it, or only one without. None: any does.
    """

    name: str
    arguments: tuple[str, ...]
    quick: tuple[str, ...] = ()
    can_plot: bool = True
    measures: tuple[str, ...] = ()
    is_timed: bool = True
    no_exact: str = ""
    repeats: str = ""
    resume_flags: tuple[str, ...] | None = None
    minutes: float | None = None
    is_recorded: bool = True
    with_amx: bool | None = None


@dataclass(frozen=True, slots=True)
class Benchmark:
    """`run` takes what follows the name and returns the exit code: 0 where the gate is green, else 1.

    One that `takes_limit` has `--max-minutes` as a flag of its own, and ends in time with a whole result of fewer
    samples. Any other is ended by it.
    """

    name: str
    help: str
    run: Callable[[Sequence[str]], int]
    runs: tuple[BenchmarkRun, ...] = ()
    takes_limit: bool = False


@dataclass(frozen=True, slots=True)
class BenchmarkFile:
    """A benchmark that was found and is not imported yet."""

    name: str
    help: str
    module: str

    def load(self) -> Benchmark:
        """Import it."""
        benchmark = importlib.import_module(self.module).BENCHMARK
        assert isinstance(benchmark, Benchmark)
        return benchmark


def find_benchmarks(roots: Sequence[str] | None = None) -> dict[str, BenchmarkFile]:
    """Every benchmark by its name, in their order. `roots` are the folders of the package."""
    folders = importlib.import_module(PACKAGE).__path__ if roots is None else roots
    files = [file for root in folders for file in Path(root).glob("*/*.py")]
    found = [_read(file, text) for file in files if _MARK in (text := file.read_text(encoding="utf-8"))]
    return {one.name: one for one in sorted(found, key=lambda one: one.name)}


def _read(file: Path, text: str) -> BenchmarkFile:
    for node in ast.parse(text).body:
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "BENCHMARK":
            assert isinstance(node.value, ast.Call)
            name, help_ = (ast.literal_eval(argument) for argument in node.value.args[:2])
            return BenchmarkFile(name, help_, f"{PACKAGE}.{file.parent.name}.{file.stem}")
    raise AssertionError(f"{file} has no BENCHMARK at its top level")
