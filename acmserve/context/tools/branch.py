"""The tools `branch` and `return`, as a suite offers them. Here both are refused.

A branch spans many steps of the model, so only the loop on the server carries it out. What a call may say stands in
`session/branch_tool.py`, because the history of a session reads the same calls.
"""

from __future__ import annotations

from acmserve.context.schema.tool_schema import Schema
from acmserve.context.session.branches.branch_tool import BRANCH_TOOL, RETURN_TOOL
from acmserve.context.session.state import SessionState
from acmserve.context.tools.tool import Tool, ToolContext, ToolOutcome, as_written
from acmserve.errors import Conflict


def _tool(operation: str, schema: Schema, does: str) -> Tool:
    name = schema["function"]["name"]

    def run(_: SessionState, __: object, ___: ToolContext) -> ToolOutcome:
        raise Conflict(
            "name",
            f"{name} is carried out in the server's own loop only.",
            "Send acm.tools, or make a branch with POST .../sessions/{session_id}/branches.",
        )

    return Tool(operation, schema, run, does, read=as_written)


BRANCH = _tool("branch", BRANCH_TOOL, "opens a branch for a task of many steps")
RETURN = _tool("return", RETURN_TOOL, "ends the branch: its message stays, its steps leave the conversation")
