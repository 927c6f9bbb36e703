"""The models that keep context maps: a server elsewhere over real HTTP. The served one is in `maps/test_engine.py`."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from starlette.datastructures import State

from acmserve.context.maps.map import ContextMap
from acmserve.context.maps.prompts import ask_distiller
from acmserve.errors import InvalidRequest, Unavailable
from acmserve.server.models import map_model
from acmserve.server.models.map_model import MapAnswer, open_map_model
from acmserve.server.options.config import ContextConfig
from acmserve.server.options.map_options import UpdateOptions
from tests.support.server.fake_openai import Answer, openai_server

QUESTION = ask_distiller(ContextMap(), "[user]\nHow many?")


def ask(config: ContextConfig, options: UpdateOptions, state: State | None = None) -> MapAnswer:
    return asyncio.run(open_map_model(config, state or State()).ask(QUESTION, options))


def test_a_server_elsewhere_is_asked_for_json_of_the_schema(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(map_model.API_KEY_VARIABLE, "secret")
    asked: list[Any] = []

    def answer(path: str, body: Any, key: str | None) -> Answer:
        asked.append((path, body, key))
        usage = {"usage": {"prompt_tokens": 70, "completion_tokens": 4}} if len(asked) == 1 else {}
        return 200, {"choices": [{"message": {"content": '{"diagnosis": ""}'}}], **usage}

    with openai_server(answer) as url:
        config = ContextConfig(map_url=url, map_model="big", max_map_tokens=300)
        assert ask(config, UpdateOptions()) == MapAnswer('{"diagnosis": ""}', 70, 4)
        assert ask(config, UpdateOptions("small", 50)) == MapAnswer('{"diagnosis": ""}', 0, 0)
    (path, body, key), (_, second, _) = asked
    assert (path, key, body["model"], body["max_tokens"]) == ("/v1/chat/completions", "Bearer secret", "big", 300)
    assert (second["model"], second["max_tokens"]) == ("small", 50)
    assert body["response_format"]["json_schema"]["schema"] == QUESTION.schema
    assert "How many?" in body["messages"][0]["content"]


def test_a_question_that_the_server_refuses_is_an_invalid_request() -> None:
    refusal = {"error": {"message": "context length is 512"}}
    with openai_server(lambda *_: (400, refusal)) as url, pytest.raises(InvalidRequest, match="context length is 512"):
        ask(ContextConfig(map_url=url, map_model="big"), UpdateOptions())


@pytest.mark.parametrize("answer", [(503, {}), (200, {"choices": []}), (200, "no")])
def test_a_server_that_gives_no_answer_is_unavailable(answer: Answer) -> None:
    with openai_server(lambda *_: answer) as url, pytest.raises(Unavailable, match="the server for context maps"):
        ask(ContextConfig(map_url=url, map_model="big"), UpdateOptions())


def test_a_served_model_that_cannot_chat_is_unavailable() -> None:
    with pytest.raises(Unavailable, match="cannot chat"):
        ask(ContextConfig(), UpdateOptions(), State({"openai_serving_chat": None}))
