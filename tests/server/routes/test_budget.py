"""The routes of budget, eviction and episodes, and the tool `delimiter`, in an app without an engine."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest
from starlette.testclient import TestClient

from acmserve.context.eviction.compact import HEAD, Summary
from acmserve.context.session.history import adopt
from acmserve.context.session.render import render
from acmserve.context.storage.sqlite import Archive
from acmserve.server.budget import budgets
from acmserve.server.budget.budgets import PromptOverhead
from acmserve.server.context.server import ContextServer
from tests.support.context.annotated import Story
from tests.support.context.valid_chat import check_valid
from tests.support.server.acm_app import SESSIONS, make_client, make_server

BUDGET = {"max_tokens": 400, "low_watermark": 200}


def story(num_tasks: int = 5) -> list[Any]:
    work = Story()
    for number in range(num_tasks):
        work.expl(f"find{number}", ("grep", "found " * 40), ("read", "text " * 30), reasoning="so I think")
        work.act(f"do{number}", f"find{number}", results=(("edit", "done " * 5),)).user()
    return work.messages


MESSAGES = story()


@pytest.fixture
def server() -> ContextServer:
    return make_server()


@pytest.fixture
def client(server: ContextServer) -> TestClient:
    made = make_client(server)
    assert made.post(SESSIONS, json={"session_id": "s", "messages": MESSAGES}).status_code == 201
    return made


def sent(client: TestClient, method: str, what: str, status: int = 200, **options: Any) -> Any:
    answer = client.request(method, f"{SESSIONS}/s/{what}", **options)
    assert answer.status_code == status, answer.text
    return answer.json() if answer.content else None


def test_a_budget_is_set_shown_and_removed(client: TestClient) -> None:
    assert sent(client, "GET", "budget") | {"tokens": 0} == {
        "source": None,
        "budget": None,
        "tokens": 0,
        "storage": None,
    }
    shown = sent(client, "PUT", "budget", json={"max_tokens": "0.4k", "low_watermark": "50%", "keep": None})
    assert shown["source"] == "session"
    assert (shown["budget"]["max_tokens"], shown["budget"]["low_watermark"]) == (400, 200)
    assert shown["tokens"] > 400
    assert sent(client, "GET", "budget") == shown
    assert sent(client, "DELETE", "budget", 204) is None
    assert sent(client, "GET", "budget")["source"] is None


def test_the_servers_budget_holds_where_a_session_has_none(server: ContextServer, client: TestClient) -> None:
    server.budgets.default = server.budgets.parse("50%", "--budget")
    shown = sent(client, "GET", "budget")
    assert (shown["source"], shown["budget"]["max_tokens"]) == ("server", server.budgets.window // 2)
    sent(client, "PUT", "budget", json=BUDGET)
    assert sent(client, "GET", "budget")["budget"]["max_tokens"] == 400


@pytest.mark.parametrize(
    ("budget", "param"),
    [
        ({"max_tokens": "many"}, "budget.max_tokens"),
        ({"max_tokens": 99_999_999}, "budget.max_tokens"),
        ({"max_tokens": 10, "low_watermark": 11}, "budget.low_watermark"),
        ({"policy": "compact", "instructions": 3}, "instructions"),
        ({"policy": "recency", "instructions": "Keep the paths."}, "budget.instructions"),
        ({"policy": "recency", "keep": 2}, "budget.keep"),
        ({"size": 3}, "size"),
    ],
)
def test_a_bad_budget_is_refused_by_name(client: TestClient, budget: dict[str, Any], param: str) -> None:
    error = sent(client, "PUT", "budget", 400, json=budget)["error"]
    assert error["param"] == param
    assert error["remedy"]
    assert sent(client, "GET", "budget")["source"] is None


def test_a_dry_run_tells_the_plan_and_changes_nothing(client: TestClient) -> None:
    sent(client, "PUT", "budget", json=BUDGET)
    context = sent(client, "GET", "context")
    plan = sent(client, "POST", "evict?dry_run=true")
    assert sent(client, "GET", "context") == context
    assert plan["dry_run"] is True
    assert plan["tokens_before"] - plan["tokens_after"] == sum(item["tokens"] for item in plan["evicted"])
    assert plan["tokens_after"] <= plan["target"] <= 200
    assert all(sum(item["levels"].values()) == item["tokens"] for item in plan["evicted"])
    assert plan["evicted"][0]["episode"] == "do0"
    exact, reuse = plan["next_turn"]["exact"], plan["next_turn"]["reuse"]
    assert exact["recomputed_tokens"] == reuse["recomputed_tokens"] + reuse["moved_tokens"] > 0
    assert reuse["recomputed_tokens"] < exact["recomputed_tokens"]
    carried_out = sent(client, "POST", "evict")
    assert carried_out | {"dry_run": True} == plan
    assert sent(client, "POST", "evict")["evicted"] == []


def test_an_eviction_shows_in_the_context_and_in_the_episodes(server: ContextServer, client: TestClient) -> None:
    sent(client, "PUT", "budget", json=BUDGET)
    before = {episode["name"]: episode for episode in sent(client, "GET", "episodes")["data"]}
    assert {episode["state"] for episode in before.values()} == {"ended"}
    sent(client, "POST", "evict")
    context = sent(client, "GET", "context")
    gone = [message for message in context["messages"] if message["message"] is None]
    assert gone
    assert all(message["evicted"] and message["num_tokens"] == 0 and message["kv"] is None for message in gone)
    assert [message["index"] for message in context["messages"]] == list(range(len(MESSAGES)))
    assert context["num_tokens"] < context["num_tokens_original"]
    found = sent(client, "GET", "episodes")
    after = {episode["name"]: episode for episode in found["data"]}
    assert found["prologue_end"] == 2
    assert after["do0"]["state"] == after["find0"]["state"] == "evicted"
    assert after["find0"]["description"] == "found find0 here"
    assert after["do4"]["depends_on"] == ["find4"]
    assert after["do0"]["num_tokens"] == before["do0"]["num_tokens"] > after["do0"]["num_tokens_shown"] == 0
    state = server.store.get("", "s").state
    check_valid([entry.message for entry in state.entries], render(state))


def test_what_was_evicted_can_still_be_searched(client: TestClient) -> None:
    sent(client, "PUT", "budget", json=BUDGET)
    sent(client, "POST", "evict")
    arguments = {"query": "found find0 here", "role": "all"}
    found = sent(client, "POST", "tools/search_context", json={"arguments": {**arguments, "query": "done done"}})
    assert "tool, evicted): " in found["result"]


def test_without_a_budget_there_is_nothing_to_evict_to(client: TestClient) -> None:
    error = sent(client, "POST", "evict", 409)["error"]
    assert "PUT .../budget" in error["remedy"]


def test_a_budget_that_cannot_be_met_names_what_is_in_the_way(client: TestClient) -> None:
    sent(client, "PUT", "budget", json={"max_tokens": 20, "policy": "cwl"})
    unmet = sent(client, "POST", "evict?dry_run=true")["unmet"]
    assert unmet["tokens_over"] > 0
    assert "user turns" in [item["what"] for item in unmet["protected"]]


def test_delimiter_is_a_tool_of_its_own_suite(client: TestClient) -> None:
    suite = client.get("/v1/acm/tools", params={"suite": "cwl"}).json()
    assert [tool["function"]["name"] for tool in suite["tools"]] == ["delimiter"]
    assert "one question, or one change" in suite["presets"]["cwl"]


def test_calls_of_delimiter_in_one_step_see_each_other(server: ContextServer, client: TestClient) -> None:
    """The transcript has the step only when the client sends its results."""

    def call(**arguments: Any) -> Any:
        return sent(client, "POST", "tools/delimiter", json={"arguments": arguments})

    started = call(action="start", name="more", type="expl")
    assert started["result"].startswith("Started expl more")
    assert not started["changed"]
    refused = call(action="start", name="again", type="expl")
    assert refused["is_error"]
    assert "'more' is still active" in refused["result"]
    assert call(action="end", description="seen")["is_error"] is False
    assert call(action="start", name="act", type="act", dependencies=["more", "find1"])["is_error"] is False
    session = server.store.get("", "s")
    server.store.save(session, adopt(session.state, [*MESSAGES, {"role": "user", "content": "Stop ."}]).state)
    assert call(action="end", description="seen")["is_error"] is True
    assert sent(client, "GET", "episodes")["data"][-1]["name"] == "do4"


@pytest.mark.parametrize("end", ["budget", "none", "delete", "left"])
def test_the_scope_of_a_step_ends_with_it_or_with_its_session(
    server: ContextServer, client: TestClient, end: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each session in which `delimiter` was ever called was remembered for good, also where it is gone."""
    arguments = {"action": "start", "name": "more", "type": "expl"}
    assert sent(client, "POST", "tools/delimiter", json={"arguments": arguments})["is_error"] is False
    assert sent(client, "POST", "tools/delimiter", json={"arguments": arguments})["is_error"]
    assert server.budgets.scoped == {("", "s")}, "the control: the next step is not enforced yet"
    if end in ("budget", "none"):
        if end == "budget":
            sent(client, "PUT", "budget", json=BUDGET)
        enforce(server, MESSAGES)
        assert sent(client, "POST", "tools/delimiter", json={"arguments": {"action": "end"}})["is_error"]
    elif end == "delete":
        client.delete(f"{SESSIONS}/s").raise_for_status()
    else:
        monkeypatch.setattr(budgets, "MAX_METERS", 1)
        server.budgets.meter(server.store.create("", "other"))
    assert server.budgets.scoped == set(), "nor does a call that was refused begin one"


