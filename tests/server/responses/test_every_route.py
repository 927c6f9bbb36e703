"""One session layer for every route: the same conversation over /v1/chat/completions, /v1/messages and /v1/responses.

The vendors' own clients, the real engine, a scripted model. What an agent does is written once, and run by each route.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import pytest

from tests.server.maps.test_engine import learned
from tests.support import http
from tests.support.routes.route_clients import CHAT, MESSAGES, ROUTES, Agent, Message, text_of
from tests.support.server.scripts import log_lines, new_session, tool_call

SYSTEM = {"role": "system", "content": "You keep the records of a valley."}
LOG = log_lines(60)
ASKED: list[Message] = [SYSTEM, {"role": "user", "content": f"The log:\n{LOG}\nend of the log. What was in line 7?"}]
CUT = tool_call("fragment_context", start_marker="line 0:", end_marker="end of the log", num_fragments=4)
SEARCH = tool_call("search_context", query="line 7:", max_results=1, context_size=50)
READ = {
    "type": "function",
    "function": {
        "name": "read",
        "description": "Read a page.",
        "parameters": {"type": "object", "properties": {"page": {"type": "integer"}}},
    },
}
EVERY_WAY = pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
EVERY_ROUTE = pytest.mark.parametrize("route", ROUTES)
MakeAgent = Callable[..., Agent]


@pytest.fixture
def agent(scripted_server: str) -> MakeAgent:
    return lambda route, stream=False: Agent(scripted_server, route, stream)


def said(text: str) -> Message:
    return {"role": "user", "content": text}


def session_of(server: str, session: str, part: str = "") -> Any:
    return http.get(f"{server}/v1/acm/sessions/{session}{part}").raise_for_status().json()


def edit(server: str, session: str, *edits: dict[str, Any]) -> Any:
    body = {"edits": list(edits)}
    return http.post(f"{server}/v1/acm/sessions/{session}/edits", json=body).raise_for_status().json()


def pages(num_pages: int) -> list[Message]:
    """An agent's history: it has read these pages, one call each."""
    history = [SYSTEM, said("Read the pages.")]
    for page in range(num_pages):
        call = {
            "id": f"call{page:05}",
            "type": "function",
            "function": {"name": "read", "arguments": f'{{"page": {page}}}'},
        }
        history.append({"role": "assistant", "content": "", "tool_calls": [call]})
        history.append({"role": "tool", "tool_call_id": call["id"], "content": log_lines(20, first=20 * page)})
    return history


@EVERY_WAY
@EVERY_ROUTE
def test_a_fold_holds_on_the_next_request(agent: MakeAgent, scripted_server: str, route: str, stream: bool) -> None:
    user, session, history = agent(route, stream), new_session(), list(ASKED)
    first = user.ask(session, history, ["It was 49."])
    assert first.text == "It was 49."
    assert first.acm["receipt"]["prompt_tokens"] == first.num_prompt
    assert session_of(scripted_server, session)["num_messages"] == 3
    edit(scripted_server, session, {"op": "fold", "messages": {"start": 1, "end": 2}})
    history += [first.as_message(), said("And in line 9?")]
    second = user.ask(session, history, ["It was 81."])
    assert second.text == "It was 81."
    assert second.num_prompt < first.num_prompt // 2
    assert second.acm["receipt"]["prompt_tokens"] == second.num_prompt
    third = user.ask(session, [*history, second.as_message(), said("Thanks.")], ["Gladly."])
    assert third.acm["receipt"]["kept_tokens"] >= second.num_prompt - 1


@EVERY_WAY
@EVERY_ROUTE
def test_a_budget_holds_for_every_turn(agent: MakeAgent, route: str, stream: bool) -> None:
    user, session = agent(route, stream), new_session()
    history, budget = pages(1), {"max_tokens": 1500, "policy": "recency"}
    evicted = 0
    for number in range(1, 6):
        answer = user.ask(session, history, [tool_call("read", page=number)], tools=[READ], acm={"budget": budget})
        assert answer.calls[0][2] == {"page": number}
        assert answer.num_prompt <= 1500
        assert answer.acm["budget"]["unmet"] is None
        evicted += answer.acm["budget"]["evicted_tokens"]
        result = {"role": "tool", "tool_call_id": answer.calls[0][0], "content": log_lines(20, first=20 * number)}
        history += [answer.as_message(), result]
    assert evicted > 500


@EVERY_WAY
@EVERY_ROUTE
def test_context_tools_run_in_a_loop(agent: MakeAgent, scripted_server: str, route: str, stream: bool) -> None:
    user, session = agent(route, stream), new_session()
    script = [f"Let me cut the log.\n{CUT}", SEARCH, "It was 49."]
    answer = user.ask(session, ASKED, script, acm={"tools": "sculptor"})
    assert answer.text == "Let me cut the log.\n\nIt was 49."
    assert answer.calls == []
    assert answer.acm["stopped_by"] == "answer"
    operations = [operation for step in answer.acm["steps"] for operation in step["operations"]]
    assert [operation["tool"] for operation in operations] == ["fragment_context", "search_context"]
    assert answer.num_prompt == answer.acm["receipt"]["prompt_tokens"]
    if stream and route != MESSAGES:
        assert [told["event"] for told in answer.told] == ["receipt", "tool", "receipt", "tool", "receipt"]
    fragments = operations[0]["fragment_ids"]
    fold = tool_call("fold_fragment", fragment_id=fragments[0])
    history = [*ASKED, answer.as_message(), said("Fold it.")]
    later = user.ask(session, history, [fold, "Folded."], acm={"tools": "sculptor"})
    assert later.text == "Folded."
    assert later.acm["receipt"]["prompt_tokens"] < later.acm["steps"][0]["receipt"]["prompt_tokens"]
    view = session_of(scripted_server, session, "/context")
    assert next(item for item in view["fragments"] if item["fragment_id"] == fragments[0])["state"] == "folded"


