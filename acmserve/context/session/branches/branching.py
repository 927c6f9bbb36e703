"""Opens and closes branches. Every function is pure: state in, state out. `branch.py` says what a branch is.

    open_branch     main [.. call, result]            ->  the branch begins behind the step that called it
    close_branch    main [.. call, result][ branch ]  ->  main [.. call, message]

Decision: inside a branch the main conversation cannot be edited (`check_main`), so that what goes on after `return` is
exactly what was there before. A person may: `POST .../edits` is not asked.

It does not know who decides that a branch ends (`server/chat/branches.py`).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from acmserve.context.session.branches.branch import Branch, branches_before, ended_without, hide_closed, opened
from acmserve.context.session.branches.branch_tool import BranchCall
from acmserve.context.transcript.parts import Role, role_of, tool_calls
from acmserve.context.transcript.token_counts import Count, TokenCounts
from acmserve.errors import Conflict, IntegrityError

if TYPE_CHECKING:
    from acmserve.context.session.fragment import Piece
    from acmserve.context.session.state import SessionState, TranscriptEntry

INTERRUPTED = "another message came before it had returned."


@dataclass(frozen=True, slots=True)
class Spent:
    """What a branch took: tool calls of the model, and tokens of all its messages, as far as they can be counted."""

    num_calls: int = 0
    num_tokens: int = 0


def count_spent(entries: tuple[TranscriptEntry, ...], count: Count) -> Spent:
    """What these entries of a branch took. Reads all of them."""
    messages = [entry.message for entry in entries]
    token_counts = TokenCounts(count)
    token_counts.extend(messages)
    return Spent(sum(len(tool_calls(message)) for message in messages), token_counts.num_tokens)


def spent_in(state: SessionState, count: Count) -> Spent:
    """What the open branch of a session took so far. Nothing where none is open."""
    return Spent() if state.branch is None else count_spent(state.entries[state.branch.start :], count)


def open_branch(state: SessionState, call_id: str, wanted: BranchCall) -> SessionState:
    """Open a branch behind the step at the end of the transcript, which has the call and its result."""
    results = []
    for number in range(len(state.entries) - 1, -1, -1):
        if role_of(state.entries[number].message) is not Role.RESULT:
            break
        results.append(number)
    found = [number for number in results if state.entries[number].message.get("tool_call_id") == call_id]
    if state.branch is not None or not found or len(results) == len(state.entries):
        raise IntegrityError(f"session: no branch can open at entry {len(state.entries)}, open is {state.branch}")
    branch = Branch(call_id, results[-1] - 1, found[-1], len(state.entries), wanted.description, wanted.prompt)
    fields = opened(branch.description, branch.prompt)
    return set_result(replace(state, branches=(*state.branches, branch)), branch, fields)


def close_branch(state: SessionState, message: str, spent: Spent, *, failed: bool = False) -> SessionState:
    """Close the branch that is open, behind the last entry. `message` is what it returns, or why it failed."""
    branch = state.branch
    if branch is None:
        raise IntegrityError("session: there is no open branch to close")
    end, calls, tokens = len(state.entries), spent.num_calls, spent.num_tokens
    closed = replace(branch, end=end, failed=failed, num_calls=calls, num_tokens=tokens)
    return _end_branch(state, closed, ended_without(message) if failed else message)


def end_where_interrupted(state: SessionState) -> SessionState:
    """Close a branch in which somebody else than the model speaks, in front of that message."""
    branch = state.branch
    if branch is None:
        return state
    for number in range(branch.start, len(state.entries)):
        if role_of(state.entries[number].message) is Role.PROTECTED:
            num_calls = sum(len(tool_calls(entry.message)) for entry in state.entries[branch.start : number])
            closed = replace(branch, end=number, failed=True, num_calls=num_calls)
            return _end_branch(state, closed, ended_without(INTERRUPTED))
    return state


def cut_back_branches(state: SessionState) -> SessionState:
    """The branches of a state that has lost its last entries.

    One that has lost its end is open again, and shown with the step that opened it, which an eviction may have taken.
    """
    before = state.branch
    state = replace(state, branches=branches_before(state.branches, len(state.entries)))
    omissions = state.omissions
    if state.branch is not None and state.branch is not before:
        omissions = omissions.first(state.branch.call_entry)
        state = set_result(state, state.branch, opened(state.branch.description, state.branch.prompt))
    return replace(state, omissions=hide_closed(omissions, state.branches))


def _end_branch(state: SessionState, closed: Branch, result: str) -> SessionState:
    state = set_result(replace(state, branches=(*state.branches[:-1], closed)), closed, result)
    return replace(state, omissions=hide_closed(state.omissions, state.branches))


def set_result(state: SessionState, branch: Branch, result: str) -> SessionState:
    """Put another text into the result of the call. Fragments and search results in the old one are dropped."""
    number = branch.result_entry
    entries = list(state.entries)
    entries[number] = replace(entries[number], message={**entries[number].message, "content": result})
    fragments = tuple(f for f in state.fragments if all(piece.place.entry != number for piece in f.pieces))
    hits = tuple(hit for hit in state.hits if hit.place.entry != number)
    return replace(state, entries=tuple(entries), fragments=fragments, hits=hits)


def check_main(before: SessionState, after: SessionState) -> None:
    """Raise `Conflict` when a call inside a branch has changed what the main conversation shows."""
    branch = before.branch
    if branch is not None and _hidden_before(before, branch.start) != _hidden_before(after, branch.start):
        raise Conflict(
            "branch",
            "the main conversation cannot be changed inside a branch.",
            "Change what came up in the branch, or call return first.",
        )


def _hidden_before(state: SessionState, num_entries: int) -> list[tuple[Piece, str]]:
    return sorted(
        (piece, text)
        for fragment in state.fragments
        for piece, text in zip(fragment.pieces, fragment.shown or (), strict=False)
        if piece.place.entry < num_entries
    )
