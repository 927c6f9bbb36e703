"""The tool loop under a budget, without an engine: suites together, `delimiter`, and what the answer says."""

from __future__ import annotations

import json
from types import SimpleNamespace
from typing import Any

from acmserve.context.session.history import adopt
from acmserve.server.budget.budgets import set_budget
from acmserve.server.chat.turn import taken_in
from tests.server.chat.test_steps import MESSAGES, Model, call, make_turn, parsed, run, said
from tests.support.context.valid_chat import orphans


def mark(call_id: str, **arguments: Any) -> dict[str, Any]:
    return {"id": call_id, "type": "function", "function": {"name": "delimiter", "arguments": json.dumps(arguments)}}


START = mark("d1", action="start", name="find", type="expl")
END = mark("d2", action="end", description="it is in line 3")
ACT = mark("d3", action="start", name="set", type="act", dependencies=["find"])
FOLD = call("fold_fragment", "f1", fragment_id="f00000")


def test_two_suites_are_offered_and_carried_out_together() -> None:
    turn = make_turn(suites=("sculptor", "cwl"))
    model = Model(said(None, START, FOLD), said("Done."))
    acm = parsed(run(turn, model))["acm"]
    offered = [tool.function.name for tool in model.requests[0].tools]
    assert {"fold_fragment", "delimiter"} <= set(offered)
    done = {operation["tool"]: operation for operation in acm["steps"][0]["operations"]}
    assert done["delimiter"]["result"].startswith("Started expl find")
    assert done["fold_fragment"]["is_error"]
    assert "budget" not in acm


def test_calls_of_one_step_see_each_other_and_the_next_step_reads_the_transcript() -> None:
    turn = make_turn(suites=("cwl",))
    model = Model(said(None, START, END, ACT), said(None, mark("d4", action="end")), said("Done."))
    operations = [o for step in parsed(run(turn, model))["acm"]["steps"] for o in step["operations"]]
    assert [operation["is_error"] for operation in operations] == [False] * 4
    assert operations[-1]["result"] == "Ended act set."


def test_a_step_that_fails_leaves_no_mark_behind() -> None:
    turn = make_turn(suites=("cwl",))
    before = turn.session.state
    run(turn, Model(said(None, START), RuntimeError("down")))
    turn.server.store.save(turn.session, before)
    operations = parsed(run(turn, Model(said(None, START), said("Done."))))["acm"]["steps"][0]["operations"]
    assert operations[0]["is_error"] is False


def test_every_step_is_brought_under_the_budget_and_says_so() -> None:
    turn = make_turn(suites=("cwl",))
    history: list[Any] = [*MESSAGES, {"role": "assistant", "content": "word " * 300}, {"role": "user", "content": "On"}]
    budget = turn.server.budgets.parse({"max_tokens": 600, "low_watermark": 500, "policy": "recency"}, "acm.budget")
    state = set_budget(adopt(turn.session.state, history).state, budget)
    turn.server.store.save(turn.session, state)
    model = Model(said("word " * 200, START), said("Done."))
    acm = parsed(run(turn, model))["acm"]
    assert [step["budget"]["max_tokens"] for step in acm["steps"]] == [600, 600]
    assert acm["budget"] == acm["steps"][-1]["budget"]
    assert sum(step["budget"]["evicted_tokens"] for step in acm["steps"]) >= 300
    shown = [message if isinstance(message, dict) else message.model_dump() for message in model.requests[-1].messages]
    assert orphans(shown) == []
    assert not any("word word" in str(message.get("content")) for message in shown[:-2])
    assert turn.session.state.omissions


def test_a_request_without_a_budget_keeps_the_sessions_own() -> None:
    turn = make_turn(suites=("cwl",))
    budget = turn.server.budgets.parse(700, "acm.budget")
    state = set_budget(turn.session.state, budget)

    asked: Any = SimpleNamespace(
        body={"messages": MESSAGES}, budget=None, loop=None, precompute=None, observations=None, goes_on_from=None
    )
    assert taken_in(turn.server, state, asked).state.budget is budget
    asked.budget = turn.server.budgets.parse(900, "acm.budget")
    assert taken_in(turn.server, state, asked).state.budget == asked.budget
