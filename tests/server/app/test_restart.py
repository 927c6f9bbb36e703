"""What a killed server keeps. The engine of a first one is killed in mid-stream, a second one on its folder goes on.

The second one's worker has a process of its own. Its API server is killed at the end. What clients without an id find
by content needs no restart, and is asked of the first one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
import pytest
from openai import OpenAI

from acmserve.context.storage.session import SessionLimits
from acmserve.context.storage.session_store import SessionStore
from acmserve.context.storage.sqlite import Archive
from tests.support import http
from tests.support.server.chat_session import Session
from tests.support.server.clients import SUMMARY_SYSTEM, ChatClient
from tests.support.server.faults import killed_in_mid_stream, until_gone
from tests.support.server.running_server import START_SECONDS, Running, server_process
from tests.support.server.scripted_server import FLAGS, MODEL, write_model
from tests.support.server.scripts import log_lines
from tests.support.server.working_agent import Agent

CHAT = "/v1/chat/completions"
MESSAGES = "/v1/messages"
RESPONSES = "/v1/responses"
ENDLESS = {"vllm_xargs": {"script_id": "endless", "script": ["on and on " * 500]}}
BUDGET = {"max_tokens": 2300, "low_watermark": 1500, "policy": "cwl"}
SERVER_BUDGET = '{"max_tokens": 2000, "low_watermark": 1400}'


@dataclass(frozen=True)
class First:
    """The first server, its model and its folder. `end` waits until it has ended."""

    running: Running
    model: Path
    folder: Path
    flags: list[str]
    end: Callable[[], None]


@pytest.fixture(scope="module")
def first(tmp_path_factory: pytest.TempPathFactory) -> Iterator[First]:
    """A server that lives until a test asks for `restarted`."""
    folder = tmp_path_factory.mktemp("restart")
    model = write_model(folder / "model")
    flags = [*FLAGS, "--data-dir", str(folder / "data"), "--budget", SERVER_BUDGET, "--infer-sessions"]
    with ExitStack() as stack:
        running = stack.enter_context(server_process(model, folder / "first.log", flags, tiny=True))
        yield First(running, model, folder, flags, stack.close)


@dataclass(frozen=True)
class Restarted:
    """Both sessions on the second server, and what the first one showed of them at last."""

    running: Running
    folded: Session
    agent: Agent
    folded_before: Any
    agent_before: Any
    broken: dict[str, Any]
    lines: list[str]
    exit_code: int
    folder: Path

    @property
    def server(self) -> str:
        return self.running.url


@pytest.fixture(scope="module")
def restarted(first: First) -> Iterator[Restarted]:
    with OpenAI(base_url=f"{first.running.url}/v1", api_key="-", max_retries=0) as client:
        folded = Session(client, first.running.url)
        folded.chat()
        fragment, *_ = folded.cut()
        folded.edit({"op": "fold", "fragment_id": fragment})
        agent = Agent(first.running.url, BUDGET, fidelity="exact")
        for number in range(3):
            agent.task(number)
        folded_before, agent_before = folded.context, agent.get("context")
        broken = {"session_id": "broken", "messages": [{"role": "user", "content": "Say something."}]}
        answer = http.post(f"{first.running.url}{CHAT}", json={"model": MODEL, **broken}).raise_for_status().json()
        broken["messages"] += [answer["choices"][0]["message"], {"role": "user", "content": "And more."}]
        lines = killed_in_mid_stream(first.running, first.running.child("VLLM::EngineCore"), broken | ENDLESS, 5)
        exit_code = first.running.process.wait(timeout=START_SECONDS)
    first.end()
    with (
        server_process(first.model, first.folder / "second.log", first.flags, tiny=True, own_worker=True) as second,
        OpenAI(base_url=f"{second.url}/v1", api_key="-", max_retries=0) as client,
    ):
        folded.client, folded.url = client, f"{second.url}/v1/acm/sessions/{folded.name}"
        agent.server = second.url
        yield Restarted(second, folded, agent, folded_before, agent_before, broken, lines, exit_code, first.folder)


@pytest.fixture
def server(first: First) -> str:
    """The first server. These tests come before those that have it killed."""
    return first.running.url


def test_a_client_without_an_id_is_found_by_content(server: str) -> None:
    """Its fold stays, and a stranger with another salt who sends the same history is somebody else."""

    def ask(client: ChatClient, salt: str) -> Any:
        body = client.body | {"model": MODEL, "max_tokens": 8, "cache_salt": salt}
        answer = http.post(f"{server}{CHAT}", json=body).raise_for_status().json()
        client.answer(answer["choices"][0]["message"]["content"])
        return answer["acm"]

    client = ChatClient(system="You keep the records.", tools=()).user(log_lines(30))
    first = ask(client, "mine")
    assert first["found_by"] == "new"
    url, headers = f"{server}/v1/acm/sessions/{first['session_id']}", {"X-Cache-Salt": "mine"}
    edits = [{"op": "fold", "messages": {"start": 1, "end": 2}}]
    edited = http.post(f"{url}/edits", json={"edits": edits}, headers=headers).raise_for_status().json()
    hidden = edited["tokens_before"] - edited["tokens_after"]
    second = ask(client.user("And now?"), "mine")
    assert (second["session_id"], second["found_by"]) == (first["session_id"], "content")
    assert second["receipt"]["prompt_tokens"] < first["receipt"]["prompt_tokens"] - hidden + 60
    client.system += " Today is Thursday."
    third = ask(client.user("And then?"), "mine")
    assert (third["session_id"], third["found_by"]) == (first["session_id"], "content")
    stranger = ask(client.user("And at last?"), "theirs")
    assert stranger["found_by"] == "new"
    assert stranger["session_id"] != first["session_id"]
    assert stranger["receipt"]["kept_tokens"] == 0


def test_a_client_that_keeps_a_summary_alone_stays_in_its_session(server: str) -> None:
    """The turn behind its compaction is one of the session: the end of a fold is told, and the turn counts there."""
    summary = (
        "The log was read from its first line to its last. " * 3 + "Nothing in it was torn, and nothing is left to do."
    )

    def ask(client: ChatClient, said: str = "Noted.") -> Any:
        script = {"vllm_xargs": {"script_id": "summed", "script": [said]}}
        body = client.body | script | {"model": MODEL, "max_tokens": 128, "cache_salt": "summed"}
        answer = http.post(f"{server}{CHAT}", json=body).raise_for_status().json()
        assert answer["choices"][0]["message"]["content"] == said
        client.answer(said)
        return answer["acm"]

    client = ChatClient().user(log_lines(30))
    session = ask(client)["session_id"]
    url, headers = f"{server}/v1/acm/sessions/{session}", {"X-Cache-Salt": "summed"}
    edits = [{"op": "fold", "messages": {"start": 1, "end": 2}}]
    http.post(f"{url}/edits", json={"edits": edits}, headers=headers).raise_for_status()
    ask(client.user("And now?"))
    ask(client.side(SUMMARY_SYSTEM, *client.messages, {"role": "user", "content": "Sum it up."}), summary)
    num_turns = len(http.get(f"{url}/turns", headers=headers).raise_for_status().json()["data"])
    after = ask(ChatClient().user(summary).answer("I have read the notes.").user("Go on."))
    assert (after["session_id"], after["found_by"], after.get("thread")) == (session, "summary", None)
    assert [edit["kind"] for edit in after["dropped"]] == ["fragment"]
    assert len(http.get(f"{url}/turns", headers=headers).raise_for_status().json()["data"]) == num_turns + 1
    stranger = ask(ChatClient().user(summary))
    assert (stranger["found_by"], stranger["session_id"] != session) == ("new", True)


def test_a_count_finds_its_session_and_leaves_it(server: str) -> None:
    """It counts what the next request is served, a fold and the server's budget included."""
    salt = {"X-Cache-Salt": "counted"}

    def ask(path: str, messages: list[Any], headers: dict[str, str], **more: Any) -> Any:
        body = {"model": MODEL, "messages": messages, **more}
        return http.post(f"{server}{path}", json=body, headers=headers).raise_for_status()

    def count(messages: list[Any], headers: dict[str, str], **more: Any) -> Any:
        """The count. The sessions of its tenant are those that they were, used when they were."""
        sessions = listed(server, headers)
        answer = ask(f"{MESSAGES}/count_tokens", messages, headers, **more)
        assert listed(server, headers) == sessions
        return answer

    messages: list[Any] = [{"role": "user", "content": log_lines(30)}]
    assert count(messages, salt).json()["acm"] == {"found_by": "new"}
    first = ask(MESSAGES, messages, salt, max_tokens=8).json()
    session = first["acm"]["session_id"]
    edits = {"edits": [{"op": "fold", "messages": {"start": 0, "end": 1}}]}
    url = f"{server}/v1/acm/sessions/{session}/edits"
    http.post(url, json=edits, headers=salt).raise_for_status()
    messages += [{"role": "assistant", "content": first["content"]}, {"role": "user", "content": "And now?"}]
    counted = count(messages, salt)
    assert counted.json()["acm"] == {"session_id": session, "found_by": "content"}
    assert counted.headers["X-ACM-Receipt"] == f"session={session}; found_by=content"
    second = ask(MESSAGES, messages, salt, max_tokens=8).json()["acm"]
    assert (second["session_id"], second["found_by"]) == (session, "content")
    assert counted.json()["input_tokens"] == second["receipt"]["prompt_tokens"]
    assert counted.json()["input_tokens"] < first["acm"]["receipt"]["prompt_tokens"] // 3
    stranger = count(messages, {"X-Cache-Salt": "a stranger's"}).json()
    assert stranger["acm"] == {"found_by": "new"}, "the control: found is what a tenant has said itself"
    assert stranger["input_tokens"] > first["acm"]["receipt"]["prompt_tokens"]

    tools, num_evicted = [{"name": "read", "input_schema": {"type": "object"}}], 0
    for number in range(4):
        call = {"type": "tool_use", "id": f"toolu_{number}", "name": "read", "input": {"page": number}}
        result = {"type": "tool_result", "tool_use_id": call["id"], "content": log_lines(24, first=100 + 24 * number)}
        messages += [{"role": "assistant", "content": [call]}, {"role": "user", "content": [result]}]
        counted = count(messages, salt, tools=tools).json()
        served = ask(MESSAGES, messages, salt, tools=tools, max_tokens=1).json()["acm"]
        assert served["session_id"] == session
        assert counted["input_tokens"] == served["receipt"]["prompt_tokens"], number
        num_evicted += served["budget"]["evicted_tokens"]
    assert num_evicted > 0
    assert counted["input_tokens"] <= 2000 < counted["context_management"]["original_input_tokens"]


