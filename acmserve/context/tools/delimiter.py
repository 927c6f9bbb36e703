"""The tool `delimiter`: marks where an episode of the work starts or ends.

A mark changes nothing by itself. The call and its result, in the transcript, are the annotation. Schema, arguments and
words stand in `episodes/delimiter.py`, because the graph of episodes reads the same calls back from a transcript.
"""

from __future__ import annotations

from acmserve.context.episodes.delimiter import DELIMITER_TOOL, run_delimiter
from acmserve.context.episodes.graph import EpisodeGraph
from acmserve.context.session.state import SessionState
from acmserve.context.tools.tool import Tool, ToolContext, ToolOutcome, as_written
from acmserve.errors import Conflict


def _run(state: SessionState, arguments: object, context: ToolContext) -> ToolOutcome:
    if state.branch is not None:
        raise Conflict("action", "episodes are marked in the main conversation only.", "Call return first.")
    scope = (
        EpisodeGraph((entry.message for entry in state.entries), state.observations).scope()
        if context.scope is None
        else context.scope
    )
    marked = run_delimiter(scope, arguments)
    return ToolOutcome(state, marked.result, error=marked.error, scope=marked.scope)


DELIMITER = Tool(
    "delimiter", DELIMITER_TOOL, _run, "marks where an episode of the work starts or ends", read=as_written
)
