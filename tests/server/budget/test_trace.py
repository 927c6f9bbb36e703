"""A budget on the real engine: an agent works through tasks in one conversation, marks its episodes with `delimiter`,
and no prompt exceeds the budget. A scripted model says the calls. The client answers its own tools, as clients do."""

from __future__ import annotations

import uuid
from typing import Any

import pytest
from openai import OpenAI

from acmserve.context.eviction.compact import HEAD
from tests.support import http
from tests.support.context.valid_chat import orphans
from tests.support.server.scripted_server import MODEL
from tests.support.server.scripts import log_lines, new_session
from tests.support.server.working_agent import SYSTEM, Agent

BUDGET = {"max_tokens": 2600, "low_watermark": 1700, "policy": "cwl"}
NUM_TASKS = 9


@pytest.fixture(scope="module")
def worked(scripted_server: str) -> Agent:
    """Twenty-seven requests, about three steps of the model in each."""
    agent = Agent(scripted_server, BUDGET)
    for number in range(NUM_TASKS):
        agent.task(number)
    return agent


def test_no_prompt_exceeds_the_budget(worked: Agent) -> None:
    prompts = [step["receipt"]["prompt_tokens"] for step in worked.steps]
    assert worked.num_turns == 3 * NUM_TASKS
    assert max(prompts) <= BUDGET["max_tokens"]
    assert len(worked.evictions) >= 2
    assert all(step["budget"]["unmet"] is None for step in worked.steps)


def test_what_is_counted_is_what_is_served(worked: Agent) -> None:
    """Once calibrated, a prompt is counted to within a few tokens before it is made."""
    errors = [step["receipt"]["prompt_tokens"] - step["budget"]["tokens"] for step in worked.steps[1:]]
    assert max(map(abs, errors)) <= 60, errors
    assert sum(map(abs, errors)) / len(errors) <= 15, errors


def test_a_streamed_loop_is_counted_as_well(scripted_server: str) -> None:
    """The receipt comes with every token of a stream, and counts once."""
    agent = Agent(scripted_server, BUDGET, stream=True)
    for number in range(2):
        agent.task(number)
    errors = [step["receipt"]["prompt_tokens"] - step["budget"]["tokens"] for step in agent.steps[1:]]
    assert len(errors) >= 8
    assert max(map(abs, errors)) <= 60, errors
    assert not agent.evictions


def test_receipts_sum_up(worked: Agent) -> None:
    for step in worked.steps:
        receipt = step["receipt"]
        assert receipt["kept_tokens"] + receipt["moved_tokens"] + receipt["computed_tokens"] == receipt["prompt_tokens"]


def test_evictions_are_rare_and_batched(worked: Agent) -> None:
    """Down to the low watermark, then many steps without one."""
    for before, after in zip(worked.evictions, worked.evictions[1:], strict=False):
        assert after - before >= 5
    for index in worked.evictions:
        assert worked.steps[index]["budget"]["tokens"] <= BUDGET["low_watermark"]


def test_moves_make_an_eviction_cost_its_notes(worked: Agent) -> None:
    """Steady state: computed tokens stay within 1.2 times the new ones, the turns after an eviction included."""
    first = worked.evictions[0]
    steady = range(first, len(worked.steps))
    computed = sum(worked.steps[index]["receipt"]["computed_tokens"] for index in steady)
    new = sum(worked.num_new(index) for index in steady)
    assert computed <= 1.2 * new, (computed, new)
    assert sum(worked.steps[index]["receipt"]["moved_tokens"] for index in worked.evictions) > 0


def test_nothing_is_orphaned_and_descriptions_stay(worked: Agent) -> None:
    shown = [message["message"] for message in worked.get("context")["messages"] if message["message"] is not None]
    assert orphans([message | {"role": message["role"]} for message in shown]) == []
    users = [message["content"] for message in shown if message["role"] == "user"]
    assert users == [message["content"] for message in worked.messages if message["role"] == "user"]
    texts = " ".join(str(message.get("content")) for message in shown)
    assert "[explored find-0: mill 0 is in line 0]" in texts


