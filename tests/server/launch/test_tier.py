"""A server with a tier of host memory: what came back is in the receipt and on /metrics, beside what vLLM counts."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from acmserve.bench.models.tiny_model import write_tiny_model
from tests.support import http
from tests.support.server.running_server import server_process
from tests.support.server.scripted_server import TEMPLATE

SMALL_POOL = ("--num-gpu-blocks-override", "64", "--block-size", "32", "--max-model-len", "1536")
NUM_FLOODS, PROMPT_CHARS = 6, 2000

pytestmark = pytest.mark.skipif("ACMSERVE_FLEET" not in os.environ, reason="a server of its own: `make fleet`")


def ask(url: str, session: str) -> dict[str, Any]:
    """The receipt of one turn, whose prompt takes half of the pool or so."""
    text = "".join(f"{session} {number}. " for number in range(1000))[:PROMPT_CHARS]
    body = {"model": "m", "session_id": session, "max_tokens": 2, "messages": [{"role": "user", "content": text}]}
    answer = http.post(f"{url}/v1/chat/completions", json=body)
    assert answer.status_code == 200, answer.text
    receipt: dict[str, Any] = answer.json()["acm"]["receipt"]
    assert receipt["prompt_tokens"] > 64 * 32 / NUM_FLOODS * 2, "the control: the floods take the pool"
    return receipt


def counted(url: str, name: str) -> float:
    families = text_string_to_metric_families(http.get(f"{url}/metrics").text)
    return sum(sample.value for family in families for sample in family.samples if sample.name == name)


def test_what_comes_back_is_told(tmp_path: Path) -> None:
    model = write_tiny_model(tmp_path / "model", 4096)
    shutil.copy(TEMPLATE, model / "chat_template.jinja")
    flags = ["--served-model-name", "m", "--kv-offloading-size", "0.05", *SMALL_POOL]
    with server_process(model, tmp_path / "log", flags, tiny=True) as running:
        url = running.url
        assert ask(url, "told")["loaded_tokens"] == 0
        assert counted(url, "acmserve:loaded_tokens_total") == counted(url, "vllm:kv_offload_load_bytes_total") == 0
        for number in range(NUM_FLOODS):
            ask(url, f"flood-{number}")
        receipt = ask(url, "told")
        assert receipt["loaded_tokens"] == receipt["kept_tokens"] > 0.9 * receipt["prompt_tokens"]
        assert counted(url, "acmserve:loaded_tokens_total") == receipt["loaded_tokens"]
        totals = http.get(f"{url}/v1/acm/sessions/told/totals").raise_for_status().json()
        assert totals["loaded_tokens"] == receipt["loaded_tokens"]
        assert counted(url, "vllm:kv_offload_load_bytes_total") > 0
        assert counted(url, "vllm:kv_offload_store_bytes_total") > counted(url, "vllm:kv_offload_load_bytes_total")