def test_a_compaction_finds_its_session_and_its_item_does(server: str) -> None:
    """A client that has no id keeps its session, over the summary that it asks for itself."""

    def ask(path: str, items: list[Any], salt: str, **more: Any) -> Any:
        body = {"model": MODEL, "input": items, "cache_salt": salt, **more}
        return http.post(f"{server}{path}", json=body).raise_for_status().json()

    def said(text: str) -> dict[str, Any]:
        return {"type": "message", "role": "user", "content": text}

    items: list[Any] = [said(log_lines(30)), said("What is in it?")]
    first = ask(RESPONSES, items, "compacted", max_output_tokens=8)
    session, headers = first["acm"]["session_id"], {"X-Cache-Salt": "compacted"}
    edits = {"edits": [{"op": "fold", "messages": {"start": 0, "end": 1}}]}
    url = f"{server}/v1/acm/sessions/{session}/edits"
    http.post(url, json=edits, headers=headers).raise_for_status()
    items += [*first["output"], said("And now?")]
    second = ask(RESPONSES, items, "compacted", max_output_tokens=8)
    assert (second["acm"]["session_id"], second["acm"]["found_by"]) == (session, "content")
    items += second["output"]
    compacted = ask(f"{RESPONSES}/compact", items, "compacted")
    assert compacted["acm"] == {"session_id": session, "found_by": "content"}
    assert compacted["usage"]["input_tokens"] < first["usage"]["input_tokens"], "the fold holds in what is read"
    assert compacted["usage"]["input_tokens_details"]["cached_tokens"] >= second["usage"]["input_tokens"] - 1
    assert [held["session_id"] for held in listed(server, headers)] == [session]
    later = [*compacted["output"], said("Go on.")]
    third = ask(RESPONSES, later, "compacted", max_output_tokens=8)
    assert (third["acm"]["session_id"], third["acm"]["found_by"]) == (session, "summary")
    fourth = ask(RESPONSES, [*later, *third["output"], said("And on.")], "compacted", max_output_tokens=8)
    assert (fourth["acm"]["session_id"], fourth["acm"]["found_by"]) == (session, "content")
    stranger = ask(f"{RESPONSES}/compact", items, "another's")
    assert stranger["acm"] == {"found_by": "new"}, "the control: nothing is found of another tenant"
    assert listed(server, {"X-Cache-Salt": "another's"}) == []
    assert stranger["usage"]["input_tokens"] > compacted["usage"]["input_tokens"]
    theirs = ask(RESPONSES, later, "another's", max_output_tokens=8)["acm"]
    assert (theirs["found_by"], theirs["session_id"] != session) == ("new", True)


