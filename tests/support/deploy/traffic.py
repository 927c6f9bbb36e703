"""A little of everything that the metrics count: turns of two fidelities, a fold, an eviction and a refused move."""

from __future__ import annotations

from typing import Any

from tests.support import http
from tests.support.server.scripted_server import MODEL

TEXT = "The heron stands on one leg by the lighthouse. "


def send_traffic(url: str, session_id: str) -> None:
    """To a server with the scripted model. Raises where it refuses."""
    said = [{"role": "user", "content": TEXT * 30}]

    def chat(**more: Any) -> None:
        body = {"model": MODEL, "max_tokens": 2, "session_id": session_id, "messages": said, **more}
        answer = http.post(f"{url}/v1/chat/completions", json=body).raise_for_status().json()
        said.append(answer["choices"][0]["message"] | {"role": "assistant"})
        said.append({"role": "user", "content": TEXT * 10})

    session = f"{url}/v1/acm/sessions/{session_id}"
    chat()
    chat()
    fold = {"op": "fold", "messages": {"start": 0, "end": 1}}
    http.post(f"{session}/edits", json={"edits": [fold]}).raise_for_status()
    chat(acm={"fidelity": "auto"})
    budget = {"max_tokens": 300, "low_watermark": 100, "policy": "recency"}
    http.put(f"{session}/budget", json=budget).raise_for_status()
    evicted = http.post(f"{session}/evict", json={}).raise_for_status().json()
    assert evicted["tokens_after"] < evicted["tokens_before"], evicted
    chat(acm={"fidelity": "reuse"}, prompt_logprobs=1)