def test_episodes_are_listed_with_what_is_left(worked: Agent) -> None:
    episodes = {episode["name"]: episode for episode in worked.get("episodes")["data"]}
    assert {f"find-{n}" for n in range(NUM_TASKS)} | {f"set-{n}" for n in range(NUM_TASKS)} <= episodes.keys()
    assert episodes["find-0"]["state"] == episodes["set-0"]["state"] == "evicted"
    assert episodes[f"find-{NUM_TASKS - 1}"]["state"] == "ended"
    assert episodes[f"set-{NUM_TASKS - 1}"]["depends_on"] == [f"find-{NUM_TASKS - 1}"]


def test_a_client_that_resends_everything_finds_its_prefix(worked: Agent) -> None:
    """The same edits are replayed to the byte: the next turn computes what is new."""
    worked.messages.append({"role": "user", "content": "Is all done?"})
    step = worked.turn("All mills are set.")["steps"][-1]
    assert step["budget"]["evicted_tokens"] == 0
    assert step["receipt"]["computed_tokens"] <= 48


def test_an_ordinary_chat_has_a_budget_too(scripted_server: str) -> None:
    """Streamed, without tools or annotations: the oldest answers go, the user's questions stay."""
    session, history = new_session(), [{"role": "system", "content": SYSTEM}]
    budget = {"max_tokens": 450, "low_watermark": 300, "policy": "recency"}
    said = []
    with OpenAI(base_url=f"{scripted_server}/v1", api_key="unused", max_retries=0) as client:
        for number in range(10):
            history.append({"role": "user", "content": f"What was read on day {number}?"})
            answer = log_lines(3, first=number * 100)
            xargs = {"script_id": uuid.uuid4().hex, "script": [answer]}
            body = {"session_id": session, "acm": {"fidelity": "reuse", "budget": budget}, "vllm_xargs": xargs}
            arguments: dict[str, Any] = {"model": MODEL, "messages": history, "max_tokens": 600, "extra_body": body}
            chunks = list(client.chat.completions.create(**arguments, stream=True))
            said += [chunk.model_extra["acm"] for chunk in chunks if chunk.model_extra and "acm" in chunk.model_extra]
            history.append({"role": "assistant", "content": answer})
    assert len(said) == 10
    assert max(acm["receipt"]["prompt_tokens"] for acm in said) <= 450
    evictions = [index for index, acm in enumerate(said) if acm["budget"]["evicted_tokens"]]
    assert len(evictions) >= 2
    for index in evictions:
        receipt = said[index]["receipt"]
        num_new = receipt["prompt_tokens"] - said[index - 1]["receipt"]["prompt_tokens"]
        num_new += said[index]["budget"]["evicted_tokens"]
        assert receipt["computed_tokens"] <= max(64, 1.2 * num_new)
    url = f"{scripted_server}/v1/acm/sessions/{session}/context"
    shown = [message["message"] for message in http.get(url).json()["messages"] if message["message"]]
    assert sum(message["role"] == "user" for message in shown) == 10


