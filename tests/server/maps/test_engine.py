"""A context map on the real engine: eight queries over one external context, of which the first four teach the map.

The scripted model says the answers, and what Distiller and Cartographer say under guided decoding. It has one layer, so
moved KV is exact: what the model makes of a prompt is compared between the fidelities.
"""

from __future__ import annotations

import json
import time
import uuid
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import pytest
from openai import OpenAI

from acmserve.server.exchange.map_slot import ALIGNMENT
from acmserve.server.options.map_options import MapOptions, placement_for
from tests.support import http
from tests.support.server.scripted_server import MODEL
from tests.support.server.scripts import ask, log_lines, new_session, tool_call

NUM_QUERIES, NUM_STEPS, BUDGET = 8, 4, 384
SYSTEM = "You answer questions about the log of a valley, which you can search."
# The template's tokens around a message, and the part of the last block that is not in the cache's index.
ROUGHLY = 48


def learned(number: int) -> list[str]:
    """What the two models say after query `number`: one item more, and from the second on a better first one."""
    candidate = {"section": "context_roadmap", "value": "lines", "transferability": "all", "rationale": "layout"}
    tags = {"item_tags": {f"cr-{n:05d}": "helpful" for n in range(1, number + 1)}} if number else {}
    text = f"lines {number * 40} to {number * 40 + 39} are readings {log_lines(2, first=number)}"
    operations: list[dict[str, str]] = [{"type": "ADD", "section": "context_roadmap", "content": text}]
    if number:
        operations.append(
            {"type": "REPLACE", "item_id": "cr-00001", "content": f"the log in {number + 1} parts {text}"}
        )
    return [
        json.dumps({"diagnosis": f"Query {number}.", **tags, "cache_candidates": [candidate]}),
        json.dumps({"reasoning": "Layout helps.", "operations": operations}),
    ]


@dataclass
class Agent:
    """A client that asks about one external context, in one session, and resends everything. Its cache is its own."""

    server: str
    fidelity: str
    placement: str
    salt: str = field(default_factory=new_session)
    context: str = field(default_factory=new_session)
    session: str = field(default_factory=new_session)
    messages: list[dict[str, Any]] = field(default_factory=lambda: [{"role": "system", "content": SYSTEM}])
    receipts: list[Mapping[str, int]] = field(default_factory=list)
    maps: list[Mapping[str, Any]] = field(default_factory=list)
    texts: list[str] = field(default_factory=list)
    seen: list[list[float]] = field(default_factory=list)

    def post(self, body: dict[str, Any]) -> Any:
        return http.post(f"{self.server}/v1/chat/completions", json=body).raise_for_status().json()

    def get(self, what: str = "") -> Any:
        url, headers = f"{self.server}/v1/acm/maps/{self.context}{what}", {"X-Cache-Salt": self.salt}
        return http.get(url, headers=headers).raise_for_status().json()

    def put(self, **settings: Any) -> None:
        url, headers = f"{self.server}/v1/acm/maps/{self.context}", {"X-Cache-Salt": self.salt}
        http.put(url, json=settings, headers=headers).raise_for_status()

    def query(self, number: int, taught: str | None = None) -> None:
        """One query. The call returns when the map has learned from it, or has the text that it is taught by hand."""
        self.messages.append(
            {"role": "user", "content": f"What was read in line {number}?\n{log_lines(6, first=number)}"}
        )
        answer = f"The reading of line {number} was {number * number % 97}."
        update = {"vllm_xargs": {"script_id": uuid.uuid4().hex, "script": learned(number)}}
        options = {"external_context_id": self.context, "placement": self.placement, "update": update}
        said = self.post(
            {
                "model": MODEL,
                "messages": self.messages,
                "session_id": self.session,
                "cache_salt": self.salt,
                "max_tokens": 100,
                "temperature": 0,
                "logprobs": True,
                "top_logprobs": 5,
                "acm": {"fidelity": self.fidelity, "map": options},
                "vllm_xargs": {"script_id": uuid.uuid4().hex, "script": [answer]},
            }
        )
        [choice] = said["choices"]
        assert choice["message"]["content"] == answer
        assert said["usage"]["prompt_tokens"] == said["acm"]["receipt"]["prompt_tokens"]
        self.seen.append([each["logprob"] for each in choice["logprobs"]["content"][0]["top_logprobs"]])
        self.receipts.append(said["acm"]["receipt"])
        self.maps.append(said["acm"]["map"])
        self.messages.append({"role": "assistant", "content": answer})
        if taught is not None:
            self.put(text=taught)
        deadline = time.monotonic() + 300
        while (found := self.get())["num_pending"]:
            assert time.monotonic() < deadline, found
            time.sleep(0.05)
        self.texts.append(found["text"])

    def new_tokens(self, index: int) -> int:
        """Tokens of a prompt that the one before had not: the last answer's end, the question, the template."""
        return int(self.receipts[index]["prompt_tokens"] - self.receipts[index - 1]["prompt_tokens"])


