"""How far an eviction walks: from a client's history to what the model reads, in an app without an engine."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from acmserve.context.session.history import adopt
from acmserve.context.session.render import render
from acmserve.context.session.state import SessionState
from acmserve.server.budget.budgets import PromptOverhead, set_budget
from tests.server.routes.test_budget import MESSAGES
from tests.support.server.acm_app import SESSIONS, make_client, make_server
from tests.support.walk import Walk, count_walk

# The issue asks for fewer than 1,000. `clear_tool_uses` has the most, `recency` the fewest: a third less.
MAX_CROSSINGS = 940


def walk(policy: str) -> tuple[Walk, Any]:
    """Thirty-odd steps that the server has never seen, over their budget: taken in, evicted, rendered."""
    server = make_server()
    make_client(server).post(SESSIONS, json={"session_id": "s", "messages": []})
    session = server.store.get("", "s")
    budget = server.budgets.parse({"max_tokens": 400, "low_watermark": 200, "policy": policy}, "budget")
    server.store.save(session, set_budget(session.state, budget))
    enforced: list[Any] = []

    def evict() -> None:
        state = adopt(session.state, MESSAGES).state
        enforced.append(asyncio.run(server.enforce(session, state, PromptOverhead(), "reuse")))
        render(enforced[0].state)

    return count_walk(evict), enforced[0]


@pytest.mark.parametrize("policy", ["chain", "cwl", "pi-cwl", "clear_tool_uses", "recency", "compact"])
def test_an_eviction_crosses_few_files(policy: str) -> None:
    walked, enforced = walk(policy)
    assert len(MESSAGES) > 70
    assert enforced.report["evicted_tokens"] > 400
    assert walked.crossings < MAX_CROSSINGS, str(walked)
    assert walked.into("context/transcript/outline.py") < 50, str(walked)


def test_a_crossing_is_a_call_from_another_file_of_the_product() -> None:
    """The measure itself: what matches a history digests each message in another file."""
    messages = [{"role": "user", "content": "Hello"}, {"role": "user", "content": "Again"}]
    walked = count_walk(lambda: adopt(SessionState(), messages))
    assert walked.ways["context/session/history.py", "context/alignment/normal_form.py"] == 2
    assert walked.crossings == walked.ways.total() < 40
    assert not any(caller == callee for caller, callee in walked.ways)
    assert count_walk(lambda: None).files == frozenset()
