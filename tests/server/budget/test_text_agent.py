"""Agents that annotate nothing, on the real engine: results in the user's name, and the default policy."""

from __future__ import annotations

import json
import uuid
from itertools import pairwise
from typing import Any

import pytest

from acmserve.context.transcript.omissions import USERS_LEFT_OUT
from tests.support import http
from tests.support.server.scripted_server import MODEL
from tests.support.server.scripts import log_lines, new_session

BUDGET = {"max_tokens": 1300, "low_watermark": 800}
TASK = {"role": "user", "content": "Find out who kept the mill."}


def worked(url: str, num_turns: int, **acm: Any) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """What the answers say, and the messages that the model sees in the end. The client resends everything."""
    session = new_session()
    messages = [{"role": "system", "content": "You run commands."}, TASK]
    said = []
    for number in range(num_turns):
        line = f"THOUGHT: look at part {number}.\n\n```bash\ncat part{number}\n```"
        body = {
            "model": MODEL,
            "messages": messages,
            "session_id": session,
            "cache_salt": session,
            "temperature": 0,
            "max_tokens": 100,
            "acm": {"budget": BUDGET} | acm,
            "vllm_xargs": {"script_id": uuid.uuid4().hex, "script": [line]},
        }
        answer = http.post(f"{url}/v1/chat/completions", json=body)
        assert answer.status_code == 200, answer.text
        said.append(answer.json()["acm"])
        messages.append({"role": "assistant", "content": line})
        output = log_lines(6, first=number * 50)
        messages.append({"role": "user", "content": f"<returncode>0</returncode>\n<output>\n{output}\n</output>"})
    context = http.get(f"{url}/v1/acm/sessions/{session}/context", headers={"X-Cache-Salt": session}).json()
    return said, [item["message"] for item in context["messages"] if item["message"] is not None]


def test_the_budget_holds_and_every_stage_says_what_it_did(scripted_server: str) -> None:
    said, shown = worked(scripted_server, 24)
    assert max(acm["receipt"]["prompt_tokens"] for acm in said) <= BUDGET["max_tokens"]
    assert all(acm["budget"]["policy"] == "chain" for acm in said)
    assert all(acm["budget"]["unmet"] is None for acm in said)
    evictions = [acm["budget"] for acm in said if acm["budget"]["evicted_tokens"]]
    assert 2 <= len(evictions) <= 8
    for budget in evictions:
        stages = {stage["policy"]: stage for stage in budget["stages"]}
        assert list(stages) == ["cwl", "clear_tool_uses", "recency", "compact", "user_messages"]
        assert stages["cwl"]["reason"] == "no episode is marked"
        assert sum(stage["evicted_tokens"] for stage in budget["stages"]) == budget["evicted_tokens"]
    assert shown[1] == TASK
    assert [message["role"] for message in shown[1:]] == ["user", "assistant"] * (len(shown[1:]) // 2)
    for before, after in pairwise(said):
        if not after["budget"]["evicted_tokens"]:
            assert after["receipt"]["kept_tokens"] >= before["receipt"]["prompt_tokens"] - 1


def test_without_them_the_budget_of_the_same_agent_is_unmet(scripted_server: str) -> None:
    """The control: results that count as turns of the user stay under `recency`, and the answer says so."""
    said, _ = worked(scripted_server, 12, observations="off", budget=BUDGET | {"policy": "recency"})
    assert any(acm["budget"]["unmet"] is not None for acm in said)
    assert max(acm["receipt"]["prompt_tokens"] for acm in said) > BUDGET["max_tokens"]


def test_what_users_said_goes_where_nothing_else_is_left(scripted_server: str) -> None:
    """The same agent under the default policy: the task and the newest turn stay, and the answer says what went."""
    said, shown = worked(scripted_server, 12, observations="off")
    assert all(acm["budget"]["unmet"] is None for acm in said)
    assert max(acm["receipt"]["prompt_tokens"] for acm in said) <= BUDGET["max_tokens"]
    freed = [stage["evicted_tokens"] for acm in said for stage in acm["budget"].get("stages", [])[-1:]]
    assert any(freed)
    assert shown[1] == TASK
    assert [message["content"] for message in shown].count(USERS_LEFT_OUT) == 1


@pytest.mark.parametrize("value", ["all", [], [""], {"user": True}])
def test_a_bad_rule_is_refused_by_name(scripted_server: str, value: Any) -> None:
    body = {"model": MODEL, "messages": [TASK], "session_id": new_session(), "acm": {"observations": value}}
    answer = http.post(f"{scripted_server}/v1/chat/completions", json=body)
    assert answer.status_code == 400, json.dumps(value)
    assert answer.json()["error"]["param"] == "acm.observations"
