"""What tools can do, by name. This is the only list of operations, and the one place where a suite's file meets them.

    {"operation": "fold", "name": "hide", ...} --bind--> Tool(FOLD, name, schema, template of its result)

A file may say anything to the model, but offers nothing that the operation does not take. Its parameters are those of
the operation, perhaps under other names, of the same type and within the same bounds.
"""

from __future__ import annotations

from collections.abc import Mapping
from operator import gt, lt
from typing import Any

from acmserve.context.schema.suite_file import OfferedTool, SuiteFile
from acmserve.context.schema.tool_schema import Schema
from acmserve.context.tools.branch import OPEN_BRANCH, RETURN_FROM_BRANCH
from acmserve.context.tools.delimiter import MARK_EPISODE
from acmserve.context.tools.fold_fragment import FOLD
from acmserve.context.tools.fragment_context import FRAGMENT
from acmserve.context.tools.get_search_detail import SEARCH_DETAIL
from acmserve.context.tools.restore_context import RESTORE_ALL
from acmserve.context.tools.restore_fragment import RESTORE, RESTORE_FOLDED, RESTORE_SUMMARIZED
from acmserve.context.tools.search_context import SEARCH
from acmserve.context.tools.summarize_fragment import SUMMARIZE
from acmserve.context.tools.tool import Tool, ToolOperation
from acmserve.errors import InvalidRequest
from acmserve.validation import echo_json, listing

OPERATIONS: dict[str, ToolOperation] = {
    operation.name: operation
    for operation in (
        FRAGMENT,
        FOLD,
        RESTORE,
        RESTORE_FOLDED,
        RESTORE_SUMMARIZED,
        RESTORE_ALL,
        SUMMARIZE,
        SEARCH,
        SEARCH_DETAIL,
        MARK_EPISODE,
        OPEN_BRANCH,
        RETURN_FROM_BRANCH,
    )
}
_HIDING = (FOLD.name, SUMMARIZE.name)


def bind_tools(suite: SuiteFile) -> tuple[Tool, ...]:
    """The tools of a suite, checked against what they do. Raises `InvalidRequest` naming the key of the file."""
    tools = tuple(_bind(suite, index, offered) for index, offered in enumerate(suite.tools))
    for name in suite.results:
        if name not in OPERATIONS:
            raise InvalidRequest(f"{suite.where}: results.{name}", "is no operation.", f"Choose {listing(OPERATIONS)}.")
    hiding = [offered.name for offered in suite.tools if offered.operation in _HIDING]
    if hiding and not suite.markers:
        raise InvalidRequest(f"{suite.where}: markers", f"is missing, but {hiding[0]} hides text.")
    return tools


def _bind(suite: SuiteFile, index: int, offered: OfferedTool) -> Tool:
    where = f"{suite.where}: tools[{index}]"
    operation = OPERATIONS.get(offered.operation)
    if operation is None:
        message = f"does not know {offered.operation!a}."
        raise InvalidRequest(f"{where}.operation", message, f"Choose {listing(OPERATIONS)}.")
    if operation.fixed_name is None:
        _check_arguments(operation, offered, where)
    elif offered.name != operation.fixed_name:
        message = f"has to be {operation.fixed_name!a}, by which transcripts know it, not {offered.name!a}."
        raise InvalidRequest(f"{where}.name", message)
    return Tool(operation, offered, suite.results.get(operation.name, ""))


def _check_arguments(operation: ToolOperation, offered: OfferedTool, where: str) -> None:
    for name in offered.arguments:
        if name not in operation.accepts:
            known = f"It takes {listing(operation.accepts)}." if operation.accepts else "It takes none."
            raise InvalidRequest(f"{where}.arguments.{name}", f"is no argument of {operation.name}.", known)
    parameters: Mapping[str, Any] = offered.schema["function"]["parameters"]
    by_name = {offered.arguments.get(name, name): (name, schema) for name, schema in operation.accepts.items()}
    for parameter, given in parameters["properties"].items():
        if parameter not in by_name:
            known = f"It takes {listing(by_name)}." if by_name else "It takes none."
            raise InvalidRequest(
                f"{where}.parameters.properties.{parameter}", f"is nothing that {operation.name} takes.", known
            )
        _check_within(given, by_name[parameter][1], f"{where}.parameters.properties.{parameter}")
    for parameter, (_, schema) in by_name.items():
        if "default" not in schema and parameter not in parameters.get("required", ()):
            raise InvalidRequest(
                f"{where}.parameters.required", f"lacks {parameter!a}, without which {operation.name} does nothing."
            )
        if "default" not in schema and parameter not in parameters["properties"]:
            raise InvalidRequest(f"{where}.parameters.properties.{parameter}", "is missing.")


def _check_within(given: Schema, widest: Schema, where: str) -> None:
    """Raise where a parameter may be what the operation does not take."""
    if given["type"] != widest["type"]:
        raise InvalidRequest(f"{where}.type", f"must be {widest['type']!a}, not {echo_json(given['type'])}.")
    if "enum" in widest and any(value not in widest["enum"] for value in given.get("enum", [None])):
        raise InvalidRequest(f"{where}.enum", f"may have {listing(widest['enum'])}, and has to be given.")
    for bound, is_wider in (("minimum", lt), ("maximum", gt)):
        if bound in widest and (bound not in given or is_wider(given[bound], widest[bound])):
            raise InvalidRequest(f"{where}.{bound}", f"has to be given, {widest[bound]} at the {_MOST[bound]}.")
    if "default" in given and "enum" in given and given["default"] not in given["enum"]:
        raise InvalidRequest(f"{where}.default", f"{echo_json(given['default'])} is none of the enum.")


_MOST = {"minimum": "least", "maximum": "most"}