def enforce(server: ContextServer, messages: list[Any], **beside: Any) -> Any:
    """What a chat request does: take the history in, bring it under the budget, store it."""
    session = server.store.get("", "s")
    state = adopt(session.state, messages).state
    enforced = asyncio.run(server.enforce(session, state, PromptOverhead(**beside), "reuse"))
    server.store.save(session, enforced.state)
    return enforced


def test_a_request_is_brought_under_the_budget_and_the_edits_stay(server: ContextServer, client: TestClient) -> None:
    sent(client, "PUT", "budget", json=BUDGET)
    first = enforce(server, MESSAGES)
    assert first.report["evicted_tokens"] > 0
    assert first.report["tokens"] <= 200
    assert first.report["unmet"] is None
    json.dumps(first.report)
    shown = render(first.state)
    again = enforce(server, [*(dict(message) for message in MESSAGES), {"role": "user", "content": "And ?"}])
    assert again.report["evicted_tokens"] == 0
    assert render(again.state)[:-1] == shown


def test_tools_and_presets_count_against_the_budget(server: ContextServer, client: TestClient) -> None:
    sent(client, "PUT", "budget", json={"max_tokens": 1000, "low_watermark": 800})
    few = enforce(server, MESSAGES).report["tokens"]
    many = enforce(server, MESSAGES, tools=[{"type": "function", "name": "a b c"}], preset="x " * 50).report["tokens"]
    assert many - few > 50


