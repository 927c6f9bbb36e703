"""Branches on the real engine: what they compute, and that main goes on token by token as if there had been none."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Sequence
from typing import Any

import httpx
import pytest
from openai import OpenAI

from tests.support import http
from tests.support.server.scripted_server import MODEL
from tests.support.server.scripts import ask as ask_client
from tests.support.server.scripts import log_lines, new_session, tool_call

MESSAGES: list[dict[str, Any]] = [
    {"role": "system", "content": "You keep the records of a valley."},
    {"role": "user", "content": f"The log:\n{log_lines(60)}\nend of the log. What was read in line 7?"},
]
OPEN = tool_call("branch", description="look up line 7", prompt="What was read in line 7? Report the number.")
SEARCH = tool_call("search_context", query="line 7:", max_results=1, context_size=200)
BACK = tool_call("return", message="Line 7 reads 49.")
BOTH_WAYS = pytest.mark.parametrize("fidelity", ["exact", "reuse"])


def request(
    session: str, messages: Sequence[Any], script: Sequence[str], fidelity: str = "exact", **body: Any
) -> dict[str, Any]:
    acm = {"fidelity": fidelity} | body.pop("acm", {})
    xargs = {"script_id": uuid.uuid4().hex, "script": list(script)}
    chat = {"model": MODEL, "messages": list(messages), "max_tokens": 300, "temperature": 0, "session_id": session}
    return chat | {"acm": acm, "vllm_xargs": xargs, "return_token_ids": True} | body


def ask(server: str, *args: Any, **kwargs: Any) -> Any:
    """The whole answer. `prompt_token_ids` are those of its last step."""
    url = f"{server}/v1/chat/completions"
    return http.post(url, json=request(*args, **kwargs)).raise_for_status().json()


def looped(server: str, session: str, messages: Sequence[Any], script: Sequence[str], *args: Any, **acm: Any) -> Any:
    return ask(server, session, messages, script, *args, acm={"tools": ["sculptor", "branch"]} | acm)


def said(answer: Any) -> dict[str, Any]:
    return {"role": "assistant", "content": answer["choices"][0]["message"]["content"]}


def receipts(answer: Any) -> list[dict[str, Any]]:
    return [step["receipt"] for step in answer["acm"]["steps"]]


def shown(server: str, session: str) -> list[dict[str, Any]]:
    view = http.get(f"{server}/v1/acm/sessions/{session}/context").raise_for_status().json()
    return [entry["message"] for entry in view["messages"] if entry["message"] is not None]


def tools(server: str) -> list[dict[str, Any]]:
    suites = ("sculptor", "branch")
    urls = [f"{server}/v1/acm/tools?suite={suite}" for suite in suites]
    return [tool for url in urls for tool in http.get(url).json()["tools"]]


def branches_url(server: str, session: str) -> str:
    return f"{server}/v1/acm/sessions/{session}/branches"


def make_branch(server: str, session: str, what: str) -> Any:
    new = {"description": what, "prompt": f"Find out: {what}."}
    return http.post(branches_url(server, session), json=new).raise_for_status().json()


@BOTH_WAYS
def test_a_branch_computes_nothing_of_main_and_main_goes_on_as_if_there_had_been_none(
    scripted_server: str, fidelity: str
) -> None:
    session = new_session()
    answer = looped(scripted_server, session, MESSAGES, [OPEN, SEARCH, BACK, "It was 49."], fidelity)
    before, first, second, after = receipts(answer)
    assert first["kept_tokens"] >= before["prompt_tokens"]
    assert second["kept_tokens"] >= first["prompt_tokens"]
    assert after["kept_tokens"] >= before["prompt_tokens"]
    assert after["computed_tokens"] < 30
    assert after["prompt_tokens"] < first["prompt_tokens"]
    assert all(receipt["moved_tokens"] == 0 for receipt in receipts(answer))
    assert [step.get("branch") is not None for step in answer["acm"]["steps"]] == [False, True, True, False]
    assert answer["acm"]["branches"][0]["num_calls"] == 2
    *main, last = shown(scripted_server, session)
    assert last["content"] == "It was 49."
    assert main[-1]["content"] == "Line 7 reads 49."
    never = ask(scripted_server, new_session(), main, ["It was 49."], tools=tools(scripted_server))
    assert answer["prompt_token_ids"] == never["prompt_token_ids"]
    assert after["prompt_tokens"] == len(never["prompt_token_ids"])


def test_the_next_turn_goes_on_from_main(scripted_server: str) -> None:
    session = new_session()
    first = looped(scripted_server, session, MESSAGES, [OPEN, SEARCH, BACK, "It was 49."])
    history = [*MESSAGES, said(first), {"role": "user", "content": "And line 9?"}]
    second = looped(scripted_server, session, history, ["It was 81."])
    [receipt] = receipts(second)
    assert receipt["kept_tokens"] >= receipts(first)[-1]["prompt_tokens"]
    assert "branches" not in second["acm"]


def test_a_branch_over_its_limit_is_made_to_return(scripted_server: str) -> None:
    """Guided decoding is real: its grammar allows a call of `return` and nothing else."""
    script = [OPEN, SEARCH, BACK, "It was 49."]
    session = new_session()
    answer = looped(scripted_server, session, MESSAGES, script, branch={"max_tokens": 20})
    [branch] = answer["acm"]["branches"]
    assert (branch["state"], branch["num_calls"]) == ("returned", 2)
    assert branch["num_tokens"] > 20
    assert shown(scripted_server, session)[-2]["content"] == "Line 7 reads 49."
    assert answer["choices"][0]["message"]["content"] == "It was 49."


def test_the_model_opens_no_more_branches_than_it_may(scripted_server: str) -> None:
    session, bounds = new_session(), {"max_branches": 1}
    script = [OPEN, SEARCH, BACK, OPEN, "It was 49."]
    answer = looped(scripted_server, session, MESSAGES, script, branch=bounds)
    refused = answer["acm"]["steps"][3]["operations"][0]
    assert (refused["is_error"], refused["changed"]) == (True, False)
    assert "1 of 1 of this conversation are used" in refused["result"]
    assert answer["choices"][0]["message"]["content"] == "It was 49."
    listed = http.get(branches_url(scripted_server, session)).json()["data"]
    assert [(branch["state"], branch["kind"]) for branch in listed] == [("returned", "call")]
    acm = {"tools": ["branch"], "branch": {"max_branches": 0}}
    wrong = http.post(f"{scripted_server}/v1/chat/completions", json=request(session, MESSAGES, [], acm=acm))
    assert wrong.status_code == 400
    error = wrong.json()["error"]
    assert error["message"] == "acm.branch.max_branches: must be a number of branches, at least 1, not 0."
    assert error["remedy"] == "Leave it out for any number."


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
def test_a_branch_that_does_not_return_has_failed_and_main_hears_of_it(
    scripted_server: str, scripted_client: OpenAI, stream: bool
) -> None:
    """The client hears nothing of the call of `return` that was cut short."""
    session = new_session()
    endless = tool_call("return", message="on and on " * 400)
    script = [OPEN, SEARCH, endless, "It is not known."]
    acm = {"tools": ["sculptor", "branch"], "branch": {"max_tokens": 20}}
    answer = ask_client(scripted_client, session, MESSAGES, script, stream=stream, acm=acm, max_tokens=300)
    assert answer.acm["branches"][0]["state"] == "failed"
    assert len(answer.receipts) == 4
    assert shown(scripted_server, session)[-2]["content"].startswith("Error: the branch ended without a result")
    assert answer.message["content"] == "It is not known."
    listed = http.get(branches_url(scripted_server, session)).json()["data"]
    assert [(branch["state"], branch["kind"]) for branch in listed] == [("failed", "call")]


def answer_all(server: str, requests: Sequence[dict[str, Any]]) -> list[Any]:
    """The answers to requests that are sent at the same time."""

    async def send() -> list[Any]:
        async with httpx.AsyncClient(timeout=300) as client:
            url = f"{server}/v1/chat/completions"
            answers = await asyncio.gather(*(client.post(url, json=body) for body in requests))
            return [answer.raise_for_status().json() for answer in answers]

    return asyncio.run(send())


@BOTH_WAYS
def test_siblings_run_at_the_same_time_and_each_computes_only_its_own(scripted_server: str, fidelity: str) -> None:
    session = new_session()
    parent = ask(scripted_server, session, MESSAGES, ["Which line?"], fidelity)
    history = [*MESSAGES, said(parent)]
    made = [make_branch(scripted_server, session, what) for what in ("line 7", "line 9")]
    assert [branch["num_messages"] for branch in made] == [3, 3]
    num_parent = parent["acm"]["receipt"]["prompt_tokens"]
    requests = [
        request(branch["branch_id"], [*history, {"role": "user", "content": branch["prompt"]}], ["Odd."], fidelity)
        for branch in made
    ]
    answers = answer_all(scripted_server, requests)
    for branch, answer in zip(made, answers, strict=True):
        assert answer["acm"]["session_id"] == branch["branch_id"]
        receipt = answer["acm"]["receipt"]
        assert receipt["kept_tokens"] >= num_parent
        assert receipt["computed_tokens"] <= receipt["prompt_tokens"] - num_parent
        assert receipt["moved_tokens"] == 0
    for branch, message in zip(made, ("7: 49.", "9: 81."), strict=True):
        url = f"{branches_url(scripted_server, session)}/{branch['branch_id']}/return"
        told = http.post(url, json={"message": message}).raise_for_status().json()
        assert (told["state"], told["message"], told["num_messages"]) == ("returned", message, None)
    question = [*history, {"role": "user", "content": "And?"}]
    after = ask(scripted_server, session, question, ["Both odd."], fidelity)
    never = ask(scripted_server, new_session(), shown(scripted_server, session)[:-1], ["Both odd."], fidelity)
    assert [message["role"] for message in shown(scripted_server, session)[3:]] == [
        *["assistant", "tool"] * 2,
        "user",
        "assistant",
    ]
    assert after["prompt_token_ids"] == never["prompt_token_ids"]
    assert after["acm"]["receipt"]["kept_tokens"] >= num_parent


def test_a_branch_shares_the_moved_kv_of_its_parent(scripted_server: str) -> None:
    session = new_session()
    first = ask(scripted_server, session, MESSAGES, ["Which line?"], "reuse")
    history = [*MESSAGES, said(first), {"role": "user", "content": log_lines(20, 100)}]
    second = ask(scripted_server, session, history, ["Read."], "reuse")
    edits = {"edits": [{"op": "fold", "messages": {"start": 1, "end": 2}}], "fidelity": "reuse"}
    http.post(f"{scripted_server}/v1/acm/sessions/{session}/edits", json=edits).raise_for_status()
    history = [*history, said(second), {"role": "user", "content": "Go on."}]
    folded = ask(scripted_server, session, history, ["Gone on."], "reuse")
    num_parent = folded["acm"]["receipt"]["prompt_tokens"]
    assert folded["acm"]["receipt"]["moved_tokens"] > 300
    branch = make_branch(scripted_server, session, "the rest")
    question = [*history, said(folded), {"role": "user", "content": branch["prompt"]}]
    inside = ask(scripted_server, branch["branch_id"], question, ["All even."], "reuse")
    assert inside["acm"]["receipt"]["kept_tokens"] >= num_parent
    assert inside["acm"]["receipt"]["moved_tokens"] == 0
    assert inside["prompt_token_ids"][:num_parent] == folded["prompt_token_ids"]
    stranger = ask(scripted_server, new_session(), question, ["All even."], "reuse", cache_salt="other")
    assert stranger["acm"]["receipt"]["kept_tokens"] == 0


def test_a_branch_wants_the_history_that_it_began_with(scripted_server: str) -> None:
    session = new_session()
    parent = ask(scripted_server, session, MESSAGES, ["Which line?"])
    branch = make_branch(scripted_server, session, "line 7")
    body = request(branch["branch_id"], [{"role": "user", "content": branch["prompt"]}], ["Odd."])
    refused = http.post(f"{scripted_server}/v1/chat/completions", json=body)
    assert refused.status_code == 400
    assert "begin with 0 of the 3 messages" in refused.json()["error"]["message"]
    question = [*MESSAGES, said(parent), {"role": "user", "content": branch["prompt"]}]
    calls = looped(scripted_server, branch["branch_id"], question, [OPEN, "Odd."])["acm"]["steps"][0]["operations"]
    assert "cannot open another one" in calls[0]["result"]
    http.delete(f"{scripted_server}/v1/acm/sessions/{session}").raise_for_status()
    assert http.get(f"{scripted_server}/v1/acm/sessions/{branch['branch_id']}").status_code == 404
