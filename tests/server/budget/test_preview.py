"""A count looks at a session through a copy of its meter: later evictions are those of a session that none counted."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from acmserve.context.session.budget import Budget
from acmserve.context.session.history import adopt, append_answer, end_turn
from acmserve.server.budget.budgets import Budgets, PromptOverhead
from tests.support.server.acm_app import lines, make_server
from tests.support.server.clients import ChatClient

NUM_TURNS = 14


def play(policy: str, *, is_counted: bool) -> tuple[list[Any], int]:
    """Turns of an agent under a budget. What each was told and what was measured, and how many counts would evict."""
    server = make_server()
    server.budgets.default = budget = server.budgets.parse({"max_tokens": 600, "policy": policy}, "budget")
    session, client, seen, num_evicting = server.store.create("", "s"), ChatClient(system="", tools=()), [], 0
    for number in range(NUM_TURNS):
        client.call("grep", lines(6, f"page {number}"), word=f"w{number}").user(f"And page {number + 1}?")
        state = adopt(session.state, client.body["messages"]).state
        if is_counted:
            longer = ChatClient(system="", messages=[*client.messages]).call("grep", lines(60, "not sent"), word="x")
            for body in (client.body, longer.body):
                counted = adopt(session.state, body["messages"]).state
                shown, _ = server.preview(session, counted, PromptOverhead(), None)
                num_evicting += shown.omissions != session.state.omissions
        enforced = asyncio.run(server.enforce(session, state, PromptOverhead(), None))
        seen.append((enforced.report, enforced.state.omissions, measured(server.budgets, session, budget)))
        assert enforced.on_served is not None
        enforced.on_served(enforced.report["tokens"] + number % 3)  # type: ignore[index]
        message = {"role": "assistant", "content": f"Page {number} is read."}
        server.store.save(session, end_turn(append_answer(enforced.state, message)))
        client.answer(message["content"])
        server.budgets.meter(session).check_integrity()
    return seen, num_evicting


def measured(budgets: Budgets, session: Any, budget: Budget) -> Any:
    return budgets.measure(budgets._held(session), budget, can_move=True)


@pytest.mark.parametrize("policy", ["chain", "cwl", "clear_tool_uses", "recency"])
def test_a_session_that_is_counted_is_evicted_as_one_that_is_not(policy: str) -> None:
    counted, num_evicting = play(policy, is_counted=True)
    plain, _ = play(policy, is_counted=False)
    assert counted == plain
    assert num_evicting > NUM_TURNS, "most counts plan an eviction that never comes"
    assert any(report["evicted_tokens"] for report, *_ in plain), "the budget was met by something"


def test_counts_on_the_sessions_own_meter_would_be_told(monkeypatch: pytest.MonkeyPatch) -> None:
    """The control."""
    monkeypatch.setattr(Budgets, "apart", lambda budgets, session: budgets)
    assert play("recency", is_counted=True)[0] != play("recency", is_counted=False)[0]