def test_a_receipt_calibrates_the_count(server: ContextServer, client: TestClient) -> None:
    sent(client, "PUT", "budget", json={"max_tokens": 5000})
    enforced = enforce(server, MESSAGES)
    assert enforced.on_served is not None
    told = enforced.report["tokens"]
    enforced.on_served(told + 77)
    assert enforced.report["tokens"] == told + 77
    assert enforce(server, MESSAGES).report["tokens"] == told + 77


def test_a_prompt_over_its_budget_is_told_when_it_was_served(server: ContextServer, client: TestClient) -> None:
    """Counted below the budget and served above it: `unmet` says so, and says nothing again where the prompt fits."""
    sent(client, "PUT", "budget", json={"max_tokens": 5000})
    enforced = enforce(server, MESSAGES)
    assert enforced.report["unmet"] is None
    enforced.on_served(5100)
    assert enforced.report["unmet"]["tokens_over"] == 100
    assert "counted by its parts" in enforced.report["unmet"]["message"]
    enforced.on_served(4900)
    assert enforced.report["unmet"] is None


def test_a_state_that_was_not_stored_leaves_no_trace(server: ContextServer, client: TestClient) -> None:
    """A request that fails keeps the session as it was. The account follows back."""
    sent(client, "PUT", "budget", json=BUDGET)
    session = server.store.get("", "s")
    dropped = asyncio.run(server.enforce(session, session.state, PromptOverhead(), "exact"))
    assert dropped.state.omissions
    meter = server.budgets.meter(session)
    meter.check_integrity()
    assert not meter.omissions
    assert enforce(server, MESSAGES).report == dropped.report


COMPACT = {"max_tokens": 400, "low_watermark": 200, "policy": "compact", "instructions": "Keep the files ."}


