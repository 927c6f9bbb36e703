"""Threads of one session on the real server: a fold of the main conversation outlives the side requests of a client.

Ids stand where clients put them, texts are ours. The control stands in `sessions/test_identifier.py`: in one thread,
a title request unfolds the session.
"""

from __future__ import annotations

import uuid
from typing import Any

import pytest
from openai import OpenAI

from tests.support import http
from tests.support.server.clients import AGENT_SYSTEM, SUMMARY_SYSTEM, TITLE_SYSTEM, ChatClient
from tests.support.server.scripted_server import MODEL
from tests.support.server.scripts import log_lines

LOG = f"The log begins.\n{log_lines(80)}\nThe log ends. Note it."


class Agent:
    """A client's session: `headers` of each request, and what the server says of it."""

    def __init__(self, server: str, name: str, *headers: str) -> None:
        self.server, self.name, self.salt = server, name, uuid.uuid4().hex
        self.headers = dict.fromkeys(headers, name)

    def ask(self, client: ChatClient, **headers: str) -> dict[str, Any]:
        body = client.body | {"model": MODEL, "max_tokens": 8, "cache_salt": self.salt, "acm": {"fidelity": "reuse"}}
        answer = http.post(f"{self.server}/v1/chat/completions", json=body, headers=self.headers | headers)
        found = answer.raise_for_status().json()
        client.messages.append({k: v for k, v in found["choices"][0]["message"].items() if v is not None})
        acm: dict[str, Any] = found["acm"]
        return acm

    def get(self, path: str = "", session_id: str = "") -> Any:
        url = f"{self.server}/v1/acm/sessions/{session_id or self.name}{path}"
        return http.get(url, headers={"X-Cache-Salt": self.salt}).raise_for_status().json()

    def fold(self) -> int:
        """Fold the log, and return how many tokens that hides."""
        url, headers = f"{self.server}/v1/acm/sessions/{self.name}", {"X-Cache-Salt": self.salt}
        arguments = {"start_marker": "The log begins.", "end_marker": "The log ends.", "num_fragments": 1}
        made = http.post(f"{url}/tools/fragment_context", json={"arguments": arguments}, headers=headers).json()
        edits = [{"op": "fold", "fragment_id": made["fragment_ids"][0]}]
        edited = http.post(f"{url}/edits", json={"edits": edits}, headers=headers).raise_for_status().json()
        return int(edited["tokens_before"] - edited["tokens_after"])


@pytest.fixture
def agent(scripted_server: str, scripted_client: OpenAI) -> Agent:
    return Agent(scripted_server, f"ses_{uuid.uuid4().hex[:12]}", "X-Session-ID", "X-Session-Affinity")


def title_of(main: ChatClient) -> ChatClient:
    return main.side(TITLE_SYSTEM, {"role": "user", "content": "Write a title for this:"}, main.messages[0])


@pytest.mark.parametrize("when", ["title first", "title later"])
def test_a_fold_outlives_titles_sub_agents_and_compactions(agent: Agent, when: str) -> None:
    main = ChatClient().user(LOG)
    if when == "title first":
        assert agent.ask(title_of(main))["session_id"] == agent.name
    before = agent.ask(main)
    assert (before["session_id"], before["found_by"]) == (agent.name, "X-Session-ID")
    assert "thread" not in before
    assert before["receipt"]["moved_tokens"] == 0, "no KV of the title is in the main prompt"
    num_hidden = agent.fold()
    after = agent.ask(main.user("And now?"))
    assert after["receipt"]["prompt_tokens"] < before["receipt"]["prompt_tokens"] - num_hidden + 60

    sides = [agent.ask(title_of(main))]
    subs = [ChatClient(AGENT_SYSTEM, ("read",)).user(f"Search cupboard {n} for torn pages.") for n in range(2)]
    for turn in range(2):
        for n, sub in enumerate(subs):
            said = agent.ask(sub, **{"X-Claude-Code-Agent-Id": f"agent-{n}"})
            sides.append(said)
            assert said["session_id"] == f"{agent.name}~{said['thread']}"
            sub.user(f"Look again, time {turn}.")
    summary = main.side(SUMMARY_SYSTEM, *main.messages, {"role": "user", "content": "Condense the above."})
    compaction = agent.ask(summary)
    assert compaction["receipt"]["prompt_tokens"] < before["receipt"]["prompt_tokens"], "a fork has the fold, too"

    fragments = agent.get("/context")["fragments"]
    assert [fragment["state"] for fragment in fragments] == ["folded"]
    last = agent.ask(main.user("And then?"))
    assert last["session_id"] == agent.name
    assert last["receipt"]["prompt_tokens"] < after["receipt"]["prompt_tokens"] + 60, "still folded"
    assert last["receipt"]["computed_tokens"] < 40, "and still cached"
    listed = {thread["session_id"]: thread["name"] for thread in agent.get()["threads"]}
    assert listed == {said["session_id"]: said["thread"] for said in [*sides, compaction]}
    assert len(listed) == 4
    assert agent.get(session_id=compaction["session_id"])["thread_of"] == agent.name


def test_threads_go_with_their_session(agent: Agent) -> None:
    main = ChatClient().user("What is in the cellar?")
    agent.ask(main)
    side = agent.ask(title_of(main))
    url = f"{agent.server}/v1/acm/sessions"
    assert http.delete(f"{url}/{agent.name}", headers={"X-Cache-Salt": agent.salt}).status_code == 204
    for name in (agent.name, side["session_id"]):
        assert http.get(f"{url}/{name}", headers={"X-Cache-Salt": agent.salt}).status_code == 404


