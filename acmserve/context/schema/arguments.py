"""Reads the arguments of a tool call against the tool's JSON schema: defaults filled in, errors that teach.

Models write numbers as strings and null for "not given". Both are understood. Everything else that the schema forbids
is refused with the argument's name and what it may be. It knows schemas, not tools.

Decision: the schema judges plain values of sane size only. Its library prints the whole value into every error, and an
integer of 5,000 digits cannot even be printed. Such values are refused before.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from typing import Any

from jsonschema import Draft202012Validator

from acmserve.errors import InvalidRequest
from acmserve.validation import MAX_INTEGER_BITS, echo_json


def parse_arguments(tool: Mapping[str, Any], arguments: object) -> dict[str, Any]:
    """The arguments of a call of `tool` (an entry of a suite), as JSON text or as an object, complete and valid."""
    properties: Mapping[str, Any] = tool["function"]["parameters"]["properties"]
    defaults = {name: schema["default"] for name, schema in properties.items() if "default" in schema}
    return defaults | parse_given(tool, arguments)


def parse_given(tool: Mapping[str, Any], arguments: object) -> dict[str, Any]:
    """The same without defaults: what the call says."""
    function = tool["function"]
    given = _as_object(function["name"], arguments)
    properties: Mapping[str, Any] = function["parameters"]["properties"]
    values = {}
    for name, value in given.items():
        if name not in properties:
            known = ", ".join(properties) or "none"
            raise InvalidRequest(
                echo_json(name).strip("'"), f"{function['name']} has no such argument.", f"Known: {known}."
            )
        if value is not None:
            values[name] = _plain(name, value, properties[name])
    errors = sorted(Draft202012Validator(function["parameters"]).iter_errors(values), key=lambda e: list(e.path))
    for error in errors:
        raise _explain(function["name"], properties, error)
    return values


def _as_object(tool_name: str, arguments: object) -> Mapping[str, Any]:
    if isinstance(arguments, str):
        try:
            arguments = json.loads(arguments) if arguments.strip() else {}
        except ValueError as error:
            raise InvalidRequest("arguments", f"of {tool_name} are not valid JSON: {error}.") from None
        except RecursionError:
            raise InvalidRequest("arguments", f"of {tool_name} are nested too deeply.") from None
    if arguments is None:
        return {}
    if not isinstance(arguments, Mapping):
        raise InvalidRequest("arguments", f"of {tool_name} must be a JSON object, not {echo_json(arguments)}.")
    return arguments


def _plain(name: str, value: object, schema: Mapping[str, Any]) -> str | int | float:
    """The value as one that the schema can judge. A number where it wants one and a string writes one."""
    if isinstance(value, str):
        return _as_number(value) if schema["type"] in {"integer", "number"} else _unicode(name, value)
    if isinstance(value, float) and math.isfinite(value):
        return int(value) if value.is_integer() else value
    if isinstance(value, int) and value.bit_length() <= MAX_INTEGER_BITS:
        return value
    raise InvalidRequest(name, f"{echo_json(value)} is not allowed.", _meaning(schema))


def _as_number(text: str) -> str | int | float:
    """The number that a string writes. The string where it writes none, for the schema to refuse."""
    try:
        number = float(text)
    except ValueError:
        return text
    if not math.isfinite(number):
        return text
    return int(number) if number.is_integer() else number


def _unicode(name: str, text: str) -> str:
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise InvalidRequest(
            name, f"character {error.start} is half of a surrogate pair.", "Give whole characters."
        ) from None
    return text


def _explain(tool_name: str, properties: Mapping[str, Any], error: Any) -> InvalidRequest:
    if error.validator == "required":
        missing = next(name for name in error.validator_value if name not in error.instance)
        return InvalidRequest(missing, f"is missing; {tool_name} needs it.", _meaning(properties[missing]))
    name = str(error.path[0])
    return InvalidRequest(name, f"{echo_json(error.instance)} is not allowed.", _meaning(properties[name]))


def _meaning(schema: Mapping[str, Any]) -> str:
    """What an argument may be, as a sentence."""
    if "enum" in schema:
        return f"Choose one of {', '.join(schema['enum'])}."
    article = "an" if schema["type"] == "integer" else "a"
    bounds = f" from {schema['minimum']} to {schema['maximum']}" if "minimum" in schema else ""
    return f"Give {article} {schema['type']}{bounds}: {schema['description']}."