def test_compact_plans_without_a_model_and_evicts_with_one(server: ContextServer, client: TestClient) -> None:
    sent(client, "PUT", "budget", json=COMPACT)
    assert sent(client, "GET", "budget")["budget"]["instructions"] == "Keep the files ."
    summarizer: Any = server._summarizer
    planned = sent(client, "POST", "evict?dry_run=true")
    assert summarizer.conversations == []
    assert planned["summary"]["output_tokens"] == summarizer.max_tokens
    assert planned["tokens_after"] <= planned["target"] == 200
    done = sent(client, "POST", "evict")
    [(text, instructions)] = summarizer.conversations
    assert instructions == "Keep the files ."
    assert text.startswith("user: Fix it .\n\nassistant calls delimiter")
    assert done["summary"]["output_tokens"] == 6
    assert done["tokens_after"] < planned["tokens_after"]
    assert done["tokens_before"] - done["tokens_after"] == done["evicted"][0]["tokens"]
    assert done["next_turn"]["exact"]["recomputed_tokens"] > done["next_turn"]["reuse"]["recomputed_tokens"] > 0
    state = server.store.get("", "s").state
    check_valid([entry.message for entry in state.entries], render(state))
    again = sent(client, "POST", "evict")
    assert (again["evicted"], again["summary"]) == ([], None)


def test_a_redacted_result_is_in_no_summary_that_stands_in_front_of_it(tmp_path: Path) -> None:
    """A summary stands where the last call stood that it covers, and the result of that call behind it."""
    server = make_server(archive=Archive(tmp_path))
    client = make_client(server)
    work = Story().step(("read", f"The key is hunter2 . {'word ' * 80}")).user().step(("read", "text " * 30)).user()
    client.post(SESSIONS, json={"session_id": "s", "messages": work.messages}).raise_for_status()
    sent(client, "PUT", "budget", json={"max_tokens": 100, "policy": "compact"})
    summarizer: Any = server._summarizer

    async def quoting(text: str, num_tokens: int, instructions: str = "") -> Summary:
        return Summary("The key is hunter2 .", num_tokens, 5)

    summarizer.summarize_conversation = quoting
    sent(client, "POST", "evict")
    shown = json.dumps(sent(client, "GET", "context"))
    assert f"{HEAD}\\nThe key is hunter2 ." in shown, "the control"
    sent(client, "POST", "edits", json={"edits": [{"op": "redact", "messages": {"start": 3, "end": 4}}]})
    assert "hunter2" not in json.dumps(sent(client, "GET", "context"))
    assert "hunter2" not in json.dumps(sent(client, "GET", "export"))
    server.store.close()
    assert not [path for path in tmp_path.iterdir() if b"hunter2" in path.read_bytes()]


def test_compact_keeps_requests_under_the_budget_and_says_what_it_cost(
    server: ContextServer, client: TestClient
) -> None:
    sent(client, "PUT", "budget", json=COMPACT)
    first = enforce(server, MESSAGES)
    assert first.report["summary"]["output_tokens"] == 6
    assert first.report["summary"]["input_tokens"] > 100
    assert first.report["tokens"] <= 200
    assert first.report["unmet"] is None
    assert first.report["evicted"][0]["levels"].keys() == {"summarize"}
    shown = render(first.state)
    again = enforce(server, [*MESSAGES, {"role": "user", "content": "And ?"}])
    assert again.report["summary"] is None
    assert render(again.state)[:-1] == shown
    more = [*MESSAGES, {"role": "user", "content": "And ?"}, *story()[2:]]
    enforce(server, more)
    summarizer: Any = server._summarizer
    assert "Summary 1 of " in summarizer.conversations[1][0]
    server.budgets.meter(server.store.get("", "s")).check_integrity()


def test_a_summary_that_cannot_be_had_leaves_all_and_says_why() -> None:
    server = make_server(down=True)
    client = make_client(server)
    client.post(SESSIONS, json={"session_id": "s", "messages": MESSAGES})
    sent(client, "PUT", "budget", json=COMPACT)
    enforced = enforce(server, MESSAGES)
    assert "the summary model did not answer" in enforced.report["unmet"]["message"]
    assert enforced.report["unmet"]["tokens_over"] > 0
    assert enforced.report["summary"] is None
    assert render(enforced.state) == MESSAGES
    assert "did not answer" in sent(client, "POST", "evict", 503)["error"]["message"]
    assert sent(client, "POST", "evict?dry_run=true")["summary"] is not None


def test_a_budget_that_a_summary_cannot_meet_asks_for_none_in_vain(server: ContextServer, client: TestClient) -> None:
    sent(client, "PUT", "budget", json=COMPACT | {"max_tokens": 50, "low_watermark": 40})
    first = enforce(server, MESSAGES)
    assert first.report["summary"] is not None
    assert first.report["unmet"]["tokens_over"] > 0
    again = enforce(server, [*MESSAGES, {"role": "user", "content": "And ?"}])
    assert again.report["summary"] is None
    assert "no longer than a summary" in again.report["unmet"]["message"]
    summarizer: Any = server._summarizer
    assert len(summarizer.conversations) == 1
