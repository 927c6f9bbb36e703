"""The tool suites as JSON schemas, ready for the `tools` array of a chat request, and the prompts that teach them.

`sculptor` has the six tools of 000, Figures 10 to 15: names, types, defaults, bounds and enums are the paper's.
`sculptor-v1` has the eight tools of 001 section 3.2 under their own names, on the same engine. The descriptions are
ours; they tell the model what the schema cannot. Schemas are part of the cached prefix: they never depend on a session.
`cwl` has the one tool of 002, `delimiter`, `branch` the two of Context-Folding; both go together with all others.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

from acmserve.context.episodes.delimiter import DELIMITER_TOOL, GUIDANCE
from acmserve.context.schema.tool_schema import Schema, text, tool_schema
from acmserve.context.session.branch_tool import BRANCH_GUIDANCE, BRANCH_TOOL, RETURN_TOOL
from acmserve.errors import InvalidRequest, NotFound

SCULPTOR = "sculptor"
SCULPTOR_V1 = "sculptor-v1"
CWL = "cwl"
BRANCHES = "branch"


def _integer(default: int, minimum: int, maximum: int, description: str) -> Schema:
    return {
        "type": "integer",
        "default": default,
        "minimum": minimum,
        "maximum": maximum,
        "description": description,
    }


def _role(description: str) -> Schema:
    return {"type": "string", "enum": ["user", "assistant", "all"], "default": "user", "description": description}


_FRAGMENT_ID = text("Id of the fragment, for instance 'f1a2b3'")

_FRAGMENT_CONTEXT = tool_schema(
    "fragment_context",
    "Cut the conversation text between two markers into fragments with ids, so that they can be folded, summarized "
    "and restored. Cutting changes nothing that you see.",
    {
        "start_marker": text("Text that marks the beginning of what to fragment, copied exactly"),
        "end_marker": text("Text that marks the end of what to fragment, copied exactly"),
        "num_fragments": _integer(5, 1, 20, "How many fragments to make (default: 5)"),
        "role": _role("Whose messages to look into (default: user)"),
    },
    ["start_marker", "end_marker"],
)
_FOLD_FRAGMENT = tool_schema(
    "fold_fragment",
    "Hide a fragment behind a short marker. Its text is kept and can be restored at any time. Folding is cheapest "
    "early, while little text follows the fragment.",
    {"fragment_id": _FRAGMENT_ID},
    ["fragment_id"],
)
_SUMMARY = {
    "fragment_id": _FRAGMENT_ID,
    "focus": text(
        "What the summary is to keep (for instance 'technical details', 'key decisions', 'action items', "
        "'main points', 'problems', 'solutions')"
    ),
}
_SUMMARY_TEXT = "Replace a fragment by a summary with a focus. The original is kept and can be restored at any time."
_RESTORE_FRAGMENT = tool_schema(
    "restore_fragment",
    "Show the original text of a folded or summarized fragment again.",
    {"fragment_id": _FRAGMENT_ID},
    ["fragment_id"],
)
_SEARCH: Schema = {
    "query": text("Exact text to search for"),
    "role": _role("Whose messages to search (default: user)"),
    "max_results": _integer(10, 1, 50, "Most results to return"),
    "context_size": _integer(200, 50, 1000, "Characters to show before and after each match"),
}
_SEARCH_CONTEXT = tool_schema(
    "search_context",
    "Find exact text in the conversation, folded text included. Reads only: it changes nothing and costs nothing but "
    "its result.",
    _SEARCH,
    ["query"],
)
_GET_SEARCH_DETAIL = tool_schema(
    "get_search_detail",
    "Show more of the text around a search result. Reads only.",
    {
        "search_id": text("Id of a result of search_context, for instance 's1a2b3'"),
        "extended_context": _integer(500, 100, 2000, "Characters to show before and after the match (default: 500)"),
    },
    ["search_id"],
)
_SEARCH_CONTEXT_V1 = tool_schema(
    "search_context",
    "Find text in the conversation, folded text included: exactly, or by meaning. Reads only.",
    {
        **_SEARCH,
        "query": text("Text to search for"),
        "mode": {
            "type": "string",
            "enum": ["exact", "semantic"],
            "default": "exact",
            "description": "exact finds the very text, semantic finds passages of similar meaning",
        },
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

SUITES: Mapping[str, tuple[Schema, ...]] = {
    SCULPTOR: (
        _FRAGMENT_CONTEXT,
        _FOLD_FRAGMENT,
        _RESTORE_FRAGMENT,
        tool_schema("summarize_fragment", _SUMMARY_TEXT, _SUMMARY, ["fragment_id", "focus"]),
        _SEARCH_CONTEXT,
        _GET_SEARCH_DETAIL,
    ),
    SCULPTOR_V1: (
        _FRAGMENT_CONTEXT,
        tool_schema("summary_fragment", _SUMMARY_TEXT, _SUMMARY, ["fragment_id", "focus"]),
        tool_schema(
            "revert_summary",
            "Show the original text of a summarized fragment again.",
            {"fragment_id": _FRAGMENT_ID},
            ["fragment_id"],
        ),
        _FOLD_FRAGMENT,
        tool_schema(
            "expand_fragment",
            "Show the original text of a folded fragment again.",
            {"fragment_id": _FRAGMENT_ID},
            ["fragment_id"],
        ),
        tool_schema("restore_context", "Show everything again and forget all fragments.", {}, []),
        _SEARCH_CONTEXT_V1,
        _GET_SEARCH_DETAIL,
    ),
    CWL: (DELIMITER_TOOL,),
    BRANCHES: (BRANCH_TOOL, RETURN_TOOL),
}
# The suites that edit; a session has one of them.
EDITING_SUITES = (SCULPTOR, SCULPTOR_V1)

_UNIFIED = (
    "You are a helpful assistant. You can autonomously manage your own context: fold irrelevant information, focus on "
    "useful details, summarize long texts to keep your context concise, and use search tools to find key information "
    "in large documents."
)
_PI_LLM = (
    "You are an intelligent assistant specialized for PI-LLM (Proactive Interference) testing. Your task is to track "
    "continuous updates to multiple key-value pairs and accurately remember the latest value for each key amidst "
    "substantial interference information.\n\n"
    "Remember: First use the `fragment_context` tool to split the long text into multiple fragments, then use "
    "`fold_fragment` to fold unimportant, earlier key-value updates, allowing you to concentrate on the final updates. "
    "The recommended approach is to divide the entire update stream into multiple fragments (e.g., ten fragments), "
    "then keep only the last two or three fragments while folding the rest. This strategy enables focus on the "
    "current, most recent content without being distracted by earlier information."
)
_NEEDLEBENCH = (
    "You are an agent skilled at analyzing family relationships between different people. You have `search_context` "
    "and `get_search_detail` tools. You excel at conducting chained searches for key information in long texts until "
    "you find complete information to reach your desired final answer.\n\n"
    "When searching for the oldest ancestor, ensure that every person name found has been verified through the search "
    "tools to confirm they truly have no higher-level ancestors before concluding your reasoning."
)
_COST = (
    "\n\nWhat an edit costs: text behind a fold has to be read again, so fold early, while little follows, and ask for "
    "several folds at once. Searching costs only its result. Every tool result says what it costs."
)

PRESETS: Mapping[str, str] = {
    "unified": _UNIFIED + _COST,
    "pi-llm": _PI_LLM + _COST,
    "needlebench": _NEEDLEBENCH + _COST,
    "cwl": GUIDANCE,
    "branch": BRANCH_GUIDANCE,
}


def suite_tools(suite: str, field: str = "suite") -> tuple[Schema, ...]:
    """The schemas of a suite; raises `NotFound` naming the suites there are."""
    if suite not in tuple(SUITES):
        raise NotFound(field, f"there is no tool suite {str(suite)[:40]!a}.", f"Choose {' or '.join(SUITES)}.")
    return SUITES[suite]


def check_suites(suites: Collection[str], field: str) -> tuple[str, ...]:
    """Several suites, offered together; raises when there is none, or when two of them share tools."""
    for suite in suites:
        suite_tools(suite, field)
    if not suites:
        raise InvalidRequest(field, "names no tool suite.", f"Choose {' or '.join(SUITES)}.")
    if len(set(suites) & set(EDITING_SUITES)) > 1:
        raise InvalidRequest(field, "names two suites with the same tools.", f"Choose {' or '.join(EDITING_SUITES)}.")
    return tuple(dict.fromkeys(suites))


def find_suite(suites: Collection[str], tool: str) -> str:
    """The suite that has the tool; the first one where none has it, so that its error can name what there is."""
    return next((suite for suite in suites if tool in tool_names(suite)), next(iter(suites)))


def tool_names(suite: str) -> tuple[str, ...]:
    """The names of the tools of a suite, in order."""
    return tuple(tool["function"]["name"] for tool in suite_tools(suite))
