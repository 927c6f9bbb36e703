"""Summaries from a server elsewhere, over real HTTP. The served model itself is tested in `chat/test_loop.py`."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest
from starlette.datastructures import State

from acmserve.context.eviction.compact import Summary
from acmserve.context.tools.run import SummaryWanted
from acmserve.errors import InvalidRequest, Unavailable
from acmserve.server.models import summarizer
from acmserve.server.models.summarizer import open_summarizer
from acmserve.server.options.config import ContextConfig
from tests.support.server.fake_openai import Answer, openai_server
from tests.support.server.running_server import free_port

WANTED = SummaryWanted("f1a2b3", "The mill burned in 1812.", "key decisions", 1_234)


def summarize(config: ContextConfig, state: State | None = None) -> str:
    return asyncio.run(open_summarizer(config, state or State()).summarize(WANTED))


def test_a_server_elsewhere_is_asked_with_focus_and_text(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(summarizer.API_KEY_VARIABLE, "secret")
    asked: list[Any] = []

    def answer(path: str, body: Any, key: str | None) -> Answer:
        asked.append((path, body, key))
        return 200, {"choices": [{"message": {"content": "It burned."}}]}

    with openai_server(answer) as url:
        assert summarize(ContextConfig(summary_url=url, summary_model="big", max_summary_tokens=50)) == "It burned."
    ((path, body, key),) = asked
    assert (path, key, body["model"]) == ("/v1/chat/completions", "Bearer secret", "big")
    assert (body["temperature"], body["max_tokens"]) == (0, 50)
    prompt = body["messages"][0]["content"]
    assert "Focus: key decisions." in prompt
    assert "The mill burned in 1812." in prompt
    assert "30 words" in prompt


def test_a_text_that_the_server_refuses_says_its_size_and_the_remedy() -> None:
    with openai_server(lambda *_: (400, {"error": {"message": "context length is 512"}})) as url:
        config = ContextConfig(summary_url=url, summary_model="big")
        with pytest.raises(InvalidRequest, match=r"f1a2b3 \(1,234 tokens\).*512.*smaller fragments") as caught:
            summarize(config)
    assert caught.value.field == "fragment_id"


@pytest.mark.parametrize("answer", [(503, {}), (200, {"choices": []}), (200, "no")])
def test_a_server_that_gives_no_summary_is_unavailable(answer: Answer) -> None:
    with openai_server(lambda *_: answer) as url, pytest.raises(Unavailable, match="the server for summaries"):
        summarize(ContextConfig(summary_url=url, summary_model="big"))


def test_a_server_that_is_not_there_is_unavailable() -> None:
    with pytest.raises(Unavailable, match="cannot be reached"):
        summarize(ContextConfig(summary_url=f"http://127.0.0.1:{free_port()}"))


def test_the_served_models_window_is_checked_before_it_is_asked() -> None:
    state = State({"openai_serving_chat": SimpleNamespace(model_config=SimpleNamespace(max_model_len=1_500))})
    with pytest.raises(InvalidRequest, match=r"f1a2b3 has 1,234 tokens; .* reads at most 1,084\. .*smaller fragments"):
        summarize(ContextConfig(), state)


def test_a_served_model_that_cannot_chat_is_unavailable() -> None:
    with pytest.raises(Unavailable, match="cannot chat"):
        summarize(ContextConfig(), State({"openai_serving_chat": None}))


def test_a_conversation_is_summarized_with_its_instructions_and_the_tokens_are_told() -> None:
    asked: list[Any] = []
    usage: dict[str, Any] = {"usage": {"prompt_tokens": 70, "completion_tokens": 9}}

    def answer(path: str, body: Any, key: str | None) -> Answer:
        asked.append(body["messages"][0]["content"])
        return 200, {"choices": [{"message": {"content": "It burned."}}]} | (usage if len(asked) == 1 else {})

    async def both(config: ContextConfig) -> list[Any]:
        made = open_summarizer(config, State())
        told = await made.summarize_conversation("user: {Why}?", 4, "Keep the mill.")
        return [told, await made.summarize_conversation("user: Why?", 4)]

    with openai_server(answer) as url:
        first, second = asyncio.run(both(ContextConfig(summary_url=url, summary_model="big", max_summary_tokens=50)))
    assert first == Summary("It burned.", 70, 9)
    assert second == Summary("It burned.", None, None)
    assert "user: {Why}?" in asked[0]
    assert "Keep the mill." in asked[0]
    assert "what was decided" not in asked[0]
    assert "what was decided" in asked[1]
    assert "30 words" in asked[0]


def test_a_conversation_that_is_too_long_for_the_served_model_is_named() -> None:
    state = State({"openai_serving_chat": SimpleNamespace(model_config=SimpleNamespace(max_model_len=1_500))})
    asking = open_summarizer(ContextConfig(), state).summarize_conversation("word", 1_234)
    with pytest.raises(InvalidRequest, match=r"the 1,234 tokens to summarize are too many: .* reads at most 1,044\."):
        asyncio.run(asking)
