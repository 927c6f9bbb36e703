"""The tool `search_context`: finds text in the conversation, hidden text included.

In version 1 it also searches by meaning, with vectors of an embedder that the caller asks.
"""

from __future__ import annotations

from acmserve.context.session.state import SessionState
from acmserve.context.tools.search.exact import Found, search_exact, show
from acmserve.context.tools.search.semantic import passages, rank
from acmserve.context.tools.tool import (
    ROLE,
    TEXT,
    Arguments,
    EmbeddingsWanted,
    ToolContext,
    ToolOperation,
    ToolOutcome,
    bounded,
    counted,
)
from acmserve.errors import InvalidRequest

_QUOTE_CHARS = 80


def _run(state: SessionState, args: Arguments, context: ToolContext) -> ToolOutcome:
    query, role, max_results, size = args["query"], args["role"], args["max_results"], args["context_size"]
    if args["mode"] == "exact":
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


_DOES = "finds text, hidden text included: the very text, or by meaning where the suite offers that"
SEARCH = ToolOperation(
    "search",
    _run,
    _DOES,
    "nothing: the result is appended",
    {
        "query": TEXT,
        "role": ROLE,
        "max_results": bounded(10, 1, 50),
        "context_size": bounded(200, 50, 1000),
        "mode": {"type": "string", "enum": ["exact", "semantic"], "default": "exact"},
        "similarity_threshold": {"type": "number", "default": 0.3, "minimum": 0, "maximum": 1},
    },
)
