"""Aliases: the served model answers under the name that was asked for."""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Iterator
from typing import Any

import anthropic
import openai
import pytest

from acmserve.errors import AcmError
from acmserve.server.app.serve import add_aliases
from tests.support.routes.vendor_asks import ASKS, Ask, Clients
from tests.support.server.scripted_server import ALIAS, MODEL
from tests.support.server.scripts import new_session


@pytest.fixture(scope="module")
def clients(scripted_server: str) -> Iterator[Clients]:
    with (
        openai.OpenAI(base_url=f"{scripted_server}/v1", api_key="unused", max_retries=0) as one,
        anthropic.Anthropic(base_url=scripted_server, api_key="unused", max_retries=0) as other,
    ):
        yield Clients(one, other)


@pytest.mark.parametrize("ask", ASKS.values(), ids=ASKS)
@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
@pytest.mark.parametrize("in_session", [False, True], ids=["plain", "session"])
def test_an_alias_is_answered_under_its_name(clients: Clients, ask: Ask, stream: bool, in_session: bool) -> None:
    body: dict[str, Any] = {"session_id": new_session()} if in_session else {}
    for name in (ALIAS, MODEL):
        assert ask(clients, ["Hello."], body, stream=stream, model=name).model == name


def test_aliases_are_listed(clients: Clients) -> None:
    assert {model.id for model in clients.openai.models.list()} == {MODEL, ALIAS}


def served(*aliases: str, names: list[str] | None = None) -> tuple[Any, dict[str, str]]:
    args, environ = Namespace(model="m", served_model_name=names, lora_modules=None), dict[str, str]()
    add_aliases(args, aliases, environ)
    return args.served_model_name, environ


def test_an_alias_is_one_more_served_name() -> None:
    assert served("a=m", "b=m", "a=m") == (["m", "a", "b"], {})
    assert served("a=x", names=["x"]) == (["x", "a"], {})
    assert served(names=["x"]) == (["x"], {})
    assert served() == (None, {})


def test_a_star_takes_every_name() -> None:
    assert served("*=m") == (["m"], {"VLLM_SKIP_MODEL_NAME_VALIDATION": "1"})


@pytest.mark.parametrize("text", ["a", "a=", "=m", "", "a=other"])
def test_what_is_no_alias_is_refused(text: str) -> None:
    with pytest.raises(AcmError, match="--model-alias"):
        served(text)
