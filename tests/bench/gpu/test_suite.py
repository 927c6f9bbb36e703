"""The suite for one GPU on a machine without one: on a tiny model, ended once and gone on with.

`make gpu-on-cpu` runs the stages that take most of the time here, too, and folds in fp8, which need two engines more.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import psutil
import pytest
import torch

from acmserve.bench.harness.options import partial_file
from acmserve.bench.report.sources import has_exact
from tests.support.docs.pages import ROOT
from tests.support.server.running_server import START_SECONDS

SUITE = [sys.executable, "-m", "acmserve", "bench", "gpu", "--device", "cpu"]
IS_WHOLE = "ACMSERVE_GPU" in os.environ
STAGES = ("kernel", *(("holes",) if IS_WHOLE else ()), "fold")
STAGES += ("overhead", "decode", "sessions", "fold-fp8") if IS_WHOLE else ()
LONG = pytest.mark.skipif(not IS_WHOLE, reason="the long form: `make gpu-on-cpu`")
SMALL = ("--contexts", "1024", "131072", "--sessions", "1", "4")
ENVIRON = {**os.environ, "PYTHONPATH": str(ROOT)}
WITHOUT_VLLM = """
import runpy, sys
for name in ("vllm", "transformers", "matplotlib", "httpx", "psutil"):
    sys.modules[name] = None
sys.path.insert(0, sys.argv.pop(1))
runpy.run_module("benchmarks.gpu.suite", run_name="__main__")
"""


def run_without_vllm(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", WITHOUT_VLLM, str(ROOT), *arguments]
    return subprocess.run(command, check=False, capture_output=True, text=True)


def end_at_its_engines(command: list[str]) -> tuple[int, list[psutil.Process]]:
    """Start the suite, and end it while its engines start. Its exit code, and all processes that it had."""
    process = subprocess.Popen(command, cwd=ROOT, env=ENVIRON, stderr=subprocess.PIPE, text=True)
    assert process.stderr is not None
    next((line for line in process.stderr if "starting two engines" in line), "")
    started = psutil.Process(process.pid).children(recursive=True)
    process.terminate()
    process.communicate()
    return process.returncode, started


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with `cut.partial.json` of a run that was ended, and `gpu.json` of the one that went on with it."""
    folder = tmp_path_factory.mktemp("gpu")
    work = ["--work", str(folder / "work")]
    stages = ["--stages", *STAGES]
    code, processes = end_at_its_engines([*SUITE, *work, *stages, *SMALL, "--json", str(folder / "cut.json")])
    assert code == 143
    assert len(processes) >= 2
    # One of them may end right behind its parent.
    assert psutil.wait_procs(processes, timeout=START_SECONDS)[1] == []
    command = [*SUITE, *work, *stages, *SMALL, "--json", str(folder / "gpu.json")]
    done = subprocess.run(command, check=False, capture_output=True, text=True, cwd=ROOT, env=ENVIRON)
    (folder / "said").write_text(done.stdout + done.stderr)
    assert done.returncode == 0, done.stdout + done.stderr
    return folder


