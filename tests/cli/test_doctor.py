"""`acmserve doctor`: this installation is sound, and what a small build of a model shows is passed on, with reasons."""

from __future__ import annotations

import copy
import json
from pathlib import Path

import pytest
from transformers import GPT2Config, GptOssConfig, LlamaConfig, PretrainedConfig

from acmserve.cli import main
from acmserve.cli.doctor import BROKEN, NOTE, OK, Finding, Report, examine
from acmserve.errors import AcmError
from tests.support.templates.fixtures import source, tokenizer


def write_config(folder: Path, config: PretrainedConfig, architecture: str) -> str:
    config.architectures = [architecture]
    config.save_pretrained(folder)
    return str(folder)


def test_this_installation_is_sound() -> None:
    report = examine()
    assert not report.is_broken
    assert {finding.topic for finding in report.findings} == {"vllm", "torch", "kernel"}


def test_a_large_model_with_rotary_positions_may_move(tmp_path: Path) -> None:
    config = LlamaConfig(
        hidden_size=4096, num_attention_heads=32, num_key_value_heads=8, num_hidden_layers=32, vocab_size=128256
    )
    finding = examine(write_config(tmp_path, config, "LlamaForCausalLM")).findings[-1]
    assert finding.status == OK
    assert "moves allowed (128 dimensions turn in NeoX pairs)" in finding.detail


def test_a_model_that_refuses_moves_is_a_note_with_the_reason_and_exit_code_0(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    model = write_config(tmp_path, GPT2Config(n_embd=64, n_layer=1, n_head=2), "GPT2LMHeadModel")
    assert main(["doctor", model, "--json"]) == 0
    answer = json.loads(capfd.readouterr().out)
    assert answer["ok"] is True
    refusal, cost = answer["findings"][-2:]
    assert refusal["status"] == cost["status"] == NOTE
    assert "positions: values of transformer.h.0.attn.attn change by" in refusal["detail"]
    assert "served exactly" in refusal["detail"]
    assert "moves nothing" in cost["detail"]


def test_a_model_with_windows_may_move_and_is_told_what_they_cost(tmp_path: Path) -> None:
    config = GptOssConfig(num_hidden_layers=4, layer_types=["sliding_attention", "full_attention"] * 2)
    allowed, cost = examine(write_config(tmp_path, config, "GptOssForCausalLM")).findings[-2:]
    assert allowed.status == OK
    assert "moves allowed (64 dimensions turn in NeoX pairs)" in allowed.detail
    assert cost.status == NOTE
    assert "1 of 2 KV cache groups have a window (127 tokens, " in cost.detail
    assert "--prefix-cache-retention-interval" in cost.detail


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
