"""The tool `search_context`: finds text in the conversation, hidden text included.

In version 1 it also searches by meaning, with vectors of an embedder that the caller asks.
"""

from __future__ import annotations

from acmserve.context.schema.tool_schema import Schema, choice, integer, text, tool_schema
from acmserve.context.session.state import SessionState
from acmserve.context.tools.search.exact import Found, search_exact, show
from acmserve.context.tools.search.semantic import passages, rank
from acmserve.context.tools.tool import Arguments, EmbeddingsWanted, Tool, ToolContext, ToolOutcome, counted
from acmserve.errors import InvalidRequest

_QUOTE_CHARS = 80

_PROPERTIES: dict[str, Schema] = {
    "query": text("Exact text to search for"),
    "role": choice(("user", "assistant", "all"), "user", "Whose messages to search (default: user)"),
    "max_results": integer(10, 1, 50, "Most results to return"),
    "context_size": integer(200, 50, 1000, "Characters to show before and after each match"),
}
_SCHEMA = tool_schema(
    "search_context",
    "Find exact text in the conversation, folded text included. Reads only: it changes nothing and costs nothing but "
    "its result.",
    _PROPERTIES,
    ["query"],
)
_SCHEMA_V1 = tool_schema(
    "search_context",
    "Find text in the conversation, folded text included: exactly, or by meaning. Reads only.",
    {
        **_PROPERTIES,
        "query": text("Text to search for"),
        "mode": choice(
            ("exact", "semantic"), "exact", "exact finds the very text, semantic finds passages of similar meaning"
        ),
        "similarity_threshold": {
            "type": "number",
            "default": 0.3,
            "minimum": 0,
            "maximum": 1,
            "description": "Least cosine similarity of a semantic result (default: 0.3)",
        },
    },
    ["query"],
)


def _run(state: SessionState, args: Arguments, context: ToolContext) -> ToolOutcome:
    query, role, max_results, size = args["query"], args["role"], args["max_results"], args["context_size"]
    if args.get("mode", "exact") == "exact":
        found = search_exact(state, query, role, max_results, size, context.own_tools)
        return ToolOutcome(found.state, _words(found, query, role))
    if not query.strip():
        raise InvalidRequest("query", "is empty.", "Give the text to search for.")
    candidates = passages(state, role, context.own_tools)
    if context.supplied is None:
        return ToolOutcome(state, needs=EmbeddingsWanted((query, *(p.text for p in candidates))))
    if isinstance(context.supplied, str):
        raise TypeError("search_context was supplied with a text, not with vectors")
    best = rank(candidates, context.supplied, args["similarity_threshold"], max_results)
    found = show(state, list(best), 0)
    return ToolOutcome(found.state, _words(found, query, role))


def _words(result: Found, query: str, role: str) -> str:
    """The matches, one after the other."""
    if not result.matches:
        elsewhere = "" if role == "all" else ", or role 'all'"
        return f"No match for {_quote(query)} in messages of role '{role}'. Try fewer or other words{elsewhere}."
    total = result.num_matches
    listed = (
        counted(total, "match", "matches")
        if total == len(result.matches)
        else f"The first {len(result.matches)} of {total:,} matches"
    )
    case = ", upper and lower case ignored" if result.ignored_case else ""
    return "\n".join([f"{listed} for {_quote(query)}{case}:", *map(str, result.matches)])


def _quote(query: str) -> str:
    return repr(query if len(query) <= _QUOTE_CHARS else query[: _QUOTE_CHARS - 3] + "...")


_COMPUTES = "nothing: the result is appended"
SEARCH_CONTEXT = Tool("search", _SCHEMA, _run, "finds exact text, hidden text included", _COMPUTES)
SEARCH_CONTEXT_V1 = Tool(
    "search", _SCHEMA_V1, _run, "finds text, hidden text included, exactly or by meaning", _COMPUTES
)