def test_a_redaction_reaches_the_forks(agent: Agent) -> None:
    main = ChatClient().user(LOG)
    agent.ask(main)
    summary = main.side(SUMMARY_SYSTEM, *main.messages, {"role": "user", "content": "Condense the above."})
    first = agent.ask(summary)
    url, headers = f"{agent.server}/v1/acm/sessions/{agent.name}", {"X-Cache-Salt": agent.salt}
    edits = [{"op": "redact", "messages": {"start": 1, "end": 2}}]
    http.post(f"{url}/edits", json={"edits": edits}, headers=headers).raise_for_status()
    assert http.get(f"{agent.server}/v1/acm/sessions/{first['session_id']}", headers=headers).status_code == 404
    again = main.side(SUMMARY_SYSTEM, *main.messages, {"role": "user", "content": "Condense the above."})
    assert agent.ask(again)["receipt"]["prompt_tokens"] < first["receipt"]["prompt_tokens"] - 500


@pytest.mark.parametrize(
    ("headers", "body", "found_by"),
    [
        ({"x-claude-code-session-id": "ID"}, {}, "x-claude-code-session-id"),
        ({"session-id": "ID", "thread-id": "ID"}, {"prompt_cache_key": "ID"}, "thread-id"),
        ({}, {"prompt_cache_key": "ID"}, "prompt_cache_key"),
        ({}, {"session_id": "ID"}, "session_id"),
    ],
)
def test_the_answer_says_how_its_session_was_found(
    scripted_server: str, headers: dict[str, str], body: dict[str, str], found_by: str
) -> None:
    name = uuid.uuid4().hex
    agent = Agent(scripted_server, name)
    agent.headers = {key: value.replace("ID", name) for key, value in headers.items()}
    client = ChatClient(extra={key: value.replace("ID", name) for key, value in body.items()})
    said = agent.ask(client.user("What is in the attic?"))
    assert (said["session_id"], said["found_by"]) == (name, found_by)
    assert agent.get()["num_messages"] == 3


def test_a_claude_code_session_of_messages_has_threads_in_the_engine(scripted_server: str) -> None:
    """The same id, another system prompt, other tools, an agent's id."""
    name, salt = uuid.uuid4().hex, uuid.uuid4().hex
    asked = {"model": MODEL, "max_tokens": 8, "messages": [{"role": "user", "content": LOG}]}
    headers = {"x-claude-code-session-id": name, "X-Cache-Salt": salt}

    def ask(system: str, **more: str) -> Any:
        body = asked | {"system": system}
        answer = http.post(f"{scripted_server}/v1/messages", json=body, headers=headers | more)
        return answer.raise_for_status().json()["acm"]

    main = ask("You keep the records of a valley.")
    sub = ask("You search cupboards.", **{"x-claude-code-agent-id": "a-1"})
    again = ask("You keep the records of a valley.")
    assert main["session_id"] == again["session_id"] == name
    assert main["found_by"] == "x-claude-code-session-id"
    assert sub["session_id"] == f"{name}~{sub['thread']}"
    assert again["receipt"]["computed_tokens"] == 1


def test_a_redaction_takes_the_retold_conversation_with_it(agent: Agent) -> None:
    main = worked(agent, 1)
    told = agent.ask(flattened(main))
    url, headers = f"{agent.server}/v1/acm/sessions", {"X-Cache-Salt": agent.salt}
    assert http.get(f"{url}/{told['session_id']}", headers=headers).status_code == 200
    edits = [{"op": "redact", "messages": {"start": 4, "end": 5}}]
    http.post(f"{url}/{agent.name}/edits", json={"edits": edits}, headers=headers).raise_for_status()
    assert http.get(f"{url}/{told['session_id']}", headers=headers).status_code == 404
    agent.ask(main.user("And then?"))
    again = agent.ask(flattened(main))
    assert again["session_id"] != told["session_id"]
    assert again["receipt"]["moved_tokens"] < 60, "nothing of before moves"
    assert again["receipt"]["prompt_tokens"] < told["receipt"]["prompt_tokens"] - 500, "and the text is cut out"


def worked(agent: Agent, num_steps: int = 3) -> ChatClient:
    """A conversation of long results, served step by step."""
    main = ChatClient().user("Read the logs.")
    agent.ask(main)
    for step in range(num_steps):
        main.call("read", log_lines(40, first=40 * step), part=step)
        agent.ask(main)
    return main


def flattened(main: ChatClient) -> ChatClient:
    """The conversation as one text, under headings, with a system prompt of its own."""
    names = {"user": "User", "assistant": "Assistant", "tool": "Tool result"}
    told = "\n\n".join(f"[{names[m['role']]}]: {m['content']}" for m in main.messages if m.get("content"))
    return main.side(SUMMARY_SYSTEM, {"role": "user", "content": f"{told}\n\nSum this up."})


def same_messages(main: ChatClient) -> ChatClient:
    return main.side(SUMMARY_SYSTEM, *main.messages, {"role": "user", "content": "Condense the above."})


def first_messages(main: ChatClient) -> ChatClient:
    """All but the newest step, which the client keeps."""
    return main.side(SUMMARY_SYSTEM, *main.messages[:-3], {"role": "user", "content": "Condense the above."})


@pytest.mark.parametrize("compacting", [flattened, same_messages, first_messages])
def test_a_compaction_of_the_clients_own_finds_the_kv_of_its_session(agent: Agent, compacting: Any) -> None:
    main = worked(agent)
    said = agent.ask(compacting(main))
    assert said["thread"].startswith("task-")
    assert said["receipt"]["computed_tokens"] < 200
    assert said["receipt"]["moved_tokens"] > 1000
    last = agent.ask(main.user("And then?"))
    assert last["session_id"] == agent.name
    assert last["receipt"]["moved_tokens"] == 0, "the main thread finds its own blocks"
    assert last["receipt"]["computed_tokens"] < 40
