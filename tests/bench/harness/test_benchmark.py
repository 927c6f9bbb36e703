"""A benchmark is one file with `BENCHMARK`: the command finds it, and nothing else lists it."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

import acmserve.bench
from acmserve.bench.harness.benchmark import find_benchmarks
from acmserve.cli import main

TOY = '''"""A toy."""

from acmserve.bench.harness.benchmark import Benchmark


def run(arguments):
    print("toy", *arguments)
    return 3


BENCHMARK = Benchmark("toy", "what the toy tells", run)
'''


def test_a_new_benchmark_is_one_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "toy").mkdir()
    (tmp_path / "toy" / "main.py").write_text(TOY)
    monkeypatch.setattr(acmserve.bench, "__path__", [*acmserve.bench.__path__, str(tmp_path)])
    assert main(["bench"]) == 0
    assert "  toy          what the toy tells\n" in capsys.readouterr().out
    assert main(["bench", "toy", "--loud"]) == 3
    assert capsys.readouterr().out == "toy --loud\n"


def test_looking_for_benchmarks_imports_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "acmserve.bench.edit.main", raising=False)
    assert "edit" in find_benchmarks()
    assert "acmserve.bench.edit.main" not in sys.modules


def test_every_benchmark_calls_itself_as_the_command_line_does() -> None:
    for name, found in find_benchmarks().items():
        benchmark = found.load()
        assert (benchmark.name, benchmark.help) == (name, found.help)
