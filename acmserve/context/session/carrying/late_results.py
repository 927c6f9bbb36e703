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


def has_late_result(state: SessionState, new: Sequence[int]) -> bool:
    """Whether something was taken out, and one of the new entries, ascending, answers a call before the last message.

    Each entry is looked at once.
    """
    if not new or not state.omissions:
        return False
    before = (state.entries[entry].message for entry in range(new[0] - 1, -1, -1))
    ids = _ids_of(next((message for message in before if role_of(message) is Role.ASSISTANT), {}))
    for entry in range(new[0], new[-1] + 1):
        message = state.entries[entry].message
        role, call_id = role_of(message), message.get("tool_call_id")
        if role is Role.ASSISTANT:
            ids = _ids_of(message)
        elif role is Role.RESULT and isinstance(call_id, str) and call_id and call_id not in ids:
            return True
    return False


def left_out(state: SessionState, new: Sequence[int]) -> list[DroppedEdit]:
    """One record for new results that leave at once, with calls that an eviction took. None for those of branches."""
    if not state.omissions:
        return []
    closed = [branch for branch in state.branches if branch.end is not None]
    results = [entry for entry in new if role_of(state.entries[entry].message) is Role.RESULT]
    num = sum(state.omissions.in_gone(entry) and branch_at(closed, entry) is None for entry in results)
    words = "1 new result is" if num == 1 else f"{num} new results are"
    return [DroppedEdit("omission", "", f"{words} {LATE}")] if num else []


def _ids_of(message: Message) -> set[str]:
    return {call_id for call in tool_calls(message) if isinstance(call_id := call.get("id"), str)}