def test_a_compaction_block_of_messages_finds_its_session(server: str) -> None:
    """A client without an id drops all that stood in front of the block. What names the session stands in the block."""
    salt = {"X-Cache-Salt": "blocked"}

    def ask(messages: list[Any], headers: dict[str, str] = salt, **more: Any) -> Any:
        body = {"model": MODEL, "messages": messages, "max_tokens": 8, **more}
        return http.post(f"{server}{MESSAGES}", json=body, headers=headers).raise_for_status().json()

    def said(text: str) -> dict[str, Any]:
        return {"role": "user", "content": text}

    messages: list[Any] = [said(log_lines(30))]
    first = ask(messages)
    session = first["acm"]["session_id"]
    edits = {"edits": [{"op": "fold", "messages": {"start": 0, "end": 1}}]}
    url = f"{server}/v1/acm/sessions/{session}"
    http.post(f"{url}/edits", json=edits, headers=salt).raise_for_status()
    messages += [{"role": "assistant", "content": first["content"]}, said(log_lines(40, first=30))]
    messages += [{"role": "assistant", "content": "It is read."}, said("And now?")]
    trigger = {"type": "input_tokens", "value": 300}
    compacted = ask(messages, context_management={"edits": [{"type": "compact_20260112", "trigger": trigger}]})
    block, text = compacted["content"]
    assert (block["type"], text["type"]) == ("compaction", "text")
    assert block["content"]
    later: list[Any] = [{"role": "assistant", "content": [block, text]}, said("Go on.")]
    for other, headers in (({**block, "encrypted_content": None}, salt), (block, {"X-Cache-Salt": "another's"})):
        stranger = ask([{"role": "assistant", "content": [other, text]}, said("Go on alone.")], headers)["acm"]
        assert (stranger["found_by"], stranger["session_id"] != session) == ("new", True), "the controls"
    third = ask(later)
    assert (third["acm"]["session_id"], third["acm"]["found_by"]) == (session, "summary")
    assert third["acm"].get("thread") is None

    later += [{"role": "assistant", "content": third["content"]}, said(log_lines(40, first=70))]
    later += [{"role": "assistant", "content": "It is read."}, said("And at last?")]
    edit = {"type": "compact_20260112", "trigger": trigger, "pause_after_compaction": True}
    paused = ask(later, context_management={"edits": [edit]})
    [block] = paused["content"]
    assert (block["type"], paused["stop_reason"]) == ("compaction", "compaction")
    last = ask([{"role": "assistant", "content": [block]}, said("Go on.")])["acm"]
    assert (last["session_id"], last["found_by"], last.get("thread")) == (session, "summary", None)


