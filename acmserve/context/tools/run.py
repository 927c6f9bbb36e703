"""Carries out one call of a context tool: arguments in, new state and the tool's result out.

A wrong call is an ordinary result that says what to do instead. The state stays as it was, and the loop goes on. What
the tools are, and which suite offers which, is said elsewhere (`suites.py`). This is what callers import.
"""

from __future__ import annotations

from dataclasses import replace

from acmserve.context.session.branches.branching import check_main
from acmserve.context.session.state import SessionState
from acmserve.context.tools.suites import all_names, find_tool
from acmserve.context.tools.tool import (
    EmbeddingsWanted,
    SummaryWanted,
    ToolCall,
    ToolContext,
    ToolOutcome,
    parsed_arguments,
    refused,
    with_input,
)
from acmserve.errors import InvalidRequest

__all__ = [
    "EmbeddingsWanted",
    "SummaryWanted",
    "ToolCall",
    "ToolContext",
    "ToolOutcome",
    "find_tool",
    "parsed_arguments",
    "refused",
    "run_tool",
    "with_input",
]


def run_tool(state: SessionState, call: ToolCall, context: ToolContext) -> ToolOutcome:
    """Carry out one call on a state. Never raises for a wrong call."""
    try:
        tool = find_tool(context.suite, call.name)
        arguments = tool.read(tool.schema, call.arguments)
        outcome = tool.run(state, arguments, replace(context, own_tools=all_names()))
        check_main(state, outcome.state)
        return outcome
    except InvalidRequest as error:
        return ToolOutcome(state, refused(error), error=error)
