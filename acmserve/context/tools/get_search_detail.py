"""The tool `get_search_detail`: more of the text around one result of `search_context`."""

from __future__ import annotations

from acmserve.context.schema.tool_schema import integer, text, tool_schema
from acmserve.context.session.state import SessionState
from acmserve.context.tools.search.exact import look_at
from acmserve.context.tools.tool import Arguments, Tool, ToolContext, ToolOutcome

_SCHEMA = tool_schema(
    "get_search_detail",
    "Show more of the text around a search result. Reads only.",
    {
        "search_id": text("Id of a result of search_context, for instance 's1a2b3'"),
        "extended_context": integer(500, 100, 2000, "Characters to show before and after the match (default: 500)"),
    },
    ["search_id"],
)


def _run(state: SessionState, args: Arguments, _: ToolContext) -> ToolOutcome:
    [match] = look_at(state, [state.hit(args["search_id"])], args["extended_context"])
    return ToolOutcome(state, str(match))


GET_SEARCH_DETAIL = Tool(
    "search_detail", _SCHEMA, _run, "shows more of the text around a result", "nothing: the result is appended"
)
