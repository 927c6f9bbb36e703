"""`acmserve doctor`: this installation is sound, and what a model's configuration says is passed on with its reason."""

from __future__ import annotations

import copy
import json
from pathlib import Path

import pytest
from transformers import LlamaConfig

from acmserve.cli import main
from acmserve.cli.doctor import BROKEN, NOTE, OK, Finding, Report, examine
from acmserve.errors import AcmError
from tests.support.templates.fixtures import source, tokenizer


def write_config(folder: Path, **rope: object) -> str:
    config = LlamaConfig(hidden_size=64, num_hidden_layers=1, num_attention_heads=2, rope_parameters=rope)
    config.save_pretrained(folder)
    return str(folder)


def test_this_installation_is_sound() -> None:
    report = examine()
    assert not report.is_broken
    assert {finding.topic for finding in report.findings} == {"vllm", "torch", "kernel"}


def test_a_model_with_plain_rotary_positions_may_move(tmp_path: Path) -> None:
    finding = examine(write_config(tmp_path, rope_type="default", rope_theta=10000.0)).findings[-1]
    assert finding.status == OK
    assert "moves allowed" in finding.detail


def test_a_model_that_refuses_moves_is_a_note_with_the_reason_and_exit_code_0(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model = write_config(tmp_path, rope_type="dynamic", rope_theta=10000.0, factor=2.0)
    assert main(["doctor", model, "--json"]) == 0
    answer = json.loads(capsys.readouterr().out)
    assert answer["ok"] is True
    assert answer["findings"][-1]["status"] == NOTE
    assert "dynamic" in answer["findings"][-1]["detail"]
    assert "served exactly" in answer["findings"][-1]["detail"]


def test_the_chat_template_is_probed_and_the_policy_named(tmp_path: Path) -> None:
    model = write_config(tmp_path, rope_type="default", rope_theta=10000.0)
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
