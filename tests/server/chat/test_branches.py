"""Branches in the loop, beside a stand-in for vLLM's routes. The real engine is in `context/test_branches.py`."""

from __future__ import annotations

from typing import Any

import pytest
from starlette.responses import JSONResponse
from vllm.exceptions import VLLMValidationError

from acmserve.context.session.branches.branching import Spent
from acmserve.context.session.branches.fork import fork, place_result
from acmserve.context.session.history import adopt
from acmserve.context.session.render import render
from tests.server.chat.test_steps import MESSAGES, TEXT, Model, call, make_turn, parsed, run, run_stream, said

OPEN = call("branch", "b1", description="find the port", prompt="Which port is it?")
BACK = call("return", "r1", message="It is 8000.")
SEARCH = call("search_context", "s1", query="Word", max_results=1)
GREP = call("grep", "g1", pattern="port")
TOOLS = [{"type": "function", "function": {"name": "grep", "parameters": {"type": "object", "properties": {}}}}]
SUITES = ("sculptor", "branch")


def seen(model: Model, number: int) -> list[dict[str, Any]]:
    """The messages of one request."""
    messages: list[dict[str, Any]] = model.requests[number].messages
    return messages


def choice(model: Model, number: int) -> Any:
    made = model.requests[number].tool_choice
    return made if isinstance(made, str) else made.function.name


def never_branched(message: str, *beside: dict[str, Any]) -> list[dict[str, Any]]:
    """What the model sees that had the message as the result of a tool, with the ids of the other calls."""
    made = {"role": "assistant", "content": None, "tool_calls": [OPEN, *beside]}
    return [*MESSAGES, made, {"role": "tool", "tool_call_id": "b1", "content": message}]


@pytest.mark.parametrize("streams", [False, True])
def test_a_branch_sees_main_and_main_sees_only_the_message(streams: bool) -> None:
    turn = make_turn(suites=SUITES)
    model = Model(said(None, OPEN), said("Let me look.", SEARCH), said(None, BACK), said("Port 8000."))
    if streams:
        acm = [event for event in run_stream(turn, model) if isinstance(event, dict) and "acm" in event][-1]["acm"]
    else:
        acm = parsed(run(turn, model))["acm"]
    assert "Which port is it?" in seen(model, 1)[2]["content"]
    assert seen(model, 1)[:1] == MESSAGES
    assert [m["role"] for m in seen(model, 2)] == ["user", "assistant", "tool", "assistant", "tool"]
    assert seen(model, 3) == never_branched("It is 8000.") == render(turn.session.state)[:-1]
    assert acm["stopped_by"] == "answer"
    assert [step.get("branch") for step in acm["steps"]] == [None, "b1", "b1", None]
    [told] = acm["branches"]
    assert told.pop("num_tokens") > 20
    assert told == {"branch_id": "b1", "description": "find the port", "state": "returned", "num_calls": 2}
    turn.session.state.check_integrity()


@pytest.mark.parametrize(
    ("calls", "results"),
    [
        ([BACK], ["no open branch to return from"]),
        ([OPEN, call("branch", "b2", description="d", prompt="p")], ["", "'find the port' is open"]),
        ([OPEN, BACK], ["", "begins with the next step"]),
        ([call("branch", "b1", description="d")], ["prompt"]),
    ],
)
def test_a_wrong_call_in_main_changes_nothing_and_says_what_to_do(calls: list[Any], results: list[str]) -> None:
    turn = make_turn(suites=SUITES)
    model = Model(said(None, *calls), said(None, BACK), said("Done."), said("Done."))
    operations = parsed(run(turn, model))["acm"]["steps"][0]["operations"]
    assert [bool(words) for words in results] == [operation["is_error"] for operation in operations]
    for words, operation in zip(results, operations, strict=True):
        assert words in operation["result"]
    opens = OPEN in calls
    assert [branch.state for branch in turn.session.state.branches] == ["returned"] * opens


