"""What the tests of branches share: steps of a model, and a branch opened and closed as the loop does it."""

from __future__ import annotations

import itertools
import json
from collections.abc import Sequence
from typing import Any

from acmserve.context.session.branches.branch_tool import BranchCall
from acmserve.context.session.branches.branching import close_branch, open_branch, spent_in
from acmserve.context.session.history import append_answer, append_internal, end_turn
from acmserve.context.session.state import SessionState
from acmserve.context.transcript.message import Message
from acmserve.context.transcript.tokenizer import count_tokens
from tests.support.context.conversation import WORDS

WANTED = BranchCall("find the port", "Which port is it?")
_ids = itertools.count()


def tool_call(name: str, call_id: str | None = None, **arguments: Any) -> dict[str, Any]:
    function = {"name": name, "arguments": json.dumps(arguments)}
    return {"id": call_id or f"call-{next(_ids)}", "type": "function", "function": function}


def step(*calls: dict[str, Any], text: str | None = None, result: str = "done") -> list[Message]:
    """A message of the assistant with these calls, and a result of each."""
    results = [{"role": "tool", "tool_call_id": made["id"], "content": result} for made in calls]
    return [{"role": "assistant", "content": text, "tool_calls": list(calls)}, *results]


def branch_step(call_id: str, *others: dict[str, Any], result: str = "") -> list[Message]:
    """The step that calls `branch`, other calls beside it, all with their results."""
    made = tool_call("branch", call_id, description=WANTED.description, prompt=WANTED.prompt)
    messages = step(made, *others)
    return [messages[0], {**messages[1], "content": result}, *messages[2:]]


def opened_in(state: SessionState, call_id: str = "b1", *others: dict[str, Any]) -> SessionState:
    """The state with a branch that the model has just opened."""
    return open_branch(append_internal(state, branch_step(call_id, *others)), call_id, WANTED)


def worked(state: SessionState, messages: Sequence[Message]) -> SessionState:
    return append_internal(state, messages)


def returned(state: SessionState, message: str = "It is 8000.") -> SessionState:
    """The state after a step that calls `return`."""
    state = append_internal(state, step(tool_call("return", message=message)))
    return close_branch(state, message, spent_in(state, count))


def failed(state: SessionState, reason: str = "no luck.") -> SessionState:
    return close_branch(state, reason, spent_in(state, count), failed=True)


def answered(state: SessionState, message: Message) -> SessionState:
    return end_turn(append_answer(state, message))


def count(text: str) -> int:
    return count_tokens(WORDS, text)
