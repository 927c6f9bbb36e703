"""Holds a dataclass against a JSON schema: same fields, same types, the same ones may be missing or null. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import MISSING, fields, is_dataclass
from types import NoneType, UnionType
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

PLAIN = {str: "string", int: "integer", float: "number", bool: "boolean"}
Schema = Mapping[str, Any]


def differing(kind: type, name: str, schemas: Mapping[str, Schema]) -> Iterator[str]:
    """Where a class is not what the schema of this name says. What it refers to is held against it, too."""
    schema = schemas[name]
    shown, needed = schema["properties"], set(schema.get("required", ()))
    known = {field.name: field for field in fields(kind)}
    yield from (f"{name}.{field}: the client lacks it" for field in sorted(set(shown) - set(known)))
    yield from (f"{name}.{field}: the schema lacks it" for field in sorted(set(known) - set(shown)))
    hints = get_type_hints(kind)
    for field in sorted(set(known) & set(shown)):
        has_default = known[field].default is not MISSING or known[field].default_factory is not MISSING
        if has_default == (field in needed):
            yield f"{name}.{field}: is {'' if field in needed else 'not '}required"
        yield from _differing(hints[field], shown[field], f"{name}.{field}", schemas)


def _differing(hint: Any, schema: Schema, where: str, schemas: Mapping[str, Schema]) -> Iterator[str]:
    kinds = get_args(hint) if get_origin(hint) in (Union, UnionType) else (hint,)
    options = schema.get("anyOf", [schema])
    wanted = [option for option in options if option.get("type") != "null"]
    others = [kind for kind in kinds if kind is not NoneType]
    if (NoneType in kinds) != (len(wanted) < len(options)):
        yield f"{where}: null is {'' if len(wanted) < len(options) else 'not '}allowed"
    if len(others) > 1 or len(wanted) > 1:
        if {PLAIN.get(kind) for kind in others} != {option.get("type") for option in wanted}:
            yield f"{where}: {hint} is not {schema}"
        return
    yield from _differing_one(others[0], wanted[0], where, schemas)


def _differing_one(hint: Any, schema: Schema, where: str, schemas: Mapping[str, Schema]) -> Iterator[str]:
    origin, arguments = get_origin(hint), get_args(hint)
    reference = schema.get("$ref")
    if is_dataclass(hint) and isinstance(hint, type) and reference is not None:
        yield from differing(hint, reference.rpartition("/")[2], schemas)
    elif origin is tuple and schema.get("type") == "array":
        yield from _differing(arguments[0], schema["items"], f"{where}[]", schemas)
    elif origin is dict and schema.get("type") == "object":
        items = schema.get("additionalProperties", True)
        if arguments[1] is not Any or items is not True:
            yield from _differing(arguments[1], items, f"{where}.*", schemas)
    elif origin is Literal:
        values = schema["enum"] if "enum" in schema else [schema.get("const")]
        if set(values) != set(arguments):
            yield f"{where}: {arguments} is not {values}"
    elif hint is Any:
        if set(schema) & {"type", "$ref", "enum", "const"}:
            yield f"{where}: anything is not {schema}"
    elif PLAIN.get(hint) != schema.get("type") or "enum" in schema or "const" in schema:
        yield f"{where}: {hint} is not {schema}"


def undescribed(name: str, schemas: Mapping[str, Schema], seen: set[str]) -> Iterator[str]:
    """Fields without a description in a schema, and in all that it refers to."""
    if name in seen:
        return
    seen.add(name)
    for field, schema in schemas[name].get("properties", {}).items():
        if not schema.get("description"):
            yield f"{name}.{field}"
        for reference in references(schema):
            yield from undescribed(reference, schemas, seen)


def references(schema: Any) -> Iterator[str]:
    """The names of all schemas that a schema refers to."""
    if isinstance(schema, Mapping):
        if isinstance(schema.get("$ref"), str):
            yield schema["$ref"].rpartition("/")[2]
        for value in schema.values():
            yield from references(value)
    elif isinstance(schema, list):
        for value in schema:
            yield from references(value)
