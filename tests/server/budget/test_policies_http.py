"""A policy of another package over HTTP: named by the operator it is offered and carried out, else refused."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from starlette.testclient import TestClient

from acmserve.context.eviction import registry
from acmserve.context.session.history import adopt
from acmserve.errors import InvalidRequest
from acmserve.server.budget.budgets import PromptOverhead, load_policies
from acmserve.server.context.server import ContextServer
from acmserve.server.routes.schemas.budget import BudgetRequest
from tests.server.routes.test_budget import MESSAGES
from tests.support.context.lru_policy import LeastRecentlyUsed
from tests.support.server.acm_app import SESSIONS, make_client, make_server

NAME = "tests.support.context.lru_policy:LeastRecentlyUsed"
BUDGET = {"max_tokens": 400, "low_watermark": 200, "policy": NAME, "spare_tools": ["edit"]}


@pytest.fixture(autouse=True)
def _as_it_was(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry, "_loaded", {})


@pytest.fixture
def server() -> ContextServer:
    return make_server()


def put(client: TestClient, budget: dict[str, Any]) -> Any:
    client.post(SESSIONS, json={"session_id": "s", "messages": MESSAGES})
    return client.put(f"{SESSIONS}/s/budget", json=budget)


def test_a_client_cannot_name_a_module(server: ContextServer) -> None:
    answer = put(make_client(server), {"policy": NAME})
    assert answer.status_code == 400
    error = answer.json()["error"]
    assert error["param"] == "budget.policy"
    assert "Choose chain, cwl, pi-cwl, clear_tool_uses, recency, compact, user_messages." in error["remedy"]
    assert "--eviction-policy MODULE:CLASS" in error["remedy"]
    assert put(make_client(server), {"spare_tools": ["edit"]}).json()["error"]["param"] == "spare_tools"


def test_what_the_operator_loaded_is_offered_and_carried_out(server: ContextServer) -> None:
    load_policies(f" {NAME} ,", None)
    assert NAME in BudgetRequest.model_json_schema()["properties"]["policy"]["anyOf"][0]["enum"]
    client = make_client(server)
    answer = put(client, BUDGET)
    assert answer.status_code == 200, answer.text
    assert answer.json()["budget"] == BUDGET
    session = server.store.get("", "s")
    state = adopt(session.state, MESSAGES).state
    enforced = asyncio.run(server.enforce(session, state, PromptOverhead(), "reuse"))
    assert enforced.report is not None
    assert enforced.report["evicted_tokens"] > 0
    assert all(item["episode"].startswith("calls of ") for item in enforced.report["evicted"])
    assert "calls of edit" not in {item["episode"] for item in enforced.report["evicted"]}
    wrong = client.put(f"{SESSIONS}/s/budget", json=BUDGET | {"spare_tools": "edit"})
    assert (wrong.status_code, wrong.json()["error"]["param"]) == (400, "budget.spare_tools")


def test_the_servers_own_budget_names_one_too() -> None:
    load_policies("", "80k")
    assert registry.known() == registry.POLICIES
    load_policies("", {"policy": NAME})
    assert registry.find(NAME) is LeastRecentlyUsed
    with pytest.raises(InvalidRequest, match=r"--budget\.policy: 'no_such:Lru' cannot be loaded"):
        load_policies("", {"policy": "no_such:Lru"})
