"""A summary is asked for behind the session's own conversation: the engine has its tokens already."""

from __future__ import annotations

import uuid
from typing import Any

import pytest

from acmserve.context.eviction.compact import HEAD
from tests.support import http
from tests.support.context.valid_chat import orphans
from tests.support.routes.vendor_clients import openai_client
from tests.support.server.scripted_server import MODEL
from tests.support.server.scripts import log_lines, new_session, tool_call
from tests.support.server.working_agent import SYSTEM, TOOLS

MOST_OLD = 200
COMPACT = {"max_tokens": 1300, "low_watermark": 800, "policy": "compact"}
EDIT = {"edits": [{"type": "compact_20260112", "trigger": {"type": "input_tokens", "value": 1100}}]}


class ToolUser:
    """A client with tools of its own: every answer calls one, and is answered with lines of a log.

    A salt of its own keeps it from finding what another test was served.
    """

    def __init__(self, url: str, fidelity: str = "exact", **body: Any) -> None:
        self.url, self.session, self.body = url, new_session(), body
        self.fidelity = fidelity
        self.messages: list[dict[str, Any]] = [
            {"role": "system", "content": SYSTEM},
            {"role": "user", "content": "Read it all."},
        ]
        self.said: list[dict[str, Any]] = []

    def _request(self, line: str) -> dict[str, Any]:
        acm = {"fidelity": self.fidelity, **self.body.get("acm", {})}
        xargs = {"script_id": uuid.uuid4().hex, "script": [line]}
        fields = {name: value for name, value in self.body.items() if name != "acm"}
        extra = {"session_id": self.session, "cache_salt": self.session, "acm": acm, "vllm_xargs": xargs, **fields}
        chat = {"model": MODEL, "messages": self.messages, "tools": TOOLS, "max_tokens": 400, "temperature": 0}
        return chat | {"extra_body": extra}

    def turn(self, number: int) -> None:
        """One request, whose answer calls a tool."""
        line = f"Day {number}.\n{tool_call('read', path=f'day-{number}.txt')}"
        with openai_client(self.url) as client:
            answered = client.chat.completions.create(**self._request(line))
        self.said.append(dict(answered.model_extra or {}))
        message = answered.choices[0].message.model_dump(exclude_none=True)
        self.messages.append(message)
        for call in message.get("tool_calls", ()):
            content = log_lines(8, first=number * 100)
            self.messages.append({"role": "tool", "tool_call_id": call["id"], "content": content})

    def streamed_turn(self, number: int) -> str:
        """One request, whose answer is a text and comes as a stream. What came that the model did not say here."""
        line = f"Day {number}. {log_lines(8, first=number * 100)}"
        with openai_client(self.url) as client:
            chunks = list(client.chat.completions.create(**self._request(line), stream=True))
        told = [chunk.model_extra for chunk in chunks if chunk.model_extra and "acm" in chunk.model_extra]
        self.said.append(dict(told[-1]))
        came = "".join(choice.delta.content or "" for chunk in chunks for choice in chunk.choices)
        self.messages += [{"role": "assistant", "content": line}, {"role": "user", "content": "And the next?"}]
        return came.replace(line, "")

    @property
    def summaries(self) -> list[tuple[int, dict[str, Any]]]:
        """The turns in front of which a summary was written, with what it cost."""
        found = []
        for number, said in enumerate(self.said):
            summary = (said["acm"].get("budget") or {}).get("summary")
            edits = (said.get("context_management") or {}).get("applied_edits") or ()
            summary = summary or next((edit["summary"] for edit in edits if edit["type"] == "compact_20260112"), None)
            found += [(number, summary)] if summary else []
        return found

    def shown(self) -> list[dict[str, Any]]:
        answer = http.get(
            f"{self.url}/v1/acm/sessions/{self.session}/context", headers={"X-Cache-Salt": self.session}
        ).json()
        return [item["message"] for item in answer["messages"] if item["message"] is not None]


def check_old(summary: dict[str, Any], num_least: int = 600) -> None:
    """The acceptance: it was read behind the conversation, and hardly any of that was computed again."""
    assert summary["form"] == "appended", summary
    assert summary["input_tokens"] > num_least
    assert summary["kept_tokens"] + summary["moved_tokens"] + summary["computed_tokens"] == summary["input_tokens"]
    assert summary["computed_tokens"] <= MOST_OLD, summary


def test_a_summary_computes_its_instruction_and_hardly_any_old_token(scripted_server: str) -> None:
    agent = ToolUser(scripted_server, acm={"budget": COMPACT})
    for number in range(14):
        agent.turn(number)
    assert len(agent.summaries) >= 2
    for _, summary in agent.summaries:
        check_old(summary)
    assert all(said["acm"]["budget"]["unmet"] is None for said in agent.said)
    assert max(said["acm"]["receipt"]["prompt_tokens"] for said in agent.said) <= 1300
    shown = agent.shown()
    assert [m["content"] for m in shown if HEAD in str(m["content"])] == [f"{HEAD}\nNoted."]
    assert not any("Stop here for a moment" in str(message) for message in shown)
    assert not orphans(shown[:-1])
    turns = {number for number, _ in agent.summaries}
    for number in range(1, 14):
        if number not in turns:
            kept = agent.said[number]["acm"]["receipt"]["kept_tokens"]
            assert kept >= agent.said[number - 1]["acm"]["receipt"]["prompt_tokens"] - 1


def test_what_was_never_served_is_computed_for_a_summary(scripted_server: str) -> None:
    """The control: the measure of the test above sees old tokens where they are computed."""
    agent = ToolUser(scripted_server, acm={"budget": COMPACT})
    for number in range(8):
        agent.messages.append({"role": "assistant", "content": f"Day {number}. {log_lines(8, first=number * 100)}"})
        agent.messages.append({"role": "user", "content": "And the next?"})
    agent.turn(9)
    [(_, summary)] = agent.summaries
    assert summary["form"] == "appended"
    with pytest.raises(AssertionError, match="<= 200"):
        check_old(summary)


def test_behind_a_summary_the_kept_tail_moves(scripted_server: str) -> None:
    """The request for the summary is no version of the conversation: the tail is found where it was served."""
    agent = ToolUser(scripted_server, "reuse", acm={"budget": COMPACT | {"max_tokens": 2000, "low_watermark": 1500}})
    while not agent.summaries and len(agent.said) < 14:
        agent.turn(len(agent.said))
    number, summary = agent.summaries[0]
    check_old(summary, 500)
    receipt = agent.said[number]["acm"]["receipt"]
    assert receipt["moved_tokens"] > 400
    assert receipt["computed_tokens"] < receipt["moved_tokens"]


def test_the_vendors_compaction_is_asked_for_there_too(scripted_server: str) -> None:
    agent = ToolUser(scripted_server, context_management=EDIT)
    for number in range(12):
        agent.turn(number)
    assert len(agent.summaries) >= 2
    for _, summary in agent.summaries:
        check_old(summary)


def test_nothing_of_a_summary_is_streamed(scripted_server: str) -> None:
    agent = ToolUser(scripted_server, acm={"budget": COMPACT})
    came = [agent.streamed_turn(number) for number in range(9)]
    assert agent.summaries
    assert came == [""] * 9
    for _, summary in agent.summaries:
        check_old(summary)
