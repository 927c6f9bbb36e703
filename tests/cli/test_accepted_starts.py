"""What vLLM would accept is not refused while vLLM is not imported: spellings, places of models, and sizes."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from acmserve.errors import AcmError
from acmserve.server.app.early_checks import check_command_line
from acmserve.server.app.flags import build_parser
from acmserve.server.app.launch import flag_names
from acmserve.server.app.launch.flag_names import check_flag_names
from acmserve.server.app.launch.hub_model import check_hub_model
from acmserve.server.app.launch.model_size import PlainModel, check_memory, check_size, read_plain_model, whole_number

LLAMA = {
    "model_type": "llama",
    "max_position_embeddings": 2048,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "hidden_size": 256,
}


def check(*argv: str, **environ: str) -> None:
    ours, rest = build_parser().parse_known_args(argv)
    check_command_line(ours, rest, environ)


def folder_of(config: Mapping[str, Any], folder: Path) -> Path:
    folder.mkdir(exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config))
    return folder


@pytest.mark.parametrize(
    "flags",
    [
        "--tensor-par 1 -tp 1 --no-enable-prefix-caching",
        "--compilation-config.mode 0 -O0 --kv-transfer-config.kv_role kv_both",
        "--served-model-name a b --api-key k --host ::1 --uds {folder}/acm.sock",
        "--a-flag-of-a-plugin 3",
        "--config {folder}/serve.yaml --max-model-len 90k",
        "--config={folder}/none.yaml",
        "--max-model-len 4096 --hf-overrides {{}}",
        "--max-model-len -1",
        "--max-model-len auto",
        "--dtype bfloat16 --max_model_len 2K --kv-cache-memory-bytes=3m",
    ],
)
def test_a_command_line_of_vllm_passes(flags: str, tmp_path: Path) -> None:
    (tmp_path / "serve.yaml").write_text("port: 0\n")
    llama = folder_of(LLAMA, tmp_path / "llama")
    check(str(llama), "--port", "0", *flags.format(folder=tmp_path).split())


def test_a_model_behind_flags_is_left_to_vllm(tmp_path: Path) -> None:
    llama = folder_of(LLAMA | {"max_position_embeddings": 10**5}, tmp_path / "llama")
    check("--port", "0", "--max-model-len", "90k", str(llama))


def test_a_platform_may_have_flags_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(AcmError, match=r"Did you mean --max-model-len\?"):
        check_flag_names(["--max-model-lens"], [])
    monkeypatch.setattr(flag_names, "entry_points", lambda group: [group])
    check_flag_names(["--max-model-lens"], [])


def test_a_longer_window_passes_where_vllm_lets_it(tmp_path: Path) -> None:
    flags = (str(folder_of(LLAMA, tmp_path / "llama")), "--port", "0", "--max-model-len", "4096")
    with pytest.raises(AcmError, match="4096 is more than the 2048 tokens"):
        check(*flags)
    check(*flags, VLLM_ALLOW_LONG_MAX_MODEL_LEN="1")


def test_the_memory_of_the_kv_cache_is_read_where_vllm_reads_it(tmp_path: Path) -> None:
    flags = (str(folder_of({**LLAMA, "max_position_embeddings": 10**7}, tmp_path / "llama")), "--port", "0")
    with pytest.raises(AcmError, match="cannot hold one request of 10000000 tokens"):
        check(*flags, "--kv-cache-memory-bytes", "1m", VLLM_CPU_KVCACHE_SPACE="1")
    check(*flags, "--max-model-len", "1000", VLLM_CPU_KVCACHE_SPACE="1")
    check(*flags, "--tensor-parallel-size", "8", VLLM_CPU_KVCACHE_SPACE="1")


def test_a_hub_is_asked_for_what_no_cache_has(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("HTTPS_PROXY", "https_proxy", "HTTP_PROXY", "http_proxy", "ALL_PROXY", "all_proxy"):
        monkeypatch.delenv(name, raising=False)
    unknown = {"HF_HOME": str(tmp_path), "HF_ENDPOINT": "https://hub.invalid"}
    with pytest.raises(AcmError, match=r"hub\.invalid has no address here. Name a folder"):
        check_hub_model("mine/llama", unknown)
    with pytest.raises(AcmError, match="HF_HUB_OFFLINE is set, and it is not in the cache at"):
        check_hub_model("mine/llama", {"HF_HOME": str(tmp_path), "HF_HUB_OFFLINE": "1"})
    for elsewhere in ({"VLLM_USE_MODELSCOPE": "1"}, {"HF_ENDPOINT": "https://127.0.0.1"}):
        check_hub_model("mine/llama", unknown | elsewhere)
    for name in ("s3://bucket/llama", "mine/llama:Q4_K_M"):
        check_hub_model(name, unknown)
    monkeypatch.setenv("HTTPS_PROXY", "http://127.0.0.1:9")
    check_hub_model("mine/llama", unknown)
    monkeypatch.delenv("HTTPS_PROXY")
    (tmp_path / "hub" / "models--mine--llama").mkdir(parents=True)
    check_hub_model("mine/llama", unknown | {"HF_HUB_OFFLINE": "1"})


@pytest.mark.parametrize(
    "other",
    [
        {"model_type": "mistral"},
        {"sliding_window": 512},
        {"rope_parameters": {"rope_type": "linear", "factor": 4}},
        {"rope_scaling": {"type": "linear", "factor": 4}},
        {"model_max_length": 9000},
        {"max_position_embeddings": None},
        {"num_hidden_layers": "2"},
    ],
    ids=lambda other: next(iter(other)),
)
def test_a_model_that_is_not_plain_is_left_to_vllm(other: dict[str, Any], tmp_path: Path) -> None:
    assert read_plain_model(folder_of(LLAMA, tmp_path / "m")) == PlainModel(2048, 2, 2, 64)
    assert read_plain_model(folder_of(LLAMA | other, tmp_path / "m")) is None
    assert read_plain_model(tmp_path / "none") is None


def test_sizes_are_refused_from_where_vllm_refuses_them() -> None:
    model = PlainModel(2048, 2, 2, 64)
    needed = 2048 * 2 * 2 * 2 * 64 * 4
    check_size(model, 2048, "float32", needed)
    check_size(model, None, None, needed // 2)
    with pytest.raises(AcmError, match="set --max-model-len below 1024"):
        check_size(model, None, "float32", needed // 2)
    with pytest.raises(AcmError, match="larger than this machine's memory"):
        check_memory(2**60)
    check_memory(2**20)


@pytest.mark.parametrize("text", ["1.5k", "auto", "-1", "", None])
def test_what_is_no_plain_number_is_left_to_vllm(text: str | None) -> None:
    assert whole_number(text) is None
    assert [whole_number(plain) for plain in ("4096", "4k", "4K", "2g")] == [4096, 4000, 4096, 2 * 10**9]
