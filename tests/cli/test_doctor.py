"""`acmserve doctor`: this installation is sound, and what a small build of a model shows is passed on, with reasons."""

from __future__ import annotations

import copy
import json
from pathlib import Path

import pytest
import torch
from transformers import GPT2Config, GptOssConfig, LlamaConfig, PretrainedConfig, Qwen2Config

from acmserve.bench.families.family import DEFAULT
from acmserve.bench.families.registry import FAMILIES
from acmserve.cli import main
from acmserve.cli.doctor import BROKEN, NOTE, OK, Finding, Report, examine
from acmserve.errors import AcmError
from acmserve.server.app.launch.default_precompute import PrecomputePlace, plan_default_precompute
from tests.support.templates.fixtures import source, tokenizer


def write_config(folder: Path, config: PretrainedConfig, architecture: str) -> str:
    config.architectures = [architecture]
    config.save_pretrained(folder)
    return str(folder)


def test_this_installation_is_sound() -> None:
    report = examine()
    assert not report.is_broken
    assert {finding.topic for finding in report.findings} == {"vllm", "torch", "kernel", "serve"}
    (told,) = [finding for finding in report.findings if finding.topic == "serve"]
    assert told == Finding("serve", OK, str(plan_default_precompute(PrecomputePlace(on_cpu=True))))


def test_a_large_model_with_rotary_positions_may_move(tmp_path: Path) -> None:
    config = LlamaConfig(
        hidden_size=4096, num_attention_heads=32, num_key_value_heads=8, num_hidden_layers=32, vocab_size=128256
    )
    finding = examine(write_config(tmp_path, config, "LlamaForCausalLM")).findings[-1]
    assert finding.status == OK
    assert "moves allowed (128 dimensions turn in NeoX pairs)" in finding.detail


@pytest.mark.parametrize(
    ("kv_cache_dtype", "told"),
    [
        ("auto", "a key is turned at most 8 times"),
        ("fp8", "a key is turned at most 2 times"),
        ("fp8_e5m2", "a key is turned at most 1 times"),
    ],
)
def test_the_bound_on_moves_is_that_of_the_kv_cache(tmp_path: Path, kv_cache_dtype: str, told: str) -> None:
    model = write_config(tmp_path, LlamaConfig(hidden_size=256, num_attention_heads=4), "LlamaForCausalLM")
    finding = examine(model, kv_cache_dtype=kv_cache_dtype).findings[-1]
    assert finding.status == OK
    assert told in finding.detail


def test_a_kv_cache_whose_keys_cannot_be_turned_is_named(tmp_path: Path) -> None:
    model = write_config(tmp_path, LlamaConfig(hidden_size=256, num_attention_heads=4), "LlamaForCausalLM")
    finding = examine(model, kv_cache_dtype="fp8_per_token_head").findings[-2]
    assert finding.status == NOTE
    assert (
        "dtype fp8_per_token_head (torch.uint8) is not supported: each token has a scale of its own" in finding.detail
    )


