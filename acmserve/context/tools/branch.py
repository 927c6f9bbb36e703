"""The tools `branch` and `return`, as a suite offers them. Here both are refused.

A branch spans many steps of the model, so only the loop on the server carries it out. What a call may say stands in
`session/branches/branch_tool.py`, because the history of a session reads the same calls.
"""

from __future__ import annotations

from acmserve.context.session.branches.branch_tool import BRANCH, RETURN
from acmserve.context.session.state import SessionState
from acmserve.context.tools.tool import ToolContext, ToolOperation, ToolOutcome, as_written
from acmserve.errors import Conflict


def _operation(name: str, does: str) -> ToolOperation:
    def run(_: SessionState, __: object, ___: ToolContext) -> ToolOutcome:
        raise Conflict(
            "name",
            f"{name} is carried out in the server's own loop only.",
            "Send acm.tools, or make a branch with POST .../sessions/{session_id}/branches.",
        )

    return ToolOperation(name, run, does, read=as_written, fixed_name=name)


OPEN_BRANCH = _operation(BRANCH, "opens a branch for a task of many steps")
RETURN_FROM_BRANCH = _operation(RETURN, "ends the branch: its message stays, its steps leave the conversation")