def test_in_a_branch_no_other_opens_and_nothing_is_done_behind_a_return() -> None:
    turn = make_turn(suites=SUITES, max_tool_calls=9)
    again = call("branch", "b2", description="d", prompt="p")
    late = call("search_context", "s2", query="Word")
    model = Model(said(None, OPEN), said(None, again), said(None, SEARCH, BACK, late, again), said("Done."))
    steps = parsed(run(turn, model))["acm"]["steps"]
    assert "a branch cannot open another one" in steps[1]["operations"][0]["result"]
    assert [operation["is_error"] for operation in steps[2]["operations"]] == [False, False, True, True]
    assert all("the branch has returned" in done["result"] for done in steps[2]["operations"][2:])
    assert seen(model, 3) == never_branched("It is 8000.")


def test_calls_beside_the_opening_belong_to_main() -> None:
    turn = make_turn(suites=SUITES)
    model = Model(said(None, OPEN, SEARCH), said(None, BACK), said("Done."))
    run(turn, model)
    shown = seen(model, 2)
    assert shown[:3] == never_branched("It is 8000.", SEARCH)
    assert TEXT[:20] in shown[3]["content"]


def test_a_branch_cannot_open_or_return_beside_a_call_of_the_client() -> None:
    turn = make_turn(suites=SUITES)
    answer = parsed(run(turn, Model(said(None, GREP, OPEN)), tools=TOOLS))
    [operation] = answer["acm"]["steps"][0]["operations"]
    assert "cannot be called in one step with grep" in operation["result"]
    assert answer["acm"]["stopped_by"] == "client_tools"
    assert not turn.session.state.branches


def test_tools_of_the_client_run_inside_a_branch() -> None:
    turn = make_turn(suites=SUITES)
    first = parsed(run(turn, Model(said(None, OPEN), said(None, GREP)), tools=TOOLS))
    message = first["choices"][0]["message"]
    assert [made["function"]["name"] for made in message["tool_calls"]] == ["grep"]
    assert first["acm"]["branches"][0]["state"] == "open"
    result = {"role": "tool", "tool_call_id": "g1", "content": "port: 8000"}
    history = [*MESSAGES, {k: v for k, v in message.items() if v is not None}, result]
    turn.server.store.save(turn.session, adopt(turn.session.state, history).state)
    model = Model(said(None, BACK), said("Port 8000."))
    second = parsed(run(turn, model, tools=TOOLS))
    assert seen(model, 0)[-1] == result
    assert seen(model, 1) == never_branched("It is 8000.")
    assert (second["acm"]["branches"][0]["state"], second["acm"]["branches"][0]["num_calls"]) == ("returned", 2)


def test_an_answer_in_a_branch_is_its_message() -> None:
    turn = make_turn(suites=SUITES)
    model = Model(said(None, OPEN), said("It is 8000."), said("Port 8000."))
    assert parsed(run(turn, model))["acm"]["stopped_by"] == "answer"
    assert seen(model, 2) == never_branched("It is 8000.")
    silent = Model(said(None, OPEN), said(None), said("Port unknown."))
    run(make_turn(suites=SUITES), silent)
    assert seen(silent, 2)[-1]["content"] == "Error: the branch ended without a result: it ended without a message."


def test_a_branch_over_its_limit_has_to_return() -> None:
    turn = make_turn(suites=SUITES, branch_tokens=30)
    model = Model(said(None, OPEN), said("w " * 40, SEARCH), said(None, BACK), said("Port 8000."))
    acm = parsed(run(turn, model))["acm"]
    assert [choice(model, number) for number in range(4)] == ["auto", "auto", "return", "auto"]
    assert acm["branches"][0]["state"] == "returned"
    assert acm["branches"][0]["num_tokens"] > 30


def test_a_branch_more_than_the_session_may_open_changes_nothing_and_says_so() -> None:
    """Those of earlier answers count, and failed ones. One that a client's rewind has undone does not."""
    turn = make_turn(suites=SUITES, max_tool_calls=9, max_branches=2)
    again, third = (call("branch", name, description="d", prompt="p") for name in ("b2", "b3"))
    first = parsed(run(turn, Model(said(None, OPEN), said(None, BACK), said("Port 8000."))))
    history = [*MESSAGES, first["choices"][0]["message"], {"role": "user", "content": "And?"}]
    turn.server.store.save(turn.session, adopt(turn.session.state, history).state)
    model = Model(said(None, again), said(None), said(None, third), said(None, SEARCH), said("Done."))
    acm = parsed(run(turn, model, messages=history))["acm"]
    [refused] = acm["steps"][2]["operations"]
    assert (refused["is_error"], refused["changed"]) == (True, False)
    assert refused["result"].startswith("Error: name: no further branch opens: 2 of 2 of this conversation are used.")
    assert seen(model, 3)[-1] == {"role": "tool", "tool_call_id": "b3", "content": refused["result"]}
    assert acm["steps"][3]["operations"][0]["is_error"] is False
    assert [(branch["branch_id"], branch["state"]) for branch in acm["branches"]] == [("b2", "failed")]
    assert [branch.call_id for branch in turn.session.state.branches] == ["b1", "b2"]
    assert acm["stopped_by"] == "answer"
    turn.session.state.check_integrity()
    turn.server.store.save(turn.session, adopt(turn.session.state, history[:2]).state)
    model = Model(said(None, third), said(None, BACK), said("Done."))
    assert parsed(run(turn, model, messages=history))["acm"]["branches"][0]["state"] == "returned"