def listed(server: str, headers: dict[str, str]) -> list[Any]:
    """The sessions of a tenant, which counts as no use."""
    answer = http.get(f"{server}/v1/acm/sessions", headers=headers).raise_for_status()
    found: list[Any] = answer.json()["data"]
    return found


def without_kv(context: Any) -> Any:
    return context | {"messages": [message | {"kv": None} for message in context["messages"]]}


def test_a_killed_engine_ends_the_stream_with_an_error_and_the_server_with_a_remedy(restarted: Restarted) -> None:
    assert '"error"' in restarted.lines[-2]
    assert restarted.lines[-1] == "data: [DONE]"
    assert restarted.exit_code == 1
    said = (restarted.folder / "first.log").read_text().splitlines()
    (line,) = [line for line in said if "the engine died" in line]
    assert "The sessions in --data-dir are kept. Start the server again." in line


def test_a_session_goes_on_from_its_last_complete_turn(restarted: Restarted) -> None:
    """The answer that broke off is not in it. The next one is that of a stranger who sends the same."""
    url = f"{restarted.server}/v1/acm/sessions/broken"
    kept = http.get(f"{url}/context").json()["messages"]
    assert [message["origin"] for message in kept] == ["client", "answer"]
    body = {"model": MODEL, "max_tokens": 20, "logprobs": True, **restarted.broken}
    answer = http.post(f"{restarted.server}{CHAT}", json=body).raise_for_status().json()
    body["cache_salt"] = "a stranger's"
    del body["session_id"]
    fresh = http.post(f"{restarted.server}{CHAT}", json=body).raise_for_status().json()
    assert answer["choices"][0]["message"] == fresh["choices"][0]["message"]
    assert answer["acm"]["receipt"]["moved_tokens"] == 0


