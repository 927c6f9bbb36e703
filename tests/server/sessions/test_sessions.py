"""What the engine is told to forget: each redaction, with a request that was made after it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import aclosing
from dataclasses import dataclass, field
from typing import Any

import pytest
from vllm import SamplingParams

from acmserve.context.storage.session import Session
from acmserve.plan.request import SessionParams
from acmserve.server.context.branches import make_branch
from acmserve.server.context.server import ContextServer
from acmserve.server.exchange.exchange import CURRENT, Exchange, tap_generate
from acmserve.server.speculation.speculator import Speculator
from tests.support.server.acm_app import HISTORY, SESSIONS, make_client, make_server
from tests.support.speculation.two_minds import TwoMinds

REDACT = {"edits": [{"op": "redact", "messages": {"start": 1, "end": 2}}]}


@dataclass
class Output:
    """The last output of the engine, with its receipt."""

    kv_transfer_params: dict[str, Any] | None
    num_cached_tokens: int | None = 0
    num_cache_creation_tokens: int | None = 0
    finished: bool = True
    outputs: list[Any] = field(default_factory=list)


@pytest.fixture
def server() -> ContextServer:
    server = make_server()
    made = make_client(server).post(SESSIONS, json={"session_id": "s", "messages": HISTORY})
    made.raise_for_status()
    return server


def session_of(server: ContextServer, name: str = "s") -> Session:
    return server.store.get("", name)


def asked(server: ContextServer, session: Session) -> Exchange:
    """A request of the session, rendered and not yet sent."""
    return server.sessions.exchange(session, SessionParams(session.session_id), ())


def sent(server: ContextServer, session: Session) -> Exchange:
    exchange = asked(server, session)
    exchange.send(SamplingParams())
    return exchange


def answer(exchange: Exchange) -> None:
    receipt = {"computed_tokens": 3, "moved_tokens": 0, "prompt_tokens": 3, "kept_tokens": 0}
    receipt |= {"moves": [], "fidelity": "exact"}
    exchange.receive(Output({"acm": {"session_id": exchange.params.session_id, "receipt": receipt}}))


def redact(server: ContextServer, name: str = "s") -> None:
    server.sessions.forget(session_of(server, name))


def test_the_receipt_of_a_request_ends_what_it_carried(server: ContextServer) -> None:
    session = session_of(server)
    make_client(server).post(f"{SESSIONS}/s/edits", json=REDACT).raise_for_status()
    first = sent(server, session)
    assert first.params.forget
    assert sent(server, session).params.forget, "nobody has acknowledged it yet"
    answer(first)
    assert not sent(server, session).params.forget


def test_a_redaction_during_an_answer_goes_with_the_next_request(server: ContextServer) -> None:
    """The request under way carries the redaction before, and knows nothing of this one."""
    session = session_of(server)
    redact(server)
    first = sent(server, session)
    redact(server)
    answer(first)
    second = sent(server, session)
    assert second.params.forget
    answer(second)
    assert not sent(server, session).params.forget


def test_a_deletion_during_an_answer_goes_with_the_next_request(server: ContextServer) -> None:
    redact(server)
    first = sent(server, session_of(server))
    server.delete(session_of(server))
    answer(first)
    second = sent(server, server.store.create("", "s"))
    assert second.params.forget
    answer(second)
    assert not sent(server, session_of(server)).params.forget


def test_a_request_that_a_redaction_overtook_is_forgotten_too(server: ContextServer) -> None:
    """It was rendered with the text, and reaches the engine when that has forgotten already."""
    session = session_of(server)
    late = asked(server, session)
    redact(server)
    answer(sent(server, session))
    late.send(SamplingParams())
    answer(late)
    second = sent(server, session)
    assert second.params.forget
    answer(second)
    assert not sent(server, session).params.forget


@pytest.mark.parametrize(
    ("overtaken", "goes_on"), [("draft", True), ("exact", True), ("verify", True), ("rest", False)]
)
def test_each_part_of_an_answer_with_a_draft_that_a_redaction_overtook_is_forgotten(
    server: ContextServer, overtaken: str, goes_on: bool
) -> None:
    """The engine has forgotten when the next part comes, with the text. Behind the last one nothing comes."""
    session = session_of(server)

    class Overtaken(TwoMinds):
        async def generate(self, prompt: Any, sampling: Any, request_id: str, **kwargs: Any) -> AsyncGenerator[Any]:
            outputs = super().generate(prompt, sampling, request_id, **kwargs)
            first = await anext(outputs)
            if self.names[-1] == overtaken:
                redact(server)
                answer(sent(server, session))
            yield first
            async with aclosing(outputs):
                async for output in outputs:
                    yield output

    async def ask() -> Exchange:
        engine = Overtaken({640}.__contains__)
        speculator = Speculator(engine.generate, lambda: None, 4096, by_default=True)
        exchange = asked(server, session)
        exchange.served = None
        CURRENT.set(exchange)
        prompt = {"type": "token", "prompt_token_ids": [11 * at % 251 for at in range(630)]}
        sampling = SamplingParams(max_tokens=30, temperature=0, detokenize=False)
        outputs = tap_generate(engine.generate, 4096, speculator=speculator)(prompt, sampling, "r")
        assert [output.finished async for output in outputs][-1]
        assert engine.names == ["draft", "exact", "verify", "rest"]
        return exchange

    assert not asyncio.run(ask()).params.forget
    assert asked(server, session).params.forget is goes_on


def test_a_redaction_in_a_branch_goes_with_the_next_request_of_its_parent(server: ContextServer) -> None:
    """Both have one name in the engine, where the parent may move what the branch was served."""
    parent = session_of(server)
    branch = make_branch(server, parent, "look", "Look around.")
    server.sessions.forget(branch)
    first = sent(server, parent)
    assert first.params.forget
    answer(first)
    assert not sent(server, branch).params.forget
    server.sessions.forget(branch)
    server.delete(branch)
    assert sent(server, parent).params.forget
