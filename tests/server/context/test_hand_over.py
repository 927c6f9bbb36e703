"""A session leaves one real server for another: its next turn has the same prompt there, and the same answer."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from openai import OpenAI

from tests.support import http
from tests.support.server.chat_session import Session
from tests.support.server.running_server import running_server
from tests.support.server.scripted_server import FLAGS, MODEL

SECRET = "The key lies under the third stone."


@pytest.fixture(scope="module")
def second(scripted_server: str, scripted_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A server of its own beside the shared one, with the same model and the same flags."""
    log = tmp_path_factory.mktemp("second") / "log"
    with running_server(scripted_folder / "model", log, FLAGS, tiny=True) as url:
        yield url


def asked(server: str, session: Session) -> dict[str, Any]:
    """The next turn under `exact`, with the prompt as tokens and the model's own odds of each token."""
    body = {"model": MODEL, "session_id": session.name, "cache_salt": session.name, "messages": session.history}
    body |= {"max_tokens": 8, "logprobs": True, "top_logprobs": 5, "return_token_ids": True}
    found: dict[str, Any] = http.post(f"{server}/v1/chat/completions", json=body).raise_for_status().json()
    return found


def odds(answer: dict[str, Any]) -> list[float]:
    tokens = answer["choices"][0]["logprobs"]["content"]
    return [each["logprob"] for token in tokens for each in token["top_logprobs"]]


def test_the_next_turn_is_the_same_on_another_server(scripted_server: str, second: str) -> None:
    """The control: a server that has only the client's history renders another prompt."""
    with OpenAI(base_url=f"{scripted_server}/v1", api_key="-") as client:
        session = Session(client, scripted_server)
        session.history.insert(1, {"role": "user", "content": SECRET})
        session.chat()
        fold, *_ = session.cut()
        redact = {"op": "redact", "messages": {"start": 1, "end": 2}}
        session.edit({"op": "fold", "fragment_id": fold}, redact)
        session.say("And now?")
        session.chat()
    session.say("And then?")
    salt = {"X-Cache-Salt": session.name}
    export = http.get(f"{session.url}/export", headers=salt).raise_for_status().json()
    stranger = copy.copy(session)
    stranger.name = f"{session.name}-stranger"
    control = asked(second, stranger)
    there = f"{second}/v1/acm/sessions/{session.name}"
    made = http.post(f"{there}/import", json=export, headers=salt)
    assert made.status_code == 201, made.text
    turns = http.get(f"{there}/turns", headers=salt).json()
    assert [turn["receipt"] for turn in turns["data"]] == [
        turn["receipt"] for turn in http.get(f"{session.url}/turns", headers=salt).json()["data"]
    ]
    stayed, moved = asked(scripted_server, session), asked(second, session)
    assert moved["prompt_token_ids"] == stayed["prompt_token_ids"] != control["prompt_token_ids"]
    assert moved["choices"][0]["message"] == stayed["choices"][0]["message"]
    assert max(abs(a - b) for a, b in zip(odds(moved), odds(stayed), strict=True)) < 1e-3
    receipt = moved["acm"]["receipt"]
    assert receipt["computed_tokens"] == receipt["prompt_tokens"], "its KV stayed behind"
    assert stayed["acm"]["receipt"]["kept_tokens"] > 0


def test_another_model_is_refused(scripted_server: str, second: str) -> None:
    """The fingerprints are those of the served tokenizer, template and configuration."""
    made = http.post(f"{scripted_server}/v1/acm/sessions", json={"messages": [{"role": "user", "content": "Hello."}]})
    name = made.json()["session_id"]
    export = http.get(f"{scripted_server}/v1/acm/sessions/{name}/export").json()
    model = export["model"]
    assert model["name"] == MODEL
    assert model["architecture"].startswith("LlamaForCausalLM ")
    assert len({model["tokenizer"], model["chat_template"], ""}) == 3
    for part in model:
        answer = http.post(
            f"{second}/v1/acm/sessions/{name}/import", json={**export, "model": {**model, part: "another"}}
        )
        assert answer.status_code == 409, answer.text
        assert answer.json()["error"]["param"] == f"model.{part}"
    assert http.get(f"{second}/v1/acm/sessions/{name}").status_code == 404
