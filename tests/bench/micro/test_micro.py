"""`bench micro`: every file runs once, small and untimed, and what pytest-benchmark wrote becomes rows."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from acmserve.bench.micro import bench_kernel as kernel
from acmserve.bench.micro import main as micro
from acmserve.bench.micro.bench_kernel import bench_kernel as test_kernel
from acmserve.bench.micro.bench_kernel import cache
from acmserve.bench.micro.bench_match import bench_auto as test_auto
from acmserve.bench.micro.bench_match import bench_match as test_match
from acmserve.bench.micro.bench_step import bench_step as test_step
from acmserve.bench.micro.rows import as_rows, micro_table
from acmserve.cli import main as cli

__all__ = ["cache", "test_auto", "test_kernel", "test_match", "test_step"]


@pytest.fixture(autouse=True, scope="module")
def _small() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(kernel, "NUM_TOKENS", 200)
        patch.setattr(kernel, "NUM_LAYERS", 2)
        yield


def wrote(benchmark: str, median: float, **info: Any) -> dict[str, Any]:
    stats = {"median": median, "min": median / 2, "max": 2 * median}
    return {
        "fullname": f"{benchmark} {sorted(info.items())}",
        "extra_info": {"benchmark": benchmark} | info,
        "stats": stats,
    }


def test_a_move_stands_beside_the_memcpy_of_its_group() -> None:
    place = {"kv": "float32 vec", "what": "odd", "num_threads": 2, "num_bytes": 2_000_000}
    (row,) = as_rows([wrote("kernel", 0.002, side="move", **place), wrote("kernel", 0.001, side="memcpy", **place)])[
        "rows"
    ]
    assert (row["move_ms"], row["memcpy_ms"], row["ratio"], row["move_gb_s"]) == (2.0, 1.0, 0.5, 1.0)


def test_several_runs_of_a_step_are_one_row() -> None:
    medians = {"stock": (0.001, 0.003), "connector": (0.001, 0.003), "acmserve": (0.002, 0.003)}
    found = as_rows([wrote("step", one, name=name) for name, some in medians.items() for one in some])
    assert found["median_us"] == {"stock": 2000.0, "connector": 2000.0, "acmserve": 2500.0}
    assert (found["own_percent"], found["runs_us"]["stock"]) == (25.0, [1000.0, 3000.0])


def test_medians_over_their_limit_are_counted() -> None:
    rows = as_rows([wrote("match", seconds, case=str(seconds), limit_ms=5.0) for seconds in (0.004, 0.006)])["rows"]
    assert micro_table(rows)[-1] == "1 of 2 medians within their limits"


def test_the_command_measures_and_a_failing_assert_turns_the_gate_red(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    source = "def bench_it(benchmark):\n    benchmark.extra_info['name'] = 'it'\n    benchmark(int)\n"
    (tmp_path / "bench_match.py").write_text(source)
    monkeypatch.setattr(micro, "__file__", str(tmp_path / "main.py"))
    report = tmp_path / "report.json"
    assert cli(["bench", "micro", "match", "--quick", "--json", str(report)]) == 0
    assert [row["name"] for row in json.loads(report.read_text())["rows"]] == ["it"]
    capfd.readouterr()
    assert cli(["bench", "micro", "match", "--quick", "--compare", str(report)]) == 0
    assert "(NOW)" in capfd.readouterr().err
    (tmp_path / "bench_match.py").write_text(source + "    assert 1 == 2\n")
    assert cli(["bench", "micro", "match", "--quick"]) == 1
    assert "assert 1 == 2" in capfd.readouterr().out
