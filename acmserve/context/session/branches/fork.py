"""Sessions that go on from another one: branches, for clients that run sub-agents themselves, and side threads.

    parent   [ .. ] ---------------------------- [ .. | call branch, message ]     place_result
                \\-- fork --> branch [ .. | its own work ]  ----'

A branch begins as its parent is, edits and evictions included, so that its first prompt repeats the parent's to the
token. Where the parent's model waits for results of its calls, it begins in front of that step: no call may stand
without its result. What is recorded for training begins anew.

What a branch returns is placed into the parent as the model's own branches leave it: a call of `branch` and its result.
Every chat template that knows tools can render that, and no message of a user is made up.

    main   [ system A | u0 a1 u2 a3 | ... ]                       edits and evictions of the main thread
    side   [ system B | u0 a1 u2 a3 | "Summarize the above." ]    the same ones, on the same messages

A side thread begins as the main thread is, too. Its request may repeat the history under another system message, and
`adopt` aligns the two. Nobody returns from a side thread. Pure: states in, states out.
"""

from __future__ import annotations

import json
from dataclasses import replace

from acmserve.context.session.branches.branch import Branch
from acmserve.context.session.branches.branch_tool import BRANCH
from acmserve.context.session.branches.branching import Spent
from acmserve.context.session.branches.parent import Parent, mark_of
from acmserve.context.session.branches.thread import Thread
from acmserve.context.session.carrying.carry_over import cut_out
from acmserve.context.session.carrying.redactions import cut_tasks
from acmserve.context.session.cutting import cut_back
from acmserve.context.session.history import append_internal
from acmserve.context.session.rollout.record import NO_ROLLOUT
from acmserve.context.session.state import PLACED, Author, SessionState
from acmserve.context.transcript.message import Message
from acmserve.context.transcript.outline import Outline
from acmserve.context.transcript.parts import Role


def fork(state: SessionState, session_id: str, description: str, prompt: str) -> SessionState:
    """The state of a branch of the session `session_id`, which has this state."""
    cut = cut_back(state, state.entries[: num_complete(state)])
    num_messages = sum(entry.origin is not Author.INTERNAL for entry in cut.entries)
    parent = Parent(session_id, mark_of(state.digest_key), description, prompt, len(cut.entries), num_messages)
    thread = None if state.thread is None else replace(state.thread, name=BRANCH)
    return cut_tasks(replace(cut, parent=parent, thread=thread, rollout=NO_ROLLOUT))


def with_parent_at(state: SessionState, session_id: str, thread: Thread) -> SessionState:
    """The state of a branch whose parent goes on under another id, as this thread. Its name in the engine stays."""
    assert state.parent is not None
    return replace(state, parent=replace(state.parent, session_id=session_id), thread=replace(thread, name=BRANCH))


def num_complete(state: SessionState) -> int:
    """How many entries stand before a step whose tool calls wait for results. All of them, when none does."""
    outline = Outline((entry.message for entry in state.entries), state.observations)
    for number in range(len(outline) - 1, -1, -1):
        line = outline.lines[number]
        if line.role is Role.PROTECTED:
            break
        if line.role is Role.ASSISTANT:
            return len(outline) if all(line.results) else number
    return len(outline)


def place_result(state: SessionState, call_id: str, parent: Parent, message: str, spent: Spent) -> SessionState:
    """The parent's state with what a branch of it returned. What was redacted in the parent is cut out of that."""
    branch = Branch(
        call_id,
        call_entry=len(state.entries),
        result_entry=len(state.entries) + 1,
        start=len(state.entries) + 2,
        end=len(state.entries) + 2,
        description=parent.description,
        prompt=parent.prompt,
        num_calls=spent.num_calls,
        num_tokens=spent.num_tokens,
    )
    placed = append_internal(state, _call_and_result(branch, message), PLACED)
    placed = cut_tasks(replace(placed, branches=(*placed.branches, branch)))
    return cut_out(placed, [branch.call_entry, branch.result_entry])


def fork_thread(state: SessionState, thread: Thread) -> SessionState:
    """The state of a side thread that goes on from a thread of this state."""
    return replace(state, thread=thread, parent=None, precompute=None, rollout=NO_ROLLOUT)


def retell_thread(state: SessionState, thread: Thread | None) -> SessionState:
    """The empty state of a side thread that tells a thread of this state again, all in one text.

    It has none of the edits. But what was redacted is cut out of what it is told, too.
    """
    return SessionState(num_ids=state.num_ids, digest_key=state.digest_key, redacted=state.redacted, thread=thread)


def take_over(state: SessionState, thread: Thread | None) -> SessionState:
    """The empty state of the main thread that gets the id of a session of this state, which goes on under another one.

    What was set for the id holds for whoever has it, and so does what was redacted.
    """
    return replace(
        retell_thread(state, thread),
        budget=state.budget,
        precompute=state.precompute,
        observation_rule=state.observation_rule,
    )


def _call_and_result(branch: Branch, message: str) -> list[Message]:
    arguments = json.dumps({"description": branch.description, "prompt": branch.prompt}, ensure_ascii=False)
    call = {"id": branch.call_id, "type": "function", "function": {"name": BRANCH, "arguments": arguments}}
    return [
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": branch.call_id, "content": message},
    ]