def test_a_model_that_refuses_moves_is_a_note_with_the_reason_and_exit_code_0(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    model = write_config(tmp_path, GPT2Config(n_embd=64, n_layer=1, n_head=2, vocab_size=1024), "GPT2LMHeadModel")
    assert main(["doctor", model, "--json"]) == 0
    answer = json.loads(capfd.readouterr().out)
    assert answer["ok"] is True
    refusal, cost = answer["findings"][-2:]
    assert "edits" not in {finding["topic"] for finding in answer["findings"]}
    assert refusal["status"] == cost["status"] == NOTE
    assert "positions: values of transformer.h.0.attn.attn change by" in refusal["detail"]
    assert "served exactly" in refusal["detail"]
    assert "moves nothing" in cost["detail"]
    assert "loses its last block" in cost["detail"]


def test_a_model_with_windows_may_move_and_is_told_what_they_cost(tmp_path: Path) -> None:
    shape = {"hidden_size": 256, "intermediate_size": 256, "num_local_experts": 4, "vocab_size": 1024}
    config = GptOssConfig(**shape, num_hidden_layers=4, layer_types=["sliding_attention", "full_attention"] * 2)
    edits, allowed, cost = examine(write_config(tmp_path, config, "GptOssForCausalLM")).findings[-3:]
    assert (edits.topic, edits.status) == ("edits", OK)
    assert edits.detail.startswith("windows of 128 tokens: after an edit vLLM alone")
    assert allowed.status == OK
    assert "moves allowed (64 dimensions turn in NeoX pairs)" in allowed.detail
    assert cost.status == NOTE
    assert "1 of 2 KV cache groups have a window (127 tokens, " in cost.detail
    assert "--prefix-cache-retention-interval" in cost.detail


MTP = {"method": "mtp", "num_speculative_tokens": 1}
NGRAM_GPU = {"method": "ngram_gpu", "num_speculative_tokens": 2, "prompt_lookup_max": 2, "prompt_lookup_min": 1}


def test_the_keys_of_a_drafter_count_too(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    shape = {"hidden_size": 256, "intermediate_size": 256, "num_attention_heads": 4, "num_key_value_heads": 2}
    config = Qwen2Config(**shape, vocab_size=1024, num_hidden_layers=2, num_nextn_predict_layers=1)
    model = write_config(tmp_path, config, "MiMoForCausalLM")
    finding = examine(model, MTP).findings[-1]
    assert finding.status == OK
    assert "moves allowed" in finding.detail
    refusal, _ = examine(model, NGRAM_GPU).findings[-2:]
    assert "engine: speculative decoding by ngram_gpu is not supported" in refusal.detail
    with pytest.raises(SystemExit):
        main(["doctor", model, "--speculative-config", "mtp"])
    assert "'mtp' is no JSON" in capsys.readouterr().err


def test_pooled_attention_is_named_where_vllm_cannot_do_without_its_hybrid_manager(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The class makes events of a GPU when it is built. vLLM's runner for CPUs puts other ones there, too."""
    if torch.backends.cpu.get_cpu_capability() == "AVX2":
        pytest.skip("vLLM's operators for processors without AVX-512 cannot build this class")
    (family,) = (family for family in FAMILIES if family.architecture == "DeepseekV4ForCausalLM")
    settings = family.settings(DEFAULT)
    assert settings is not None
    for name in ("Event", "Stream"):
        monkeypatch.setattr(torch.cuda, name, object)
    refusal, cost = examine(str(family.write(tmp_path / "model", settings)), kv_cache_dtype="fp8").findings[-2:]
    assert "no moves (model: pooled attention keeps one entry for several tokens" in refusal.detail
    assert "moves nothing" in cost.detail


def test_a_model_that_vllm_cannot_build_is_left_to_the_engine(tmp_path: Path) -> None:
    finding = examine(write_config(tmp_path, LlamaConfig(hidden_size=64), "UnknownForCausalLM")).findings[-1]
    assert finding.status == NOTE
    assert "cannot build it small" in finding.detail


def test_the_chat_template_is_probed_and_the_policy_named(tmp_path: Path) -> None:
    model = write_config(tmp_path, LlamaConfig(hidden_size=64), "UnknownForCausalLM")
    assert "no tokenizer" in examine(model).findings[-2].detail
    found = copy.deepcopy(tokenizer())
    for name, told in {"mistral": "merged, bridged, split", "chatml": "as they are"}.items():
        found.chat_template = source(name)
        found.save_pretrained(tmp_path)
        finding = examine(model).findings[-2]
        assert (finding.topic, finding.status) == ("template", OK)
        assert finding.detail.endswith(f"neighbours that an eviction leaves: {told}")


def test_an_unreadable_model_is_named(tmp_path: Path) -> None:
    with pytest.raises(AcmError, match="cannot read the configuration of") as error:
        examine(str(tmp_path))
    assert str(tmp_path) in str(error.value)


def test_something_broken_is_said_and_counted() -> None:
    report = Report((Finding("torch", OK, "2.13"), Finding("vllm", BROKEN, "Scheduler.schedule is gone")))
    assert report.is_broken
    assert json.loads(report.as_json())["ok"] is False
    assert report.as_text().splitlines() == [
        "ok      torch    2.13",
        "broken  vllm     Scheduler.schedule is gone",
        "something is broken, see above",
    ]
