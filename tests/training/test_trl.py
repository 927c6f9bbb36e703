"""The script of the guide, run by TRL's own trainer on a tiny model. Skipped without TRL, which is no dependency."""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from acmserve.cli import main
from tests.support.docs.pages import ROOT
from tests.support.training.sessions import Session, random_session

VOCABULARY = 2000
SCRIPT = ROOT / "docs/guides/gspo_with_trl.py"


def save_model(folder: Path) -> None:
    """A Llama of two layers with a tokenizer, as TRL loads them."""
    from tokenizers import Tokenizer, models
    from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

    sizes: dict[str, Any] = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2}
    sizes |= {"num_attention_heads": 2, "num_key_value_heads": 2, "vocab_size": VOCABULARY}
    LlamaForCausalLM(LlamaConfig(**sizes)).save_pretrained(folder)
    words = {f"w{number}": number for number in range(VOCABULARY - 2)} | {"<eos>": 1998, "<unk>": 1999}
    tokenizer: Any = PreTrainedTokenizerFast
    tokenizer(
        tokenizer_object=Tokenizer(models.WordLevel(words, unk_token="<unk>")), eos_token="<eos>", pad_token="<eos>"
    ).save_pretrained(folder)


def save_rows(folder: Path, sessions: list[Session]) -> None:
    rewards = [{"session_id": one.session_id, "reward": number, "group": "q"} for number, one in enumerate(sessions)]
    (folder / "rewards.jsonl").write_text("\n".join(map(json.dumps, rewards)), encoding="utf-8")
    records = [folder / f"{one.session_id}.jsonl" for one in sessions]
    for path, one in zip(records, sessions, strict=True):
        path.write_text("\n".join(one.record()), encoding="utf-8")
    output = ["--rewards", str(folder / "rewards.jsonl"), "--output", str(folder / "train.jsonl")]
    assert main(["export", *map(str, records), *output]) == 0


@pytest.mark.filterwarnings("ignore")
def test_the_script_of_the_guide_takes_a_step(tmp_path: Path) -> None:
    pytest.importorskip("trl", reason="TRL is not installed")
    save_model(tmp_path / "model")
    save_rows(tmp_path, [random_session(seed) for seed in range(3)])
    environ = os.environ | {"PYTHONPATH": os.pathsep.join([str(ROOT), *filter(None, sys.path)])}
    command = [sys.executable, str(SCRIPT), "model", "train.jsonl", "trained", "--learning-rate", "1e-3"]
    done = subprocess.run(command, cwd=tmp_path, env=environ, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    assert math.isfinite(float(done.stdout.splitlines()[-1]))
    assert (tmp_path / "trained/model.safetensors").read_bytes() != (tmp_path / "model/model.safetensors").read_bytes()
