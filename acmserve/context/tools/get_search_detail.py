"""The tool `get_search_detail`: more of the text around one result of `search_context`."""

from __future__ import annotations

from acmserve.context.session.state import SessionState
from acmserve.context.tools.search.exact import look_at
from acmserve.context.tools.tool import TEXT, Arguments, ToolContext, ToolOperation, ToolOutcome, bounded


def _run(state: SessionState, args: Arguments, _: ToolContext) -> ToolOutcome:
    [match] = look_at(state, [state.hit(args["search_id"])], args["extended_context"])
    return ToolOutcome(state, str(match))


SEARCH_DETAIL = ToolOperation(
    "search_detail",
    _run,
    "shows more of the text around a result",
    "nothing: the result is appended",
    {"search_id": TEXT, "extended_context": bounded(500, 100, 2000)},
)
