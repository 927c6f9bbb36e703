"""`context_management` in a chat session: it edits the session, beside a budget and the tool loop. Also `compact`."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any

import pytest
from starlette.testclient import TestClient

from acmserve.context.eviction.clear_tool_uses import ClearToolUses
from acmserve.context.eviction.compact import HEAD, Summary
from acmserve.context.session.history import adopt
from acmserve.context.session.render import render
from acmserve.context.storage.codecs.state import state_from, state_value
from acmserve.server.app.paths import CHAT_PATH
from acmserve.server.context.server import ContextServer
from tests.server.chat.test_steps import Model, call, make_turn, parsed, run, run_stream, said
from tests.support.routes.vendor_app import Handler, make_editor, vendor_client
from tests.support.server.acm_app import FirstSentence, make_server
from tests.support.server.bad_context_management import COMPACT, TOOLS
from tests.support.server.block_story import PLACEHOLDER

CLEAR_NOW: dict[str, Any] = {"edits": [{"type": TOOLS, "trigger": {"type": "tool_uses", "value": 3}}]}
CLEAR_LATE: dict[str, Any] = {"edits": [{"type": TOOLS}]}


def summarize(trigger: int, **more: Any) -> dict[str, Any]:
    return {"edits": [{"type": COMPACT, "trigger": {"type": "input_tokens", "value": trigger}, **more}]}


def reads(num: int) -> list[dict[str, Any]]:
    messages: list[dict[str, Any]] = [{"role": "user", "content": "Find it ."}]
    for number in range(num):
        made = {"id": f"c{number}", "type": "function", "function": {"name": "read", "arguments": "{}"}}
        messages.append({"role": "assistant", "content": None, "tool_calls": [made]})
        messages.append({"role": "tool", "tool_call_id": f"c{number}", "content": f"{number} " + "w " * 20})
    return messages


def cleared(messages: list[dict[str, Any]]) -> list[bool]:
    return [message["content"] == PLACEHOLDER for message in messages if message["role"] == "tool"]


@pytest.fixture
def handler() -> Handler:
    return Handler()


@pytest.fixture
def client(handler: Handler) -> TestClient:
    return vendor_client(handler, make_editor(FirstSentence()))


def sessions_of(client: TestClient) -> ContextServer:
    server: ContextServer = client.app.state.acm_server  # type: ignore[attr-defined]
    return server


def chat(client: TestClient, messages: list[dict[str, Any]], edits: Any, status: int = 200, **more: Any) -> Any:
    body = {"model": "m", "messages": messages, "context_management": edits, "session_id": "s", **more}
    answer = client.post(CHAT_PATH, json=body)
    assert answer.status_code == status, answer.text
    return answer.json()


def test_what_is_cleared_stays_cleared_in_later_requests(client: TestClient, handler: Handler) -> None:
    messages = reads(5)
    first = chat(client, messages, CLEAR_NOW)
    messages.append({"role": "user", "content": "And now ?"})
    later = chat(client, messages, CLEAR_LATE)
    without = chat(client, messages, None)
    assert [cleared(seen) for seen in handler.seen] == [[True, True, False, False, False]] * 3
    applied = [{"type": TOOLS, "cleared_tool_uses": 2, "cleared_input_tokens": 38}]
    assert first["context_management"] == later["context_management"] == {"applied_edits": applied}
    assert "context_management" not in without


def test_a_session_that_is_stored_and_read_renders_alike_and_a_deleted_one_forgets(
    client: TestClient, handler: Handler
) -> None:
    chat(client, reads(5), CLEAR_NOW)
    server = sessions_of(client)
    state = server.store.get("", "s").state
    assert render(state_from(state_value(state), "the test")) == render(state)
    server.delete(server.store.get("", "s"))
    chat(client, reads(5), CLEAR_LATE)
    assert cleared(handler.seen[-1]) == [False] * 5


def test_a_rewind_drops_what_was_cleared_behind_it(client: TestClient, handler: Handler) -> None:
    messages = reads(6)
    chat(client, messages, CLEAR_NOW)
    assert cleared(handler.seen[-1]) == [True, True, True, False, False, False]
    chat(client, [*messages[:5], {"role": "user", "content": "Stop ."}], CLEAR_LATE)
    assert cleared(handler.seen[-1]) == [True, False]


def test_edits_come_before_the_budget(client: TestClient, handler: Handler) -> None:
    """What the edits clear is enough here. Without them the budget has to evict."""
    budget = {"max_tokens": 330, "low_watermark": 200, "policy": "recency"}
    both = chat(client, reads(9), CLEAR_NOW, acm={"budget": budget})
    assert both["context_management"]["applied_edits"][0]["cleared_tool_uses"] == 6
    assert cleared(handler.seen[-1]) == [True] * 6 + [False] * 3
    evicting = {"max_tokens": 120, "low_watermark": 100, "policy": "recency"}
    again = chat(client, reads(9), CLEAR_NOW, acm={"budget": evicting})
    assert len(cleared(handler.seen[-1])) < 9
    told = again["context_management"]["applied_edits"]
    num_left = sum(cleared(handler.seen[-1]))
    assert [edit["cleared_tool_uses"] for edit in told] == ([num_left] if num_left else [])


def test_the_loop_edits_in_front_of_every_step() -> None:
    turn = replace(make_turn(), edits=(ClearToolUses(trigger_tokens=None, trigger_uses=1, keep=1),))
    turn.server.store.save(turn.session, adopt(turn.session.state, reads(3)).state)
    model = Model(said(None, call("search_context", query="w", mode="exact")), said("Done."))
    payload = parsed(run(turn, model))
    shown = [[m if isinstance(m, dict) else m.model_dump() for m in request.messages] for request in model.requests]
    assert [cleared(messages) for messages in shown] == [[True, True, False], [True, True, True, False]]
    assert payload["context_management"]["applied_edits"][0]["cleared_tool_uses"] == 3
    assert payload["acm"]["stopped_by"] == "answer"


def test_a_stream_of_the_loop_ends_with_what_was_cleared() -> None:
    turn = replace(make_turn(), edits=(ClearToolUses(trigger_tokens=None, keep=1),))
    turn.server.store.save(turn.session, adopt(turn.session.state, reads(3)).state)
    events = [event for event in run_stream(turn, Model(said("Done."))) if isinstance(event, dict)]
    told = [event["context_management"] for event in events if "context_management" in event]
    assert [edit["cleared_tool_uses"] for edit in told[0]["applied_edits"]] == [2]
    assert len(told) == 1


def test_over_the_trigger_a_summary_stands_for_all_but_the_last_step(client: TestClient, handler: Handler) -> None:
    messages = reads(6)
    below = chat(client, messages, summarize(5000))
    assert below["context_management"] == {"applied_edits": []}
    assert len(handler.seen[-1]) == len(messages)
    over = chat(client, messages, summarize(100, instructions="Keep the numbers."))
    (applied,) = over["context_management"]["applied_edits"]
    assert applied["type"] == COMPACT
    assert applied["cleared_input_tokens"] > 50
    assert applied["summary"]["output_tokens"] == 6
    shown = handler.seen[-1]
    assert [message["role"] for message in shown] == ["user", "assistant", "assistant", "tool"]
    assert shown[1]["content"].startswith(f"{HEAD}\nSummary 1 of ")
    summarizer = sessions_of(client)._summarizer
    assert isinstance(summarizer, FirstSentence)
    [(text, instructions)] = summarizer.conversations
    assert instructions == "Keep the numbers."
    assert "result of read: 0 w w" in text
    assert "result of read: 5" not in text
    messages.append({"role": "user", "content": "And now ?"})
    chat(client, messages, None)
    assert handler.seen[-1][:-1] == shown


def test_a_summary_that_cannot_be_had_is_said_and_the_request_goes_on(handler: Handler) -> None:
    client = vendor_client(handler, make_editor(FirstSentence()))
    client.app.state.acm_server = make_server(down=True)  # type: ignore[attr-defined]
    told = chat(client, reads(6), summarize(100))["context_management"]
    assert told["applied_edits"] == []
    assert told["unmet"] == f"{COMPACT}: the summary model did not answer: connection refused"
    assert len(handler.seen[-1]) == 13
    assert not sessions_of(client).store.get("", "s").state.omissions


def test_a_pause_has_no_form_in_a_chat(client: TestClient, handler: Handler) -> None:
    error = chat(client, reads(2), summarize(100, pause_after_compaction=True), status=400)["error"]
    assert error["param"] == "context_management.edits[0].pause_after_compaction"
    assert "/v1/messages" in error["remedy"]
    assert handler.seen == []


class Onlooker(FirstSentence):
    """While it writes, somebody asks for the session's budget, and somebody else wants to change the session."""

    def __init__(self, server: ContextServer) -> None:
        super().__init__()
        self._server = server
        self.was_held = False

    async def summarize_conversation(self, text: str, num_tokens: int, instructions: str = "") -> Summary:
        session = self._server.store.get("", "s")
        self._server.budgets.meter(session)
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.01), self._server.sessions.locked(session):
                pass
        self.was_held = True
        return await super().summarize_conversation(text, num_tokens, instructions)


def test_who_looks_at_a_session_while_its_summary_is_written_changes_nothing(
    client: TestClient, handler: Handler
) -> None:
    messages = reads(4)
    chat(client, messages, None)
    messages += reads(6)
    undisturbed = chat(client, messages, summarize(100))
    other = vendor_client(handler, make_editor(FirstSentence()))
    server = sessions_of(other)
    onlooker = server._summarizer = Onlooker(server)
    chat(other, messages[:9], None)
    disturbed = chat(other, messages, summarize(100))
    assert onlooker.was_held
    assert disturbed["context_management"] == undisturbed["context_management"]
    assert handler.seen[-1] == handler.seen[1]
    server.budgets.meter(server.store.get("", "s")).check_integrity()
