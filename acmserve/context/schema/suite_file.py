"""A tool suite as a file of data, version 1: what a model is told, word for word, and nothing of what tools do.

    {"version": 1, "name": "mine", "summary": "my six tools",
     "tools":   [{"operation": "fold", "name": "hide", "description": "...", "parameters": {JSON schema},
                  "arguments": {"fragment_id": "id"}}, ...],
     "markers": {"folded": "[{id}: {tokens} tokens]", "summarized": "[{id}]\\n{summary}", "continued": "[{id}]",
                 "more": "[and {count} up to {last}: {tokens} tokens]"},
     "results": {"fold": "Hidden: {ids}. {result}"},
     "prompts": {"mine": "You can ..."}}

`operation` is what the tool does, in the server's words. `arguments` gives the operation's arguments other names. A
result's template stands for what the server says of the operation, which is its `{result}`. The order of keys is kept,
since it is part of the prompt.

It reads and checks the form. Which operations there are, and what they take, is said elsewhere (`tools/operations.py`).
"""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from string import Formatter
from typing import Any

from jsonschema import Draft202012Validator
from jsonschema.exceptions import SchemaError

from acmserve.context.schema.tool_schema import Schema
from acmserve.errors import InvalidRequest
from acmserve.validation import check_object, echo

SUITE_VERSION = 1
MARKER_FIELDS: Mapping[str, tuple[str, ...]] = {
    "folded": ("id", "tokens"),
    "summarized": ("id", "tokens", "focus", "summary"),
    "continued": ("id",),
}
"""The texts that stand for what is hidden, and what their templates may name. Each has to name the fragment."""
MORE, MORE_FIELDS = "more", ("count", "last", "tokens")
"""What stands behind the marker of a fold for the folds right behind it. It may be left out."""
RESULT_FIELDS = ("result", "id", "ids")
_KEYS = ("version", "name", "summary", "source", "tools", "markers", "results", "prompts")
_TOOL_KEYS = ("operation", "name", "description", "parameters", "arguments")
_PARAMETER_KEYS = ("type", "properties", "required", "additionalProperties")


@dataclass(frozen=True, slots=True)
class OfferedTool:
    """A tool as the model is told of it. `arguments`: argument of the operation -> parameter of the tool."""

    operation: str
    schema: Schema
    arguments: Mapping[str, str] = field(default_factory=dict)

    @property
    def name(self) -> str:
        name: str = self.schema["function"]["name"]
        return name


@dataclass(frozen=True, slots=True)
class SuiteFile:
    """One suite. Without `markers` none of its tools hides anything. `where` names the file in errors."""

    name: str
    summary: str
    tools: tuple[OfferedTool, ...]
    markers: Mapping[str, str] = field(default_factory=dict)
    results: Mapping[str, str] = field(default_factory=dict)
    prompts: Mapping[str, str] = field(default_factory=dict)
    where: str = ""


def read_suite(text: str, where: str) -> SuiteFile:
    """The suite of a file. Raises `InvalidRequest`, whose field is `where` and the path of the key."""
    try:
        value = json.loads(text)
    except ValueError as error:
        raise InvalidRequest(where, f"is not valid JSON: {error}.") from None
    given = check_object(value, where, _KEYS)
    if given.get("version") != SUITE_VERSION:
        raise InvalidRequest(f"{where}: version", f"is {echo(given.get('version'))}, this acmserve reads 1.")
    tools = given.get("tools")
    if not isinstance(tools, list) or not tools:
        raise InvalidRequest(f"{where}: tools", f"must be a list of tools, not {echo(tools)}.")
    offered = tuple(_tool(tool, f"{where}: tools[{index}]") for index, tool in enumerate(tools))
    names = [tool.name for tool in offered]
    for index, name in enumerate(names):
        if name in names[:index]:
            raise InvalidRequest(f"{where}: tools[{index}].name", f"{name!a} is the name of an earlier tool.")
    return SuiteFile(
        _text(given, "name", where),
        _text(given, "summary", where),
        offered,
        _markers(given.get("markers"), f"{where}: markers"),
        _templates(given.get("results") or {}, f"{where}: results"),
        _texts(given.get("prompts") or {}, f"{where}: prompts"),
        where,
    )


def _tool(value: object, where: str) -> OfferedTool:
    given = check_object(value, where, _TOOL_KEYS)
    operation, name, description = (_text(given, key, where, ".") for key in ("operation", "name", "description"))
    parameters = check_object(given.get("parameters"), f"{where}.parameters", _PARAMETER_KEYS)
    properties = parameters.get("properties")
    if parameters.get("type") != "object" or not isinstance(properties, Mapping):
        raise InvalidRequest(f"{where}.parameters", "must be the JSON schema of an object, with `properties`.")
    try:
        Draft202012Validator.check_schema(dict(parameters))
    except SchemaError as error:
        path = "".join(f".{step}" for step in error.absolute_path)
        raise InvalidRequest(f"{where}.parameters{path}", f"is no JSON schema: {error.message[:200]}.") from None
    for key, schema in properties.items():
        if not isinstance(schema, Mapping) or not {"type", "description"} <= schema.keys():
            raise InvalidRequest(f"{where}.parameters.properties.{key}", "needs a `type` and a `description`.")
    arguments = _texts(given.get("arguments") or {}, f"{where}.arguments")
    function = {"name": name, "description": description, "parameters": dict(parameters)}
    return OfferedTool(operation, {"type": "function", "function": function}, arguments)


def _markers(value: object, where: str) -> Mapping[str, str]:
    if value is None:
        return {}
    given = _texts(value, where)
    for name, fields in MARKER_FIELDS.items():
        _check_template(_text(given, name, where, "."), f"{where}.{name}", fields)
        if "{id}" not in given[name]:
            raise InvalidRequest(f"{where}.{name}", "does not name the fragment.", "Put {id} into it.")
    check_object(given, where, (*MARKER_FIELDS, MORE))
    if MORE in given:
        _check_template(given[MORE], f"{where}.{MORE}", MORE_FIELDS)
        if "{last}" not in given[MORE]:
            raise InvalidRequest(f"{where}.{MORE}", "does not name the last fragment.", "Put {last} into it.")
    return given


def _templates(value: object, where: str) -> Mapping[str, str]:
    given = _texts(value, where)
    for name, text in given.items():
        _check_template(text, f"{where}.{name}", RESULT_FIELDS)
    return given


def _check_template(text: str, where: str, fields: Collection[str]) -> None:
    try:
        named = [part[1:] for part in Formatter().parse(text) if part[1] is not None]
    except ValueError as error:
        raise InvalidRequest(where, f"is no template: {error}.", "Write a brace of the text twice.") from None
    for name, *how in named:
        if name not in fields or any(how):
            known = ", ".join(f"{{{field}}}" for field in fields)
            raise InvalidRequest(where, f"knows no {{{name}}}.", f"It may name {known}.")


def _texts(value: object, where: str) -> dict[str, str]:
    if not isinstance(value, Mapping):
        raise InvalidRequest(where, f"must be an object of texts, not {echo(value)}.")
    return {str(key): _text(value, key, where, ".") for key in value}


def _text(given: Mapping[str, Any], key: str, where: str, joint: str = ": ") -> str:
    text = given.get(key)
    if not isinstance(text, str) or not text.strip():
        problem = "is missing." if key not in given else f"must be a text, not {echo(text)}."
        raise InvalidRequest(f"{where}{joint}{key}", problem)
    return text