@pytest.fixture(scope="module")
def agents(scripted_server: str) -> dict[tuple[str, str], Agent]:
    """By placement and fidelity. The first one's map is kept by models, the others are taught the same by hand."""
    first = Agent(scripted_server, "reuse", "head")
    first.put(budget=BUDGET, evolve_steps=NUM_STEPS)
    for number in range(NUM_QUERIES):
        first.query(number)
    found = {("head", "reuse"): first}
    for placement, fidelity in (("head", "exact"), ("tail", "reuse"), ("tail", "exact")):
        agent = found[placement, fidelity] = Agent(scripted_server, fidelity, placement)
        agent.put(budget=BUDGET, evolve_steps=0)
        for number in range(NUM_QUERIES):
            agent.query(number, first.texts[number])
    return found


def test_a_map_evolves_for_its_steps_and_is_frozen_then(agents: dict[tuple[str, str], Agent]) -> None:
    agent = agents["head", "reuse"]
    view, history = agent.get(), agent.get("/history")["data"][1:]
    assert [change["error"] for change in history] == [""] * NUM_STEPS
    assert [[note["refused"] for note in change["operations"]] for change in history] == [[""]] + [["", ""]] * 3
    assert [change["diagnosis"] for change in history] == [f"Query {number}." for number in range(NUM_STEPS)]
    assert (view["num_steps"], view["frozen"], view["num_pending"]) == (NUM_STEPS, True, 0)
    assert view["tokens"] <= BUDGET
    assert view["items"][0]["text"].startswith("the log in 4 parts")
    assert view["items"][0]["score"] == 3
    assert [told["version"] for told in agent.maps] == [1, 2, 3, 4, *[5] * (NUM_QUERIES - NUM_STEPS)]


@pytest.mark.parametrize("placement", ["head", "tail"])
def test_reuse_is_exact_on_one_layer(agents: dict[tuple[str, str], Agent], placement: str) -> None:
    reused, exact = agents[placement, "reuse"], agents[placement, "exact"]
    assert [r["prompt_tokens"] for r in reused.receipts] == [r["prompt_tokens"] for r in exact.receipts]
    for number in range(NUM_QUERIES):
        assert reused.seen[number] == pytest.approx(exact.seen[number], abs=1e-4), number


def test_head_an_update_computes_at_most_the_slot_and_what_is_new(agents: dict[tuple[str, str], Agent]) -> None:
    agent = agents["head", "reuse"]
    for index in range(1, NUM_QUERIES):
        receipt, new = agent.receipts[index], agent.new_tokens(index)
        slot = BUDGET if index <= NUM_STEPS else 0
        assert receipt["computed_tokens"] <= slot + new + ROUGHLY, (index, receipt)
        behind = [move for move in receipt["moves"] if move["dst_start"] >= ALIGNMENT + BUDGET]
        assert all(move["dst_start"] == move["src_start"] for move in behind)
    assert sum(receipt["moved_tokens"] for receipt in agent.receipts[1 : NUM_STEPS + 1]) > 0


@pytest.mark.parametrize("fidelity", ["reuse", "exact"])
def test_tail_an_update_computes_nothing_old(agents: dict[tuple[str, str], Agent], fidelity: str) -> None:
    agent = agents["tail", fidelity]
    for index in range(1, NUM_QUERIES):
        receipt = agent.receipts[index]
        assert receipt["computed_tokens"] <= agent.new_tokens(index) + ROUGHLY, (index, receipt)
        assert receipt["moved_tokens"] == 0