def test_under_compact_a_chat_stays_small_and_replays_its_summary(scripted_server: str) -> None:
    """The served model writes the summary. Turns behind it find their prefix, and the next summary is made of it."""
    session, history = new_session(), [{"role": "system", "content": SYSTEM}]
    budget = {"max_tokens": 700, "low_watermark": 450, "policy": "compact"}
    said: list[dict[str, Any]] = []
    with OpenAI(base_url=f"{scripted_server}/v1", api_key="unused", max_retries=0) as client:
        for number in range(14):
            history.append({"role": "user", "content": f"What was read on day {number}?"})
            answer = log_lines(5, first=number * 100)
            xargs = {"script_id": uuid.uuid4().hex, "script": [answer]}
            body = {"session_id": session, "acm": {"fidelity": "exact", "budget": budget}, "vllm_xargs": xargs}
            answered = client.chat.completions.create(
                model=MODEL,
                messages=history,  # type: ignore[arg-type]
                max_tokens=600,
                extra_body=body,
            )
            said.append(answered.model_extra["acm"])  # type: ignore[index]
            history.append({"role": "assistant", "content": answer})
    assert max(acm["receipt"]["prompt_tokens"] for acm in said) <= 700
    assert all(acm["budget"]["unmet"] is None for acm in said)
    summaries = [index for index, acm in enumerate(said) if acm["budget"]["summary"] is not None]
    assert len(summaries) >= 2
    for index in summaries:
        cost = said[index]["budget"]["summary"]
        assert cost["input_tokens"] > 150
        assert 0 < cost["output_tokens"] <= 8
        assert said[index]["budget"]["evicted_tokens"] > 150
    replays = [index for index in range(1, 14) if index not in summaries]
    for index in replays:
        assert said[index]["receipt"]["kept_tokens"] >= said[index - 1]["receipt"]["prompt_tokens"] - 1
    url = f"{scripted_server}/v1/acm/sessions/{session}/context"
    shown = [message["message"] for message in http.get(url).json()["messages"] if message["message"]]
    assert sum(message["role"] == "user" for message in shown) == 14
    assert [m["content"] for m in shown if HEAD in m["content"]] == [f"{HEAD}\nNoted."]


def asked(url: str, history: list[dict[str, Any]], budget: dict[str, Any] | None) -> dict[str, Any]:
    """What the answer to a history carries, in a session of its own."""
    xargs = {"script_id": uuid.uuid4().hex, "script": ["Yes."]}
    acm = {} if budget is None else {"acm": {"budget": budget}}
    body = {"model": MODEL, "messages": history, "session_id": new_session(), "max_tokens": 8, "vllm_xargs": xargs}
    answer = http.post(f"{url}/v1/chat/completions", json=body | acm)
    assert answer.status_code == 200, answer.text
    found: dict[str, Any] = answer.json()["acm"]
    return found


def test_a_budget_counts_what_the_template_writes_on_the_engine(scripted_server: str) -> None:
    """Reasoning, which this template drops, is half of the parts. It neither counts nor is told as saved."""
    history: list[dict[str, Any]] = [{"role": "system", "content": SYSTEM}]
    for day in range(6):
        answer = {"role": "assistant", "content": log_lines(6, first=day * 10), "reasoning": log_lines(9, first=day)}
        history += [{"role": "user", "content": f"What of day {day}?"}, answer]
    history.append({"role": "user", "content": "Is that all?"})
    num_whole = asked(scripted_server, history, None)["receipt"]["prompt_tokens"]
    roomy = asked(scripted_server, history, {"max_tokens": num_whole + 20, "policy": "recency"})
    assert roomy["receipt"]["prompt_tokens"] == roomy["budget"]["tokens"] == num_whole
    assert (roomy["budget"]["evicted_tokens"], roomy["budget"]["unmet"]) == (0, None)
    tight = asked(scripted_server, history, {"max_tokens": num_whole * 2 // 3, "policy": "recency"})
    num_left = tight["receipt"]["prompt_tokens"]
    assert num_left == tight["budget"]["tokens"] <= num_whole * 2 // 3
    assert tight["budget"]["evicted_tokens"] == num_whole - num_left > 0
    assert tight["budget"]["unmet"] is None
    silent = asked(scripted_server, history, {"max_tokens": 40, "policy": "recency"})
    assert silent["budget"]["unmet"]["tokens_over"] == silent["receipt"]["prompt_tokens"] - 40 > 0


@pytest.mark.parametrize(
    ("budget", "param"),
    [("lots", "acm.budget.max_tokens"), ({"policy": "lru"}, "acm.budget.policy"), ({"max": 3}, "acm.budget.max")],
)
def test_a_bad_budget_is_refused_by_name(scripted_server: str, budget: Any, param: str) -> None:
    body = {"model": MODEL, "messages": [{"role": "user", "content": "Hi"}], "session_id": new_session()}
    answer = http.post(f"{scripted_server}/v1/chat/completions", json=body | {"acm": {"budget": budget}})
    assert answer.status_code == 400
    assert answer.json()["error"]["param"] == param
    assert answer.json()["error"]["remedy"]
