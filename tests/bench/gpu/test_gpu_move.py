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
MODEL_NAMES = ("Llama-3-8B", "Qwen3-8B", "DeepSeek-V3")
# No site initialisation, so no installed acmserve either. Packages that the script must not need are made unimportable.
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
runpy.run_module("benchmarks.gpu.kernel.main", run_name="__main__")
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
    found = {(row["model"], row["kv_type"]) for row in report["rows"]}
    assert found == {(model, kv_type) for model in MODEL_NAMES for kv_type in ("bf16", "fp8")}
    assert report["below_bar"] == [], "its times mean nothing"
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


@pytest.mark.parametrize("kv_type", ["bf16", "fp8"])
def test_a_wrong_move_is_not_timed(kv_type: str) -> None:
    """The gate itself: a key off by more than a rounding, a bit of V changed."""
    from acmserve.bench.gpu.kernel.main import TYPES, is_right
    from acmserve.bench.gpu.kernel.shapes import MODELS, make_pool
    from acmserve.kernels.movers import reference
    from acmserve.kernels.runs import MoveRun

    stored_as = reference.STORED_AS[TYPES[kv_type].itemsize]
    for shape in (replace(model.tiny(), kv_type=TYPES[kv_type]) for model in MODELS):
        layer = shape.layers(make_pool(16 * 16 * shape.bytes_per_token, "cpu", shape.kv_type))[0]
        runs = [MoveRun([0, 1], 0, [4, 5], 0, 20, 7)]
        reference.move([layer], runs, 16)
        assert is_right(layer, runs)
        for index in (0, -1):
            layer.kv.view(stored_as)[4, 0, 3, index] += 2
            assert not is_right(layer, runs)
            reference.move([layer], runs, 16)


def test_a_move_that_is_slow_beside_a_copy_misses_the_bar() -> None:
    """Both 8B models are held to it, in both types. A row at the bar meets it."""
    from acmserve.bench.gpu.kernel.main import MIN_RATIO, GpuRow, below_bar

    row = GpuRow("Llama-3-8B", "fp8", 1024, 1, 1, *[1.0] * 6, ratio=MIN_RATIO, attention_error=None)
    assert below_bar([row]) == []
    slow = [replace(row, model=name, ratio=MIN_RATIO - 0.01) for name in MODEL_NAMES]
    assert [line.partition(",")[0] for line in below_bar(slow)] == ["Llama-3-8B", "Qwen3-8B"]


@pytest.mark.parametrize("kv_type", ["bf16", "fp8"])
@pytest.mark.parametrize("wrong", [None, "keys", "place"])
def test_attention_over_moved_kv_is_that_of_its_definition(wrong: str | None, kv_type: str) -> None:
    """The gate of attention, with keys that did not turn and with rows one place too far as its controls."""
    from acmserve.bench.gpu.kernel.attention import MAX_ERROR, attention_error
    from acmserve.bench.gpu.kernel.main import TYPES
    from acmserve.bench.gpu.kernel.shapes import MODELS, make_pool
    from acmserve.kernels.movers import reference
    from acmserve.kernels.runs import MoveRun

    torch.manual_seed(4)
    shape = replace(MODELS[0].tiny(), kv_type=TYPES[kv_type])
    layer = shape.layers(make_pool(18 * 16 * shape.bytes_per_token, "cpu", shape.kv_type))[0]
    run = MoveRun([0, 1, 2], 3, [5, 4, 7], 9, 37, -1980)
    carried_out = {"keys": replace(run, delta=0), "place": replace(run, dst_offset=8)}.get(wrong or "", run)
    reference.move([layer], [carried_out], 16)
    error = attention_error(layer, [run], "torch")
    assert error <= MAX_ERROR if wrong is None else error > 5 * MAX_ERROR
