"""What a restart of the server keeps: one server writes two sessions, a second one on the same folder goes on."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pytest
from openai import OpenAI

from tests.support import http
from tests.support.server.chat_session import Session
from tests.support.server.running_server import running_server
from tests.support.server.scripted_server import FLAGS, write_model
from tests.support.server.working_agent import Agent

BUDGET = {"max_tokens": 3000, "low_watermark": 1800, "policy": "cwl"}
SERVER_BUDGET = '{"max_tokens": 2000, "low_watermark": 1400}'


@dataclass(frozen=True)
class Restarted:
    """Both sessions on the second server, and what the first one showed of them at last."""

    server: str
    folded: Session
    agent: Agent
    folded_before: Any
    agent_before: Any


@pytest.fixture(scope="module")
def restarted(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Restarted]:
    folder = tmp_path_factory.mktemp("restart")
    model = write_model(folder / "model")
    flags = [*FLAGS, "--data-dir", str(folder / "data"), "--budget", SERVER_BUDGET]
    with (
        running_server(model, folder / "first.log", flags, tiny=True) as server,
        OpenAI(base_url=f"{server}/v1", api_key="-") as client,
    ):
        folded = Session(client, server)
        folded.chat()
        first, *_ = folded.cut()
        folded.edit({"op": "fold", "fragment_id": first})
        agent = Agent(server, BUDGET, fidelity="exact")
        for number in range(4):
            agent.task(number)
        folded_before, agent_before = folded.context, agent.get("context")
    with (
        running_server(model, folder / "second.log", flags, tiny=True) as server,
        OpenAI(base_url=f"{server}/v1", api_key="-") as client,
    ):
        folded.client, folded.url = client, f"{server}/v1/acm/sessions/{folded.name}"
        agent.server = server
        yield Restarted(server, folded, agent, folded_before, agent_before)


def without_kv(context: Any) -> Any:
    return context | {"messages": [message | {"kv": None} for message in context["messages"]]}


def test_a_fold_survives(restarted: Restarted) -> None:
    """The transcript with its fold; its KV is computed anew."""
    session = restarted.folded
    assert without_kv(session.context) == without_kv(restarted.folded_before)
    session.say("And now?")
    receipt = session.chat()
    assert receipt["computed_tokens"] == receipt["prompt_tokens"]
    assert session.context["fragments"][0]["state"] == "folded"


def test_what_was_evicted_stays_evicted(restarted: Restarted) -> None:
    """The account of the session is built anew; without its own budget that of the server holds."""
    agent = restarted.agent
    assert agent.evictions
    assert without_kv(agent.get("context"))["messages"] == without_kv(restarted.agent_before)["messages"]
    assert agent.get("budget")["source"] == "session"
    for number in range(4, 8):
        agent.task(number)
    http.delete(f"{restarted.server}/v1/acm/sessions/{agent.session}/budget").raise_for_status()
    assert agent.get("budget")["source"] == "server"
    agent.messages.append({"role": "user", "content": "Go on."})
    said = agent.turn("Gladly.", budget=None)
    assert said["budget"]["max_tokens"] == 2000
    assert said["receipt"]["prompt_tokens"] <= 2000
    assert max(step["receipt"]["prompt_tokens"] for step in agent.steps) <= BUDGET["max_tokens"]