def test_a_fold_survives(restarted: Restarted) -> None:
    """The transcript comes back with its fold. Its KV is computed anew."""
    session = restarted.folded
    assert without_kv(session.context) == without_kv(restarted.folded_before)
    session.say("And now?")
    receipt = session.chat()
    assert receipt["computed_tokens"] == receipt["prompt_tokens"]
    assert session.context["fragments"][0]["state"] == "folded"


def test_what_was_evicted_stays_evicted(restarted: Restarted) -> None:
    """The account of the session is built anew. Without a budget of the session that of the server holds."""
    agent = restarted.agent
    assert agent.evictions
    assert without_kv(agent.get("context"))["messages"] == without_kv(restarted.agent_before)["messages"]
    assert agent.get("budget")["source"] == "session"
    for number in range(3, 5):
        agent.task(number)
    http.delete(f"{restarted.server}/v1/acm/sessions/{agent.session}/budget").raise_for_status()
    assert agent.get("budget")["source"] == "server"
    agent.messages.append({"role": "user", "content": "Go on."})
    said = agent.turn("Gladly.", budget=None)
    assert said["budget"]["max_tokens"] == 2000
    assert said["receipt"]["prompt_tokens"] <= 2000
    assert max(step["receipt"]["prompt_tokens"] for step in agent.steps) <= BUDGET["max_tokens"]


def test_a_killed_api_server_takes_its_engine_with_it_and_leaves_every_turn(restarted: Restarted) -> None:
    """The last test here: no server is left behind it."""
    assert f"acmserve is ready at {restarted.server}\n" in (restarted.folder / "second.log").read_text()
    pid = restarted.running.process.pid
    children = [restarted.running.child(name) for name in ("VLLM::EngineCore", "VLLM::Worker")]
    lines = killed_in_mid_stream(restarted.running, psutil.Process(pid), restarted.broken | ENDLESS, 5)
    assert lines[-1] == "broken off"
    until_gone(children)
    archive = Archive(restarted.folder / "data")
    store = SessionStore(SessionLimits(), archive)
    try:
        store.check_integrity()
        assert {session.session_id for session in store.list("")} >= {"broken", restarted.agent.session}
        kept = [entry.message["content"] for entry in store.get("", "broken").state.entries]
        assert kept[:2] == [message["content"] for message in restarted.broken["messages"][:2]]
    finally:
        store.close()
