"""Edits that wait under `acm.commit: cheapest`, where something else happens meanwhile.

A stand-in says the calls. Sessions, tools, routes and the file are the real ones.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from starlette.responses import JSONResponse

from acmserve.context.edits.steps import result_of
from acmserve.context.session.branches.fork import fork_thread
from acmserve.context.session.branches.thread import Thread
from acmserve.context.session.render import render
from acmserve.context.session.state import SessionState
from acmserve.context.session.waiting import waiting
from acmserve.context.storage.sqlite import Archive
from acmserve.errors import Conflict
from acmserve.server.routes.views.context import context_steps
from tests.support.commits.folding_client import TEXT, FoldingClient, marked, shown
from tests.support.routes.stand_in_model import call, said
from tests.support.server.acm_app import SESSIONS, make_client, make_server


@pytest.fixture
def client() -> FoldingClient:
    return FoldingClient()


def test_a_stream_and_the_context_say_which_edits_wait(client: FoldingClient) -> None:
    seen: list[tuple[str, bool, bool]] = []

    def look(event: dict[str, Any]) -> bool:
        if event.get("acm", {}).get("event") == "tool":
            state = client.session.state
            view = result_of(context_steps(client.session, client.server.tokenizer, [None] * len(state.entries)))
            seen.append((view.fragments[0].state, view.fragments[0].waits, view.fragments[1].waits))
            assert view.fragments[0].num_tokens_shown == view.fragments[0].num_tokens
        return False

    events = client.stream(client.fold(0), client.fold(1), said("Done."), until=look)
    receipts = [event["acm"] for event in events if event.get("acm", {}).get("event") == "receipt"]
    told = [[edit["fragment_id"] for edit in one.get("commit", {}).get("waiting", [])] for one in receipts]
    assert told == [[], client.ids[:1], client.ids[:2]]
    assert seen == [("folded", True, False), ("folded", True, True)]
    end = next(event["acm"] for event in reversed(events) if "steps" in event.get("acm", {}))
    assert (end["commit"]["committed"], end["commit"]["reason"]) == (client.ids[:2], "turn_end")
    assert [step.get("commit", {}).get("waiting") for step in end["steps"]] == [
        one.get("commit", {}).get("waiting") for one in receipts
    ]
    assert marked(client, 0, 1)


@pytest.mark.parametrize("words", ["the same", "other"])
def test_what_waits_when_a_client_leaves_takes_effect_and_stays_so(client: FoldingClient, words: str) -> None:
    client.leave_behind_folds(0, 2)
    assert marked(client, 0, 2)
    if words == "other":
        client.history = [{**message, "name": "", "refusal": None} for message in client.history]
        client.history[0]["content"] = [{"type": "text", "text": client.history[0]["content"]}]
    client.ask(said("Fine."), loop=False)
    (asked,) = client.models[-1].requests
    prompt = str(asked.messages)
    assert all(f"[folded {client.ids[number]}" in prompt for number in (0, 2))
    assert "Word number 30 " not in prompt
    assert "Never heard." not in prompt
    assert len(client.session.state.entries) == len(client.history) + 2, "the steps of the first turn"
    kinds = [(event.by.value, event.arguments) for event in operations(client) if event.name == "commit"]
    assert kinds == [("policy", {"fragment_ids": [client.ids[0], client.ids[2]], "reason": "interrupted"})]
    assert waiting(client.session.state) == ()


def operations(client: FoldingClient) -> Iterator[Any]:
    return (event for event in client.session.state.rollout.events if hasattr(event, "by"))


def test_a_restart_keeps_what_waits_and_the_next_request_shows_it(tmp_path: Path) -> None:
    archive = Archive(tmp_path / "data")
    client = FoldingClient(make_server(archive=archive))
    left: list[SessionState] = []

    def kill() -> None:
        """What the file has while the loop runs is what a killed server leaves."""
        left.append(client.session.state)
        shutil.copytree(archive.path.parent, tmp_path / "killed")

    client.leave_behind_folds(1, 3, when_all_wait=kill)
    archive.close()
    archive = Archive(tmp_path / "killed")
    client.server = make_server(archive=archive)
    assert [client.session.state] == left
    assert len(waiting(client.session.state)) == 2
    client.ask(said("Fine."))
    assert marked(client, 1, 3)
    archive.close()


def test_a_branch_of_a_session_that_a_client_left_begins_with_the_edits(client: FoldingClient) -> None:
    client.leave_behind_folds(0, 1)
    http = make_client(client.server)
    wanted = {"description": "Read.", "prompt": "Read it."}
    made = http.post(f"{SESSIONS}/s/branches", json=wanted).raise_for_status().json()
    branch = http.get(f"{SESSIONS}/{made['session_id']}/context").raise_for_status().json()
    assert [(one["state"], one["waits"]) for one in branch["fragments"][:3]] == [
        ("folded", False),
        ("folded", False),
        ("visible", False),
    ]
    assert client.ids[0] in branch["messages"][0]["message"]["content"]
    assert marked(client, 0, 1), "the parent, too"


def test_a_side_thread_that_begins_in_the_middle_of_a_loop_has_the_edits(client: FoldingClient) -> None:
    store = client.server.store

    def fork(event: dict[str, Any]) -> bool:
        if event.get("acm", {}).get("event") == "tool" and not store.has("", "side"):
            thread = Thread("s", "side", "s", is_fork=True)
            store.save(store.create("", "side"), fork_thread(client.session.state, thread))
            assert len(waiting(store.get("", "side").state)) == 1
        return False

    client.stream(client.fold(0), said("Done."), until=fork)
    nothing = {"arguments": {"fragment_id": "f00000"}}
    make_client(client.server).post(f"{SESSIONS}/side/tools/fold_fragment", json=nothing).raise_for_status()
    side = store.get("", "side").state
    assert waiting(side) == ()
    assert client.ids[0] in render(side)[0]["content"]
    assert marked(client, 0)


@pytest.mark.parametrize("failure", [RuntimeError("engine gone"), JSONResponse({"error": {}}, status_code=400)])
def test_a_step_that_fails_leaves_nothing_waiting(client: FoldingClient, failure: Any) -> None:
    before = client.session.state
    body = client.ask(client.fold(0), client.fold(1), failure)
    assert [edit["fragment_id"] for edit in body["acm"]["commit"]["waiting"]] == client.ids[:2]
    assert client.session.state == before, "a turn that fails leaves nothing"
    events = client.stream(client.fold(0), client.fold(1), failure)
    told = next(event for event in reversed(events) if "error" in event)
    assert [edit["fragment_id"] for edit in told["acm"]["commit"]["waiting"]] == client.ids[:2]
    assert marked(client, 0, 1), "a stream leaves whole steps"


def test_an_edit_of_somebody_else_comes_behind_what_waited(client: FoldingClient) -> None:
    client.leave_behind_folds(0, 1)
    http = make_client(client.server)
    told = http.post(f"{SESSIONS}/s/edits", json={"edits": [{"op": "fold", "fragment_id": client.ids[3]}]})
    edited = told.raise_for_status().json()
    assert marked(client, 0, 1, 3)
    assert edited["next_turn"]["recomputed_tokens"] < client.session.state.fragments[0].num_tokens * 4
    assert [event.name for event in operations(client)][-2:] == ["commit", "fold"]


@pytest.mark.parametrize("path", ["edits", "tools/fold_fragment"])
def test_outside_of_a_loop_nothing_waits(client: FoldingClient, path: str) -> None:
    http = make_client(client.server)
    body: dict[str, Any] = {"arguments": {"fragment_id": client.ids[0]}}
    if path == "edits":
        body = {"edits": [{"op": "fold", "fragment_id": client.ids[0]}]}
    refused = http.post(f"{SESSIONS}/s/{path}", json=body | {"commit": "cheapest"})
    assert refused.status_code == 400
    error = refused.json()["error"]
    assert error["param"] == "commit"
    assert "acm.tools and acm.commit" in error["remedy"]
    assert shown(client) == TEXT
    http.post(f"{SESSIONS}/s/{path}", json=body | {"commit": "now"}).raise_for_status()
    assert marked(client, 0)


def test_a_redaction_of_a_text_that_waited_leaves_nothing_of_it(client: FoldingClient) -> None:
    client.leave_behind_folds(0, 1)
    gone = client.session.state.fragment_text(client.session.state.fragments[0])
    edits = {"edits": [{"op": "redact", "fragment_id": client.ids[0]}]}
    make_client(client.server).post(f"{SESSIONS}/s/edits", json=edits).raise_for_status()
    state = client.session.state
    state.check_integrity()
    assert waiting(state) == ()
    assert gone[:60] not in repr(state)
    assert f"[redacted {client.ids[0]}: " in shown(client)
    assert f"[folded {client.ids[1]}: " in shown(client)
    assert [event.name for event in state.rollout.events if hasattr(event, "name")] == ["redact"]
    client.ask(said("Fine."))
    assert gone[:60] not in str(client.models[-1].requests)


def test_a_record_that_has_no_room_costs_no_answer(client: FoldingClient) -> None:
    """The completion is larger than what is left. It is left out, and the answer says so."""
    store = client.server.store
    store.limits = replace(store.limits, max_bytes=client.session.num_bytes + 2_000)
    num_before = len(client.session.state.rollout.completions)
    body = client.ask(said("Read it. " * 100))
    assert body["choices"][0]["message"]["content"].startswith("Read it.")
    assert "is not recorded" in body["acm"]["storage"]["warning"]
    assert client.session.state.entries[-1].message["content"].startswith("Read it.")
    store.limits = replace(store.limits, max_bytes=2**30)
    client.say("And now?")
    assert "storage" not in client.ask(said("Fine."))["acm"]
    record = client.session.state.rollout
    assert len(record.completions) == num_before + 1
    assert record.prompt(num_before) == client.models[-1].prompts[-1]


def test_an_answer_that_has_no_room_is_given_all_the_same(client: FoldingClient) -> None:
    """The loop is over, so nothing is wrong for having no record of it. In the middle the model would not see it."""
    store, told = client.server.store, "Read it. " * 1_000
    store.limits = replace(store.limits, max_bytes=client.session.num_bytes + 3_000)
    num_before = len(client.history) + 2
    body = client.ask(client.fold(0), said(told))
    assert body["choices"][0]["message"]["content"] == told
    assert "is not recorded" in body["acm"]["storage"]["warning"]
    assert told not in str(client.session.state.entries[num_before:])
    assert marked(client, 0)
    client.history.pop()
    ends = [event["acm"] for event in client.stream(said(told)) if "stopped_by" in event.get("acm", {})]
    assert "is not recorded" in ends[-1]["storage"]["warning"]
    too_much = call("search_context", query="Word", max_results=50, context_size=1_000)
    with pytest.raises(Conflict, match="--max-session-mib"):
        client.ask(said(None, too_much), said("Never said."))


def test_a_full_session_lets_what_waits_take_effect_without_a_line_in_its_record(client: FoldingClient) -> None:
    store = client.server.store

    def fill() -> None:
        """Turns would make room."""
        store.record(client.session, client.session.turns.emptied())
        store.limits = replace(store.limits, max_bytes=client.session.num_bytes)

    client.leave_behind_folds(0, 1, when_all_wait=fill)
    assert marked(client, 0, 1)
    assert "commit" not in [event.name for event in operations(client)]
