"""Writes the rollout record of a session: what the model sampled, and who changed the conversation in between.

    request with acm.rollout --begin--> header
    engine's output ----------complete-> completion            model's call, /edits, eviction --operate--> operation

Recording begins with the first request that asks for it. From then on operations are recorded whoever asks, since a
later prompt cannot be understood without them. Functions on the state: it is stored with what it belongs to.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from acmserve.context.alignment.redacted_index import RedactedIndex
from acmserve.context.session.carrying.redactions import cut_arguments
from acmserve.context.session.rollout.record import MAIN_THREAD, CalledTool, Initiator, Sampled
from acmserve.context.session.state import SessionState
from acmserve.context.tools.suites import find_operation
from acmserve.server.budget.enforcement import Enforced
from acmserve.server.exchange.sampled import SampledAnswers


def begin_rollout(state: SessionState, model: str, suites: Sequence[str] = ()) -> SessionState:
    """The state of a session that is recorded. Raises `Conflict` where its record is of another model or suite."""
    record = state.rollout.begun(model, "+".join(suites) or None)
    return state if record is state.rollout else replace(state, rollout=record)


def complete_rollout(
    state: SessionState,
    answers: SampledAnswers,
    message: Mapping[str, Any] | None,
    suites: Sequence[str] = (),
    *,
    index: int = 0,
    thread: str | None = None,
    format_error: str | None = None,
) -> SessionState:
    """The state with the completion that `message` was read from, the answer of that `index`.

    `suites` are those whose tools were offered.
    """
    answer = answers.answer(index)
    names = [str(call["function"].get("name") or "") for call in (message or {}).get("tool_calls") or ()]
    sampled = Sampled(
        tuple(answer.token_ids),
        None if answer.logprobs is None else tuple(answer.logprobs),
        answer.finish_reason or "",
        format_error,
        tuple(CalledTool(name, find_operation(suites, name)) for name in names),
    )
    return replace(state, rollout=state.rollout.completed(answers.prompt, sampled, thread or thread_of(state), index))


def operate_rollout(
    state: SessionState, by: Initiator, name: str, arguments: object, saved_tokens: int | None = None
) -> SessionState:
    """The state with an operation, without what was redacted. The very state where nothing is recorded."""
    if state.rollout.header is None:
        return state
    given = arguments if isinstance(arguments, Mapping) else {} if arguments is None else {"text": str(arguments)}
    if state.redacted:
        given = cut_arguments(given, RedactedIndex(state.redacted, state.digest_key))
    return replace(state, rollout=state.rollout.operated(by, name, dict(given), saved_tokens))


def enforce_rollout(before: SessionState, enforced: Enforced) -> SessionState:
    """The state that was brought under its edits and its budget, with what was taken out as an operation."""
    state, report = enforced.state, enforced.report
    if state.omissions == before.omissions:
        return state
    if report is not None and report["evicted"]:
        by = Initiator.SUMMARY if report.get("summary") else Initiator.POLICY
        arguments = {name: report[name] for name in ("max_tokens", "evicted")}
        return operate_rollout(state, by, report["policy"], arguments, report["evicted_tokens"])
    edits = () if enforced.edited is None else enforced.edited["applied_edits"]
    by = Initiator.SUMMARY if any("summary" in edit for edit in edits) else Initiator.POLICY
    applied = [{name: value for name, value in edit.items() if name != "summary"} for edit in edits]
    return operate_rollout(state, by, "context_management", {"applied_edits": applied})


def thread_of(state: SessionState) -> str:
    """The thread of the next completion: that of the open branch, named by its call."""
    return MAIN_THREAD if state.branch is None else state.branch.call_id