@EVERY_WAY
@EVERY_ROUTE
def test_a_clients_tools_go_to_the_client(agent: MakeAgent, route: str, stream: bool) -> None:
    user, session, history = agent(route, stream), new_session(), [SYSTEM, said("Read page 2.")]
    call = tool_call("read", page=2)
    first = user.ask(session, history, [f"I read it.\n{call}"], tools=[READ])
    assert first.text.strip() == "I read it."
    [(call_id, name, arguments)] = first.calls
    assert (name, arguments) == ("read", {"page": 2})
    history += [first.as_message(), {"role": "tool", "tool_call_id": call_id, "content": log_lines(30)}]
    second = user.ask(session, history, ["The mill stands."], tools=[READ])
    assert second.text == "The mill stands."
    assert second.acm["receipt"]["kept_tokens"] >= first.num_prompt - 1
    beside = user.ask(
        session,
        [*history, second.as_message(), said("Now search.")],
        [SEARCH + call],
        tools=[READ],
        acm={"tools": "sculptor"},
    )
    assert [name for _, name, _ in beside.calls] == ["read"]
    assert beside.acm["stopped_by"] == "client_tools"


@EVERY_WAY
@EVERY_ROUTE
def test_a_branch_of_the_model(agent: MakeAgent, route: str, stream: bool) -> None:
    user, session = agent(route, stream), new_session()
    opened = tool_call("branch", description="find line 7", prompt="What was read in line 7?")
    back = tool_call("return", message="It was 49.")
    answer = user.ask(
        session, ASKED, [opened, SEARCH, back, "The branch says 49."], acm={"tools": ["sculptor", "branch"]}
    )
    assert answer.text == "The branch says 49."
    [branch] = answer.acm["branches"]
    assert branch["state"] == "returned"


@EVERY_WAY
@EVERY_ROUTE
def test_a_map_is_read_and_taught(agent: MakeAgent, route: str, stream: bool) -> None:
    """The second question is of another session, and reads what the first one taught."""
    context, versions = new_session(), []
    for number in range(2):
        update = {"vllm_xargs": {"script_id": uuid.uuid4().hex, "script": learned(number)}}
        acm = {"map": {"external_context_id": context, "evolve_steps": 9, "wait": True, "update": update}}
        history = [SYSTEM, said(f"What was read in line {number}?")]
        versions.append(agent(route, stream).ask(new_session(), history, ["It was 9."], acm=acm).acm["map"]["version"])
    assert versions == [0, 1]


@EVERY_WAY
@EVERY_ROUTE
def test_an_edit_that_cannot_stay_is_told(agent: MakeAgent, scripted_server: str, route: str, stream: bool) -> None:
    user, session = agent(route, stream), new_session()
    user.ask(session, ASKED, ["It was 49."])
    edit(scripted_server, session, {"op": "fold", "messages": {"start": 1, "end": 2}})
    [fragment] = session_of(scripted_server, session, "/context")["fragments"]
    kept = user.ask(session, ASKED, ["It was 49."])
    assert "dropped" not in kept.acm, "the control: unchanged text keeps its edit"
    history = [SYSTEM, said("Something else altogether.")]
    told = user.ask(session, history, ["Quite."]).acm["dropped"]
    assert told == [
        {"kind": "fragment", "id": fragment["fragment_id"], "reason": "its message is no longer in the history."}
    ]
    assert "dropped" not in user.ask(session, history, ["Quite."]).acm, "it is told once"


@EVERY_WAY
@EVERY_ROUTE
def test_redacted_text_never_comes_back(agent: MakeAgent, scripted_server: str, route: str, stream: bool) -> None:
    """The client resends it as it was, and once more behind words of its own. The control is the same of a fold."""
    served = []
    for op in ("redact", "fold"):
        user, session, history = agent(route, stream), new_session(), list(ASKED)
        first = user.ask(session, history, ["It was 49."])
        edit(scripted_server, session, {"op": op, "messages": {"start": 1, "end": 2}})
        history += [first.as_message(), said(f"Once more, from my notes:\n{LOG}\nAnd in line 9?")]
        served.append(user.ask(session, history, ["It was 81."]).num_prompt / first.num_prompt)
        shown = text_of(session_of(scripted_server, session, "/context"))
        assert ("line 7:" in shown) == (op == "fold")
    assert served[0] < 0.5 < served[1]


def test_one_conversation_is_the_same_prompt_on_every_route(agent: MakeAgent) -> None:
    history = [*pages(3), {"role": "assistant", "content": "Read."}, said("What burned?")]
    answers = []
    for route in ROUTES:
        user, session = agent(route), new_session()
        turns = [history[: len(history) - 2], history]
        answers.append([user.ask(session, turn, ["The mill."], tools=[READ], cache_salt=session) for turn in turns])
    receipts = [[answer.acm["receipt"] for answer in turns] for turns in answers]
    assert receipts[0] == receipts[1] == receipts[2]
    assert len({answer.num_prompt for turns in answers for answer in turns}) == 2


def test_a_session_moves_from_route_to_route(agent: MakeAgent, scripted_server: str) -> None:
    session, history, kept = new_session(), list(ASKED), []
    for number, route in enumerate((*ROUTES, CHAT)):
        answer = agent(route).ask(session, history, [f"Answer {number}."])
        kept.append((answer.acm["receipt"]["kept_tokens"], answer.num_prompt))
        history += [answer.as_message(), said("And then?")]
    for (_, num_before), (num_kept, _) in pairwise(kept):
        assert num_kept >= num_before - 1
    assert session_of(scripted_server, session)["num_messages"] == len(history) - 1
