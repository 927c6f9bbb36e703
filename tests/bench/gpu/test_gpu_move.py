"""The GPU benchmark on a machine without GPU: the whole of it, tiny and interpreted, with torch and triton alone."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch

ROOT = Path(__file__).parents[3]
# No site initialisation, so no installed acmserve either; the packages it must not need are made unimportable.
BARE = """
import runpy, sys
class Refuse:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {"vllm", "transformers", "matplotlib"} or name == "acmserve._native":
            raise ModuleNotFoundError(f"{name} is blocked", name=name)
sys.meta_path.insert(0, Refuse())
root, packages, *sys.argv[1:] = sys.argv[1:]
sys.path[:0] = [root]
sys.path.append(packages)
runpy.run_module("benchmarks.gpu.main", run_name="__main__")
"""


def run_bare(*arguments: str) -> subprocess.CompletedProcess[str]:
    packages = str(Path(torch.__file__).parent.parent)
    command = [sys.executable, "-S", "-c", BARE, str(ROOT), packages, *arguments]
    return subprocess.run(command, check=False, capture_output=True, text=True)


def test_the_whole_path_runs_with_torch_and_triton_alone(tmp_path: Path) -> None:
    done = run_bare("--cpu-check", "--json", str(tmp_path / "gpu.json"))
    assert done.returncode == 0, done.stderr
    report = json.loads((tmp_path / "gpu.json").read_text())
    assert report["correct"] is True
    assert report["cpu_check"] is True
    assert {row["model"] for row in report["rows"]} == {"Llama-3-8B", "Qwen3-8B", "DeepSeek-V3"}
    for row in report["rows"]:
        assert row["num_launches"] == 1
        assert min(row["move_ms"], row["copy_ms"]) > 0
        assert (row["attention_error"] is None) == (row["model"] == "DeepSeek-V3")
    assert report["machine"]["attention"] == "torch"
    assert report["machine"]["versions"]["triton"]


@pytest.mark.skipif(torch.cuda.is_available(), reason="says what is missing where a GPU is missing")
def test_without_a_gpu_it_says_what_to_do() -> None:
    done = run_bare()
    assert done.returncode == 2
    assert "no CUDA device" in done.stderr
    assert "--cpu-check" in done.stderr


def test_an_unknown_model_is_named() -> None:
    done = run_bare("--cpu-check", "--models", "GPT-9")
    assert done.returncode == 2
    assert "unknown model GPT-9; known are Llama-3-8B" in done.stderr


def test_a_wrong_move_is_not_timed() -> None:
    """The gate itself: one value off by more than a rounding, one bit of V changed."""
    from acmserve.bench.gpu.main import is_right
    from acmserve.bench.gpu.shapes import MODELS, make_pool
    from acmserve.kernels.movers import reference
    from acmserve.kernels.runs import MoveRun

    for shape in (model.tiny() for model in MODELS):
        layer = shape.layers(make_pool(4 * 16 * shape.bytes_per_token, "cpu"))[0]
        runs = [MoveRun([0, 1], 0, [4, 5], 0, 20, 7)]
        reference.move([layer], runs, 16)
        assert is_right(layer, runs)
        for index in (0, -1):
            layer.kv[4, 0, 3, index] *= 1.02
            assert not is_right(layer, runs)
            reference.move([layer], runs, 16)


@pytest.mark.parametrize("wrong", [None, "keys", "place"])
def test_attention_over_moved_kv_is_that_of_its_definition(wrong: str | None) -> None:
    """The gate of attention, with keys that did not turn and with rows one place too far as its controls."""
    from acmserve.bench.gpu.attention import MAX_ERROR, attention_error
    from acmserve.bench.gpu.shapes import MODELS, make_pool
    from acmserve.kernels.movers import reference
    from acmserve.kernels.runs import MoveRun

    torch.manual_seed(4)
    shape = MODELS[0].tiny()
    layer = shape.layers(make_pool(9 * 16 * shape.bytes_per_token, "cpu"))[0]
    run = MoveRun([0, 1, 2], 3, [5, 4, 7], 9, 37, -1980)
    carried_out = {"keys": replace(run, delta=0), "place": replace(run, dst_offset=8)}.get(wrong or "", run)
    reference.move([layer], [carried_out], 16)
    error = attention_error(layer, [run], "torch")
    assert error <= MAX_ERROR if wrong is None else error > 5 * MAX_ERROR
