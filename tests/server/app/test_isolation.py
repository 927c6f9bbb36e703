"""Two API keys, one session name: no route moves KV of the other key's session. vLLM's own routes count, too."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from acmserve.bench.models.tiny_model import write_tiny_model
from acmserve.models.smollm2 import TOOLS_TEMPLATE
from tests.support import http
from tests.support.server.running_server import running_server

READ = "The harbour log tells of ships that came and went in the morning, and of what they carried. " * 12
KEPT = "The tower keeper wrote down the wind, the height of the water and every lamp that was lit. " * 24
MODEL = "tiny"


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    folder = tmp_path_factory.mktemp("isolation")
    flags = ["--max-model-len", "4096", "--fidelity", "reuse", "--served-model-name", MODEL]
    flags += ["--chat-template", str(TOOLS_TEMPLATE), "--api-key", "key-a", "key-b"]
    flags += ["--block-size", "32", "--enable-scale-out"]
    with running_server(write_tiny_model(folder / "model", 4096), folder / "log", flags, tiny=True) as server:
        yield server


class Door:
    """One route. `ask` sends a conversation of some texts and returns the tokens moved."""

    def __init__(self, url: str, path: str) -> None:
        self.url, self.path = url, path

    def ask(self, key: str, session: str, *texts: str) -> int:
        before = self.num_moved()
        headers = {"Authorization": f"Bearer {key}", "X-Session-ID": session}
        answer = http.post(self.url + self.path, json=self.body(headers, texts), headers=headers, timeout=300)
        assert answer.status_code == 200, answer.text
        return self.num_moved() - before

    def body(self, headers: dict[str, str], texts: tuple[str, ...]) -> dict[str, Any]:
        messages = [{"role": "user", "content": text} for text in texts]
        if self.path.endswith("batch"):
            return {"model": MODEL, "messages": [messages], "max_tokens": 2}
        if self.path.endswith("completions"):
            return {"model": MODEL, "messages": messages, "max_tokens": 2}
        asked = {"model": MODEL, "messages": messages}
        tokens = http.post(f"{self.url}/tokenize", json=asked, headers=headers, timeout=300).json()["tokens"]
        return {"model": MODEL, "token_ids": tokens, "sampling_params": {"max_tokens": 2}}

    def num_moved(self) -> int:
        """Of all requests before; the counts of a step come with the next one, so a request of nobody goes in front."""
        plain = {"model": MODEL, "messages": [{"role": "user", "content": "Count."}], "max_tokens": 2}
        headers = {"Authorization": "Bearer key-a"}
        http.post(f"{self.url}/v1/chat/completions", json=plain, headers=headers, timeout=300).raise_for_status()
        text = http.get(f"{self.url}/metrics", timeout=300).text
        values = [
            line.rpartition(" ")[2] for line in text.splitlines() if line.startswith("acmserve:moved_tokens_total")
        ]
        return int(sum(float(value) for value in values))


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/chat/completions/batch", "/inference/v1/generate"])
def test_a_key_moves_its_own_sessions_only(url: str, path: str) -> None:
    door, session = Door(url, path), path.replace("/", "-")
    assert door.ask("key-a", session, f"{path}: {READ}", KEPT) == 0
    assert door.ask("key-b", session, f"Another asks {path}.", KEPT) == 0
    assert door.ask("key-a", session, f"The same asks {path}.", KEPT) > 300, "the control: one's own session moves"