def test_the_default_placement_is_the_one_that_computes_least(agents: dict[tuple[str, str], Agent]) -> None:
    computed = {key: sum(r["computed_tokens"] for r in agent.receipts) for key, agent in agents.items()}
    for fidelity, other in (("reuse", "tail"), ("exact", "head")):
        default = placement_for(MapOptions("c"), can_move=fidelity != "exact")
        assert computed[default, fidelity] < computed[other, fidelity], computed


def test_head_the_slot_has_one_length_whatever_the_map_says(agents: dict[tuple[str, str], Agent]) -> None:
    """The prompt grows by the conversation alone, also where the map is updated."""
    agent = agents["head", "exact"]
    growth = [agent.new_tokens(index) for index in range(1, NUM_QUERIES)]
    assert max(growth) - min(growth) < 30
    assert agent.receipts[0]["prompt_tokens"] < BUDGET + ALIGNMENT + 300


def test_the_next_session_reads_the_map_and_a_frozen_one_asks_no_model(agents: dict[tuple[str, str], Agent]) -> None:
    first = agents["head", "reuse"]
    for _ in range(2):
        second = Agent(first.server, "exact", "head", first.salt, first.context)
        second.query(1)
    assert second.maps[0]["version"] == first.maps[-1]["version"]
    assert second.maps[0]["frozen"]
    assert second.get("/history") == first.get("/history")
    assert second.get()["num_steps"] == NUM_STEPS
    # System text and map are the same tokens: another session finds them in the cache.
    assert second.receipts[0]["kept_tokens"] >= BUDGET


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
def test_with_wait_a_question_reads_what_the_one_before_taught(scripted_client: OpenAI, stream: bool) -> None:
    """Nobody polls between the two. The second is of another session."""
    context = new_session()
    versions = []
    for number in range(2):
        update = {"vllm_xargs": {"script_id": uuid.uuid4().hex, "script": learned(number)}}
        acm = {"map": {"external_context_id": context, "evolve_steps": 9, "wait": True, "update": update}}
        question = [{"role": "user", "content": f"What was read in line {number}?"}]
        answer = ask(scripted_client, new_session(), question, ["It was 9."], stream=stream, acm=acm)
        versions.append(answer.acm["map"]["version"])
    assert versions == [0, 1]


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
def test_a_tool_loop_under_a_budget_reads_a_map_and_teaches_it(scripted_client: OpenAI, stream: bool) -> None:
    """Every step of the turn has the same map in its slot, and the budget counts it."""
    context = new_session()
    update = {"vllm_xargs": {"script_id": uuid.uuid4().hex, "script": learned(0)}}
    acm = {
        "fidelity": "reuse",
        "budget": {"max_tokens": 3000, "policy": "recency"},
        "map": {"external_context_id": context, "budget": BUDGET, "evolve_steps": 1, "update": update},
    }
    question = f"The log:\n{log_lines(20)}\nend of the log. What was read in line 3?"
    history = [{"role": "system", "content": SYSTEM}, {"role": "user", "content": question}]
    look = tool_call("search_context", query="line 3:", max_results=1, context_size=50)
    answer = ask(scripted_client, new_session(), history, [look, "It was 9."], stream=stream, acm=acm)
    assert answer.acm["stopped_by"] == "answer"
    assert answer.acm["map"] == {
        "external_context_id": context,
        "placement": "head",
        "version": 0,
        "tokens": answer.acm["map"]["tokens"],
        "budget": BUDGET,
        "frozen": False,
    }
    first, second = answer.receipts
    assert second["kept_tokens"] >= first["prompt_tokens"] - ROUGHLY
    counted = answer.acm["budget"]["tokens"]
    assert abs(counted - second["prompt_tokens"]) < ROUGHLY
    deadline = time.monotonic() + 300
    url = f"{str(scripted_client.base_url).rstrip('/')}/acm/maps/{context}"
    while not (view := http.get(url).raise_for_status().json())["frozen"]:
        assert time.monotonic() < deadline, view
        time.sleep(0.05)
    assert [item["id"] for item in view["items"]] == ["cr-00001"]
