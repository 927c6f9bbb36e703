"""A session leaves a real server for another: its next turn has the same prompt there, and the same answer.

In the suite the other server is another tenant of the first one, which shares neither sessions nor KV with it.
`make servers` starts a second one.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from openai import OpenAI
from transformers import AutoConfig, AutoTokenizer

from acmserve.server.models.model_identity import open_identity
from tests.support import http
from tests.support.server.chat_session import Session
from tests.support.server.running_server import running_server
from tests.support.server.scripted_server import FLAGS, MODEL, TEMPLATE
from tests.support.server.scripts import new_session

SECRET = "The key lies under the third stone."


@dataclass(frozen=True)
class Place:
    """Where a session can be: a server, and a tenant of it by its salt."""

    server: str
    salt: str

    def url(self, session: str) -> str:
        return f"{self.server}/v1/acm/sessions/{session}"

    @property
    def headers(self) -> dict[str, str]:
        return {"X-Cache-Salt": self.salt}

    def asked(self, name: str, history: list[dict[str, Any]]) -> dict[str, Any]:
        """The next turn under `exact`, with the prompt as tokens and the model's own odds of each token."""
        body = {"model": MODEL, "session_id": name, "cache_salt": self.salt, "messages": history}
        body |= {"max_tokens": 8, "logprobs": True, "top_logprobs": 5, "return_token_ids": True}
        answer = http.post(f"{self.server}/v1/chat/completions", json=body)
        found: dict[str, Any] = answer.raise_for_status().json()
        return found


@pytest.fixture(scope="module")
def second(scripted_server: str, scripted_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    """Another tenant of the shared server, or with `ACMSERVE_SERVERS` a server of its own with the same flags."""
    if "ACMSERVE_SERVERS" not in os.environ:
        yield Place(scripted_server, new_session())
        return
    log = tmp_path_factory.mktemp("second") / "log"
    with running_server(scripted_folder / "model", log, FLAGS, tiny=True) as url:
        yield Place(url, new_session())


def odds(answer: dict[str, Any]) -> list[float]:
    tokens = answer["choices"][0]["logprobs"]["content"]
    return [each["logprob"] for token in tokens for each in token["top_logprobs"]]


def test_the_next_turn_is_the_same_on_another_server(scripted_server: str, second: Place) -> None:
    """The control: a server that has only the client's history renders another prompt."""
    with OpenAI(base_url=f"{scripted_server}/v1", api_key="-", max_retries=0) as client:
        session = Session(client, scripted_server)
        session.history.insert(1, {"role": "user", "content": SECRET})
        session.chat()
        fold, *_ = session.cut()
        redact = {"op": "redact", "messages": {"start": 1, "end": 2}}
        session.edit({"op": "fold", "fragment_id": fold}, redact)
        session.say("And now?")
        session.chat()
    session.say("And then?")
    first = Place(scripted_server, session.name)
    export = http.get(f"{session.url}/export", headers=first.headers).raise_for_status().json()
    control = second.asked(f"{session.name}-stranger", session.history)
    there = second.url(session.name)
    made = http.post(f"{there}/import", json=export, headers=second.headers)
    assert made.status_code == 201, made.text
    turns = http.get(f"{there}/turns", headers=second.headers).json()
    assert [turn["receipt"] for turn in turns["data"]] == [
        turn["receipt"] for turn in http.get(f"{session.url}/turns", headers=first.headers).json()["data"]
    ]
    stayed, moved = first.asked(session.name, session.history), second.asked(session.name, session.history)
    assert moved["prompt_token_ids"] == stayed["prompt_token_ids"] != control["prompt_token_ids"]
    assert moved["choices"][0]["message"] == stayed["choices"][0]["message"]
    assert max(abs(a - b) for a, b in zip(odds(moved), odds(stayed), strict=True)) < 1e-3
    receipt = moved["acm"]["receipt"]
    assert receipt["computed_tokens"] == receipt["prompt_tokens"], "its KV stayed behind"
    assert stayed["acm"]["receipt"]["kept_tokens"] > 0


def test_another_model_is_refused(scripted_server: str, scripted_folder: Path, second: Place) -> None:
    """The fingerprints are those of the served tokenizer, template and configuration, as any process computes them."""
    made = http.post(f"{scripted_server}/v1/acm/sessions", json={"messages": [{"role": "user", "content": "Hello."}]})
    name = made.json()["session_id"]
    export = http.get(f"{scripted_server}/v1/acm/sessions/{name}/export").json()
    folder = scripted_folder / "model"
    tokenizer, config = AutoTokenizer.from_pretrained(folder), AutoConfig.from_pretrained(folder)
    model = export["model"]
    assert model == open_identity([MODEL], tokenizer, str(TEMPLATE), None, config).as_dict()
    assert model["architecture"].startswith("LlamaForCausalLM ")
    assert len({model["tokenizer"], model["chat_template"], ""}) == 3
    for part in model:
        body = {**export, "model": {**model, part: "another"}}
        answer = http.post(f"{second.url(name)}/import", json=body, headers=second.headers)
        assert answer.status_code == 409, answer.text
        assert answer.json()["error"]["param"] == f"model.{part}"
    assert http.get(second.url(name), headers=second.headers).status_code == 404
