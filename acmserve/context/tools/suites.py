"""Which tools a suite offers, and the prompts that teach them. This is the only list of tools.

    SUITES["sculptor"]    one line for each tool; its schema, function and words stand in a file of its own

`sculptor` has the six tools of version 2 of *Sculptor: Empowering LLMs with Cognitive Agency via Active Context
Management* (arXiv 2508.04664), Figures 10 to 15. `sculptor-v1` has the eight tools of version 1, section 3.2, under
their own names. Names, types, defaults, bounds and enums are the paper's. The descriptions are ours: they say what the
schema cannot. `cwl` has the tool of *Beyond Compaction* (arXiv 2606.11213), `branch` the two of *Context-Folding*
(arXiv 2510.11967). Both go together with all others.

Decision: schemas never depend on a session, because they are part of the cached prefix.

`python -m acmserve.context.tools.suites` prints the table of the documentation.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass

from acmserve.context.episodes.delimiter import GUIDANCE
from acmserve.context.schema.tool_schema import Schema
from acmserve.context.session.branches.branch_tool import BRANCH_GUIDANCE
from acmserve.context.session.marker import RESTORE_TOOLS
from acmserve.context.tools.branch import BRANCH, RETURN
from acmserve.context.tools.delimiter import DELIMITER
from acmserve.context.tools.fold_fragment import FOLD_FRAGMENT
from acmserve.context.tools.fragment_context import FRAGMENT_CONTEXT
from acmserve.context.tools.get_search_detail import GET_SEARCH_DETAIL
from acmserve.context.tools.restore_context import RESTORE_CONTEXT
from acmserve.context.tools.restore_fragment import EXPAND_FRAGMENT, RESTORE_FRAGMENT, REVERT_SUMMARY
from acmserve.context.tools.search_context import SEARCH_CONTEXT, SEARCH_CONTEXT_V1
from acmserve.context.tools.summarize_fragment import SUMMARIZE_FRAGMENT, SUMMARY_FRAGMENT
from acmserve.context.tools.tool import Tool
from acmserve.errors import InvalidRequest, NotFound
from acmserve.validation import echo_json

SCULPTOR = "sculptor"
SCULPTOR_V1 = "sculptor-v1"
CWL = "cwl"
BRANCHES = "branch"


@dataclass(frozen=True, slots=True)
class Suite:
    """Tools that are offered together, in this order. `summary` is a few words for the HTTP document."""

    summary: str
    tools: tuple[Tool, ...]


SUITES: dict[str, Suite] = {
    SCULPTOR: Suite(
        "six tools",
        (
            FRAGMENT_CONTEXT,
            FOLD_FRAGMENT,
            RESTORE_FRAGMENT,
            SUMMARIZE_FRAGMENT,
            SEARCH_CONTEXT,
            GET_SEARCH_DETAIL,
        ),
    ),
    SCULPTOR_V1: Suite(
        "eight tools, semantic search",
        (
            FRAGMENT_CONTEXT,
            SUMMARY_FRAGMENT,
            REVERT_SUMMARY,
            FOLD_FRAGMENT,
            EXPAND_FRAGMENT,
            RESTORE_CONTEXT,
            SEARCH_CONTEXT_V1,
            GET_SEARCH_DETAIL,
        ),
    ),
    CWL: Suite("`delimiter`", (DELIMITER,)),
    BRANCHES: Suite("`branch`, `return`", (BRANCH, RETURN)),
}
EDITING_SUITES = tuple(RESTORE_TOOLS)
"""The suites whose markers name a way back. A session has one of them."""

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
    """The schemas of a suite. Raises `NotFound` naming the suites there are."""
    return tuple(tool.schema for tool in _suite(suite, field).tools)


def tool_names(suite: str) -> tuple[str, ...]:
    """The names of the tools of a suite, in order."""
    return tuple(tool.name for tool in _suite(suite).tools)


def all_names() -> frozenset[str]:
    """The names of the tools of all suites."""
    return frozenset(tool.name for suite in SUITES.values() for tool in suite.tools)


def find_tool(suite: str, name: str) -> Tool:
    """A tool by its name. Raises `NotFound` naming the tools of the suite."""
    for tool in _suite(suite).tools:
        if tool.name == name:
            return tool
    raise NotFound(
        "name", f"suite {suite} has no tool {echo_json(name)}.", f"Its tools: {', '.join(tool_names(suite))}."
    )


def find_suite(suites: Collection[str], tool: str) -> str:
    """The suite that has the tool. The first one where none has it, so that its error can name what there is."""
    return next((suite for suite in suites if tool in tool_names(suite)), next(iter(suites)))


def find_operation(suites: Collection[str], tool: str) -> str | None:
    """What a tool of these suites does. None where none has it."""
    found = (known for suite in suites for known in _suite(suite).tools if known.name == tool)
    return next((known.operation for known in found), None)


def offered_beside(suite: str) -> tuple[str, ...]:
    """An editing suite, and those that go together with every other."""
    return (suite, *(name for name in SUITES if name not in EDITING_SUITES))


def check_suites(suites: Collection[str], field: str) -> tuple[str, ...]:
    """Several suites, offered together. Raises when there is none, or when two of them share tools."""
    for suite in suites:
        _suite(suite, field)
    if not suites:
        raise InvalidRequest(field, "names no tool suite.", f"Choose {' or '.join(SUITES)}.")
    if len(set(suites) & set(EDITING_SUITES)) > 1:
        raise InvalidRequest(field, "names two suites with the same tools.", f"Choose {' or '.join(EDITING_SUITES)}.")
    return tuple(dict.fromkeys(suites))


def describe(suites: Collection[str]) -> str:
    """The suites with what they have, as one phrase for the HTTP document."""
    *others, last = (f"`{name}` ({SUITES[name].summary})" for name in suites)
    return f"{', '.join(others)} or {last}" if others else last


def table() -> list[str]:
    """The rows of a Markdown table of all tools."""
    suites_of: dict[Tool, list[str]] = {}
    for name, suite in SUITES.items():
        for tool in suite.tools:
            suites_of.setdefault(tool, []).append(f"`{name}`")
    rows = ["| tool | suites | what it does | what the next turn computes under `exact` |", "|---|---|---|---|"]
    for tool, names in suites_of.items():
        rows.append(f"| `{tool.name}` | {', '.join(names)} | {tool.does} | {tool.computes} |")
    return rows


def _suite(suite: str, field: str = "suite") -> Suite:
    if suite not in tuple(SUITES):
        raise NotFound(field, f"there is no tool suite {str(suite)[:40]!a}.", f"Choose {' or '.join(SUITES)}.")
    return SUITES[suite]


if __name__ == "__main__":
    print("\n".join(table()))
