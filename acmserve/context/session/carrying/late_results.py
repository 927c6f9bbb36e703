"""New results that answer a call of an earlier message, and what becomes of them where an eviction took that call.

    u   [c1]   c1   answer | c1          the call went with its result: the new one leaves with them, and is told
        `----gone---'        `- late

A prompt has no result without its call. It asks nobody, and knows no tokens.
"""

from __future__ import annotations

from collections.abc import Sequence

from acmserve.context.session.branches.branch import branch_at
from acmserve.context.session.carrying.record import DroppedEdit
from acmserve.context.session.state import SessionState
from acmserve.context.transcript.message import Message
from acmserve.context.transcript.parts import Role, role_of, tool_calls

LATE = "left out: the call was evicted before."


def late_results(state: SessionState, new: Sequence[int]) -> list[int]:
    """Those of the new entries, ascending, that answer a call before the last message of the assistant.

    None where nothing was taken out. A result that a client has changed in its place is not late. Each entry is looked
    at once.
    """
    if not new or not state.omissions:
        return []
    before = (state.entries[entry].message for entry in range(new[0] - 1, -1, -1))
    ids = _ids_of(next((message for message in before if role_of(message) is Role.ASSISTANT), {}))
    found, unseen = [], set(new)
    for entry in range(new[0], new[-1] + 1):
        message = state.entries[entry].message
        role, call_id = role_of(message), message.get("tool_call_id")
        if role is Role.ASSISTANT:
            ids = _ids_of(message)
        elif role is Role.RESULT and isinstance(call_id, str) and call_id and call_id not in ids and entry in unseen:
            found.append(entry)
    return found


def left_out(state: SessionState, late: Sequence[int]) -> list[DroppedEdit]:
    """One record for late results that leave with calls that an eviction took. None for those of branches."""
    closed = [branch for branch in state.branches if branch.end is not None]
    num = sum(state.omissions.in_gone(entry) and branch_at(closed, entry) is None for entry in late)
    words = "1 new result is" if num == 1 else f"{num} new results are"
    return [DroppedEdit("omission", "", f"{words} {LATE}")] if num else []


def _ids_of(message: Message) -> set[str]:
    return {call_id for call in tool_calls(message) if isinstance(call_id := call.get("id"), str)}