def test_branches_of_a_client_are_none_that_the_model_opened() -> None:
    turn = make_turn(suites=SUITES, max_branches=1)
    store, state = turn.server.store, turn.session.state
    parent = fork(state, "s", "d", "p").parent
    assert parent is not None
    store.save(turn.session, place_result(state, "c1", parent, "Found.", Spent()))
    acm = parsed(run(turn, Model(said(None, OPEN), said(None, BACK), said("Done."))))["acm"]
    assert [branch["branch_id"] for branch in acm["branches"]] == ["b1"]
    assert [branch.call_id for branch in turn.session.state.branches] == ["c1", "b1"]


@pytest.mark.parametrize("line", [said("No."), said("{", finish_reason="length"), said(None, SEARCH), said(None, GREP)])
def test_a_branch_that_does_not_return_when_it_has_to_has_failed(line: dict[str, Any]) -> None:
    turn = make_turn(suites=SUITES, branch_tokens=1)
    model = Model(said(None, OPEN), said("Look.", SEARCH), line, said("Port unknown."))
    answer = parsed(run(turn, model, tools=TOOLS))
    assert answer["acm"]["branches"][0]["state"] == "failed"
    assert seen(model, 3)[-1]["content"].endswith("it was asked to call return, and did not.")
    assert answer["choices"][0]["message"]["content"].endswith("Port unknown.")
    assert answer["acm"]["stopped_by"] == "answer"


def test_without_tool_calls_left_the_branch_returns_and_main_answers() -> None:
    turn = make_turn(suites=SUITES, max_tool_calls=2)
    model = Model(said(None, OPEN), said(None, SEARCH), said(None, BACK), said("Port 8000."))
    acm = parsed(run(turn, model))["acm"]
    assert [choice(model, number) for number in range(4)] == ["auto", "auto", "return", "none"]
    assert (acm["stopped_by"], acm["branches"][0]["state"]) == ("max_tool_calls", "returned")


@pytest.mark.parametrize(
    "line",
    [
        VLLMValidationError("the prompt is too long"),
        JSONResponse({"error": {"message": "the prompt is too long"}}, 400),
    ],
)
def test_a_branch_in_which_the_model_cannot_be_asked_has_failed(line: Any) -> None:
    turn = make_turn(suites=SUITES)
    model = Model(said(None, OPEN), line, said("Port unknown."))
    assert parsed(run(turn, model))["acm"]["branches"][0]["state"] == "failed"
    assert seen(model, 2)[-1]["content"].endswith("could not be asked: the prompt is too long")


def test_a_step_of_a_branch_that_is_cut_short_is_the_answer() -> None:
    turn = make_turn(suites=SUITES)
    answer = parsed(run(turn, Model(said(None, OPEN), said("I am", finish_reason="length"))))
    assert (answer["acm"]["stopped_by"], answer["acm"]["branches"][0]["state"]) == ("length", "failed")
    assert [message["role"] for message in render(turn.session.state)] == ["user", "assistant", "tool", "assistant"]


def test_a_session_that_is_a_branch_opens_none() -> None:
    turn = make_turn(suites=SUITES)
    store, state = turn.server.store, turn.session.state
    store.save(turn.session, fork(state, "parent", "d", "p"))
    operations = parsed(run(turn, Model(said(None, OPEN, BACK), said("Done."))))["acm"]["steps"][0]["operations"]
    assert "this conversation is a branch" in operations[0]["result"]
    assert "your answer is what it returns" in operations[1]["result"]
