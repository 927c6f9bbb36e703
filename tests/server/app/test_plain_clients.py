"""Clients that know vLLM and nothing of acmserve: what they send works as it does there."""

from __future__ import annotations

import uuid
from typing import Any

import pytest

from tests.support import http
from tests.support.server.scripted_server import MODEL


@pytest.mark.parametrize("stream", [False, True])
def test_vllms_own_session_header_goes_with_several_answers(scripted_server: str, stream: bool) -> None:
    """The answer is vLLM's, and a header says that there is no receipt."""
    body = {"model": MODEL, "messages": [{"role": "user", "content": "Hello."}], "max_tokens": 2, "n": 2}
    name = uuid.uuid4().hex
    answer = http.post(
        f"{scripted_server}/v1/chat/completions", json=body | {"stream": stream}, headers={"X-Session-ID": name}
    )
    assert answer.status_code == 200, answer.text
    assert answer.headers["X-ACM-Receipt"].startswith("none")
    assert '"acm"' not in answer.text
    if not stream:
        assert len(answer.json()["choices"]) == 2
    assert http.get(f"{scripted_server}/v1/acm/sessions/{name}").status_code == 404, "nothing was recorded"


@pytest.mark.parametrize("prompts", [["One.", "Two."], [[1, 2, 3], [4, 5]]])
def test_vllms_own_session_header_goes_with_several_prompts(scripted_server: str, prompts: list[Any]) -> None:
    body = {"model": MODEL, "prompt": prompts, "max_tokens": 2}
    answer = http.post(f"{scripted_server}/v1/completions", json=body, headers={"X-Session-ID": uuid.uuid4().hex})
    assert answer.status_code == 200, answer.text
    assert len(answer.json()["choices"]) == 2


def test_one_answer_to_one_prompt_has_its_receipt(scripted_server: str) -> None:
    body = {"model": MODEL, "prompt": ["One."], "max_tokens": 2}
    answer = http.post(f"{scripted_server}/v1/completions", json=body, headers={"X-Session-ID": uuid.uuid4().hex})
    assert answer.json()["acm"]["receipt"]["prompt_tokens"] > 0
    assert answer.headers["X-ACM-Receipt"].startswith("session=")
