"""Work ahead on the real engine: the turn after a foreseen edit computes about what an append computes."""

from __future__ import annotations

import time
import uuid
from dataclasses import dataclass, field
from typing import Any

import pytest
from openai import DefaultHttpxClient, OpenAI

from tests.support import http
from tests.support.server.scripted_server import MODEL
from tests.support.server.scripts import log_lines, new_session

BUDGET = {"max_tokens": 2400, "low_watermark": 1200, "policy": "recency"}
NUM_LINES = 14
NUM_BROUGHT = 4


@dataclass
class Chat:
    """A client without tools, who resends everything. Its first words are its own, so it finds no other's context."""

    server: str
    precompute: str
    stream: bool = False
    session: str = field(default_factory=new_session)
    messages: list[dict[str, Any]] = field(default_factory=list)
    said: list[dict[str, Any]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.messages.append({"role": "system", "content": f"{self.session}: be brief."})

    def ask(self, text: str, answer: str | None = None, **acm: Any) -> str:
        """One turn. With an `answer` the scripted model gives it, else the model says what it will."""
        self.messages.append({"role": "user", "content": text})
        xargs = {"vllm_xargs": {"script_id": uuid.uuid4().hex, "script": [answer]}} if answer else {}
        options = {"fidelity": "exact", "precompute": self.precompute} | acm
        plain = DefaultHttpxClient(verify=False)
        with OpenAI(base_url=f"{self.server}/v1", api_key="unused", max_retries=0, http_client=plain) as client:
            chat: dict[str, Any] = {
                "model": MODEL,
                "messages": self.messages,
                "max_tokens": 600 if answer else 12,
                "temperature": 0,
                "extra_body": {"session_id": self.session, "acm": options, **xargs},
            }
            content, acm_said = _streamed(client, chat) if self.stream else _whole(client, chat)
        self.said.append(acm_said)
        self.messages.append({"role": "assistant", "content": content})
        return content

    @property
    def receipt(self) -> dict[str, Any]:
        receipt: dict[str, Any] = self.said[-1]["receipt"]
        return receipt

    def url(self, path: str = "") -> str:
        return f"{self.server}/v1/acm/sessions/{self.session}{path}"

    def wait_until_idle(self) -> None:
        """Until the server has computed what may come next in this session."""
        for _ in range(6000):
            if not http.get(self.url()).json()["precompute"]["working"]:
                return
            time.sleep(0.05)
        pytest.fail("the server never ends computing what may come next")

    def shown(self) -> list[dict[str, Any]]:
        found = http.get(self.url("/context")).json()["messages"]
        return [message["message"] for message in found if message["message"] is not None]


def _whole(client: OpenAI, chat: dict[str, Any]) -> tuple[str, dict[str, Any]]:
    response = client.chat.completions.create(**chat)
    return response.choices[0].message.content or "", response.model_extra["acm"]


def _streamed(client: OpenAI, chat: dict[str, Any]) -> tuple[str, dict[str, Any]]:
    chunks = list(client.chat.completions.create(stream=True, **chat))
    said = [chunk.model_extra["acm"] for chunk in chunks if chunk.model_extra and "acm" in chunk.model_extra]
    return "".join(choice.delta.content or "" for chunk in chunks for choice in chunk.choices), said[-1]


def stock_answer(server: str, messages: list[dict[str, Any]]) -> str:
    """What the engine says to these messages without any session, from an empty cache."""
    with OpenAI(base_url=f"{server}/v1", api_key="unused", max_retries=0) as client:
        response = client.chat.completions.create(
            model=MODEL,
            messages=messages,  # type: ignore[arg-type]
            max_tokens=12,
            temperature=0,
            extra_body={"cache_salt": uuid.uuid4().hex},
        )
    return response.choices[0].message.content or ""


def until_evicted(chat: Chat) -> None:
    """Turns of one size until the budget takes something out. The client brings the first ones with it."""
    for number in range(14):
        question, answer = f"What was read on day {number}?", log_lines(NUM_LINES, first=number * 100)
        if number < NUM_BROUGHT:
            chat.messages += [{"role": "user", "content": question}, {"role": "assistant", "content": answer}]
            continue
        chat.ask(question, answer, budget=BUDGET)
        if chat.said[-1]["budget"]["evicted_tokens"]:
            return
        chat.wait_until_idle()
    pytest.fail("nothing was evicted")


@pytest.mark.parametrize(("precompute", "stream"), [("predict", True), ("off", False)])
def test_an_eviction_that_was_foreseen_costs_an_append(scripted_server: str, precompute: str, stream: bool) -> None:
    chat = Chat(scripted_server, precompute, stream)
    until_evicted(chat)
    assert chat.said[-1]["budget"]["evicted_tokens"] > 800
    receipt = chat.receipt
    if precompute == "off":
        assert receipt["precomputed_tokens"] == 0
        assert receipt["computed_tokens"] > 700
        return
    assert receipt["precomputed_tokens"] > 600
    assert receipt["moved_tokens"] == 0
    assert receipt["computed_tokens"] <= 64, receipt
    answer = chat.ask("And now?", budget=BUDGET)
    assert answer == stock_answer(chat.server, chat.shown()[:-1])
    assert http.get(chat.url()).json()["precompute"]["mode"] == "predict"


def test_edits_that_were_prepared_cost_an_append(scripted_server: str) -> None:
    chat = Chat(scripted_server, "off")
    chat.ask(f"Read this: {log_lines(40)}", "Read.")
    chat.ask(f"And this: {log_lines(40, first=50)}", "Read, too.")
    edits = {"edits": [{"op": "fold", "messages": {"start": 1, "end": 2}}]}
    before = chat.shown()
    made = http.post(chat.url("/prepare"), json=edits)
    assert made.status_code == 202
    for _ in range(6000):
        prepared = http.get(f"{scripted_server}{made.headers['Location']}").json()
        if prepared["status"] != "pending":
            break
        time.sleep(0.05)
    assert prepared["status"] == "ready", prepared
    assert prepared["ready_tokens"] > prepared["computed_tokens"] > 700
    assert chat.shown() == before
    http.post(chat.url("/edits"), json=edits).raise_for_status()
    answer = chat.ask("What did you read?")
    assert chat.receipt["precomputed_tokens"] > 700
    assert chat.receipt["computed_tokens"] <= 48, chat.receipt
    assert answer == stock_answer(chat.server, chat.shown()[:-1])


def test_a_context_that_was_moved_is_exact_after_a_pause(scripted_server: str) -> None:
    """Also for a next turn that would move: what is ready goes first."""
    chat = Chat(scripted_server, "heal")
    chat.ask(f"Read this: {log_lines(40, first=7000)}", "Read.", fidelity="reuse")
    chat.ask(f"And this: {log_lines(40, first=8000)}", "Read, too.", fidelity="reuse")
    http.post(chat.url("/edits"), json={"edits": [{"op": "fold", "messages": {"start": 1, "end": 2}}]})
    chat.ask("What did you read?", "Logs.", fidelity="reuse")
    assert chat.receipt["moved_tokens"] > 700
    chat.wait_until_idle()
    answer = chat.ask("Which?", fidelity="reuse")
    assert chat.receipt["moved_tokens"] == 0
    assert chat.receipt["precomputed_tokens"] > 700
    assert chat.receipt["computed_tokens"] <= 48, chat.receipt
    assert answer == stock_answer(chat.server, chat.shown()[:-1])


def test_a_request_that_comes_drops_what_waits_for_its_session(scripted_server: str) -> None:
    """While another client is served a preparation waits, so the next request of its session always comes first."""
    chat = Chat(scripted_server, "off")
    chat.ask(f"Read this: {log_lines(20)}", "Read.")
    chat.ask(f"And this: {log_lines(20, first=50)}", "Read, too.")
    edits = {"edits": [{"op": "fold", "messages": {"start": 1, "end": 2}}]}
    with OpenAI(base_url=f"{scripted_server}/v1", api_key="unused", max_retries=0) as client:
        other = client.chat.completions.create(
            model=MODEL,
            messages=[{"role": "user", "content": "Go on and on."}],
            max_tokens=30_000,
            stream=True,
            extra_body={"ignore_eos": True},
        )
        next(iter(other))
        made = http.post(chat.url("/prepare"), json=edits)
        assert http.get(f"{scripted_server}{made.headers['Location']}").json()["status"] == "pending"
        chat.ask("What did you read?", "Logs.")
        other.close()
    prepared = http.get(f"{scripted_server}{made.headers['Location']}").json()
    assert (prepared["status"], prepared["reason"]) == ("dropped", "interrupted")


def test_a_request_that_comes_while_its_session_is_prepared_is_not_held_up(scripted_server: str) -> None:
    """A long context is prepared while a request of the session arrives at once. Neither fails."""
    chat = Chat(scripted_server, "off")
    chat.ask(f"Read this: {log_lines(20)}", "Read.")
    for part in range(3):
        chat.ask(f"And this: {log_lines(150, first=1000 * part)}", "Read, too.")
    edits = {"edits": [{"op": "fold", "messages": {"start": 1, "end": 2}}]}
    made = http.post(chat.url("/prepare"), json=edits)
    chat.ask("What did you read?", "Logs.")
    prepared = http.get(f"{scripted_server}{made.headers['Location']}").json()
    assert (prepared["status"], prepared["reason"]) in {("dropped", "interrupted"), ("ready", None)}
    assert chat.receipt["computed_tokens"] <= 64