def report_of(results: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((results / "gpu.json").read_text())
    return found


def test_a_suite_that_is_ended_keeps_its_stages_and_goes_on(results: Path) -> None:
    cut = json.loads(partial_file(results / "cut.json").read_text())
    assert (cut["partial"], cut["ended_by"]) == (True, "SIGTERM")
    assert list(cut["stages"]) == (["kernel", "holes"] if IS_WHOLE else ["kernel"])
    assert not (results / "cut.json").exists()
    assert "kernel: taken over from an earlier run" in (results / "said").read_text()
    assert report_of(results)["stages"]["kernel"] == cut["stages"]["kernel"]


def test_the_report_has_every_stage_and_says_what_was_left_out(results: Path) -> None:
    report = report_of(results)
    assert report["gate"]["green"]
    assert has_exact(report)
    assert report["machine"]["command"].startswith("acmserve bench gpu --device cpu")
    assert report["device"]["kind"] == "cpu"
    left_out = {one["stage"] for one in report["left_out"]}
    assert {*report["stages"], *left_out} == set(STAGES)
    assert left_out == (set() if torch.cpu._is_avx512_supported() else {"fold-fp8"} & set(STAGES))
    for name in {"fold", "fold-fp8"} & report["stages"].keys():
        stage = report["stages"][name]
        assert [one["what"] for one in stage["left_out"]] == ["131,072 tokens"]
        assert stage["settings"]["kv_cache_dtype"] == stage["kv_type"] == ("auto" if name == "fold" else "fp8")
    assert {(row["model"], row["kv_type"]) for row in report["stages"]["kernel"]["rows"]} == {
        ("Llama-3-8B", "bf16"),
        ("Llama-3-8B", "fp8"),
    }


def test_exact_is_stock_and_the_control_turns_the_gate_red(results: Path) -> None:
    """The gate is that of `bench edit`. Moved KV, taken for exact, fails it, in both types of KV."""
    stages = report_of(results)["stages"]
    for stage in (stages[name] for name in ("fold", "fold-fp8") if name in stages):
        cell, _ = stage["cells"]
        assert stage["gate"]["green"]
        assert stage["stock_beside_itself"] == cell["answers"]["exact"]
        assert (cell["answers"]["exact"]["num_same"], cell["answers"]["exact"]["largest_difference"]) == (32, 0.0)
        assert not stage["control"]["green"]
        assert "1,024 tokens, 1 hole from 12 %: exact answers otherwise" in stage["control"]["failures"][0]


def test_a_fold_moves_what_is_behind_it_and_has_times_of_all_series(results: Path) -> None:
    for name, stage in report_of(results)["stages"].items():
        if not name.startswith("fold"):
            continue
        cell, holes = stage["cells"]
        assert cell["receipts"]["reuse"]["moved_tokens"] == cell["behind_tokens"] == 560
        assert (holes["context_tokens"], holes["num_holes"]) == (1024, 4)
        assert holes["receipts"]["reuse"]["moved_tokens"] > 500
        assert cell["receipts"]["exact"]["moved_tokens"] == 0
        assert {name: len(times) for name, times in cell["seconds_to_first_token"].items()} == {
            "reuse": 4,
            "append": 4,
            "exact": 2,
            "stock": 2,
        }
        for series in ("reuse", "exact"):
            low, high = cell["beside_stock"][series]["interval"]
            assert 0 < low <= cell["beside_stock"][series]["ratio"] <= high


@LONG
def test_many_holes_are_one_forward_pass_and_a_wrong_layout_shows(results: Path) -> None:
    stage = report_of(results)["stages"]["holes"]
    assert stage["gate"]["green"]
    assert stage["refusal"] is None
    assert [row["num_holes"] for row in stage["rows"]] == [2, 16, 64, 48, 32]
    assert (stage["engine"]["runner"], stage["engine"]["attention"]) == ("V1", ["CPU_ATTN"])
    for row in stage["rows"]:
        assert row["steps_together"] == 1 < row["num_holes"] < row["steps_apart"]
        assert row["moved_tokens"] == 45 * row["num_holes"]
        assert max(row["difference"], row["difference_beside"]) < 1e-3 < 0.1 < row["control_difference"]


@LONG
def test_sessions_side_by_side_move_under_reuse_alone(results: Path) -> None:
    stage = report_of(results)["stages"]["sessions"]
    rows = {(row["policy"], row["server"]): row for row in stage["rows"]}
    policies = ("1 session of 256 tokens", "4 sessions of 256 tokens")
    assert rows.keys() == {(policy, server) for policy in policies for server in ("reuse", "exact", "stock")}
    assert (stage["answers_compared_with_stock"], stage["answers_other_than_stock"]) == (2 * 5 * 6, 0)
    assert stage["stock_beside_itself"] == {"compared": 5 * 6, "other": 0}
    for policy, number in zip(policies, (1, 4), strict=True):
        assert rows[policy, "reuse"]["moved_tokens"] > 0 == rows[policy, "exact"]["moved_tokens"]
        assert rows[policy, "reuse"]["computed_tokens"] < rows[policy, "exact"]["computed_tokens"]
        assert rows[policy, "reuse"]["num_edits"] == 2 * number
        assert rows[policy, "reuse"]["rate_beside_stock"]["ratio"] > 0


@LONG
def test_requests_without_a_session_find_the_same_cache(results: Path) -> None:
    stage = report_of(results)["stages"]["overhead"]
    assert stage["gate"]["green"]
    assert stage["cached_tokens"] > 0
    assert len(stage["seconds"]["acmserve"]) == len(stage["seconds"]["stock"]) == 2


@LONG
def test_chunks_beside_a_decode_are_read_anew_and_told_where_they_outlast_it(results: Path) -> None:
    stage = report_of(results)["stages"]["decode"]
    (row,) = stage["rows"]
    assert (stage["gate"]["green"], row["chunk_tokens"]) == (True, 128)
    assert [len(times) for times in row["seconds"].values()] == [2, 2, 2]
    assert ("hidden_share" in row) == (row["outlasted"] == 0)


def test_without_vllm_the_moves_alone_are_measured(tmp_path: Path) -> None:
    file = tmp_path / "gpu.json"
    stages = ("--stages", "kernel", "fold", "--work", str(tmp_path / "work"))
    done = run_without_vllm("--device", "cpu", *stages, "--json", str(file))
    assert done.returncode == 0, done.stderr
    report = json.loads(file.read_text())
    assert list(report["stages"]) == ["kernel"]
    assert [(one["stage"], one["why"].partition(":")[0]) for one in report["left_out"]] == [
        ("fold", "vLLM is not installed")
    ]


@pytest.mark.skipif(torch.cuda.is_available(), reason="says what is missing where a GPU is missing")
def test_without_a_card_it_says_what_to_do(tmp_path: Path) -> None:
    done = run_without_vllm("--work", str(tmp_path))
    assert done.returncode == 2
    assert "no CUDA device" in done.stderr
    assert "--device cpu" in done.stderr
