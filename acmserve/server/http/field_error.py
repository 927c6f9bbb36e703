"""Turns a validation error into an `InvalidRequest` that teaches: the field as it was sent, its value, a remedy.

    ("body", "messages", 2, "content", "list[union[...]]", 0, "str")   -->   messages[2].content[0]

The path is walked along the body's JSON schema, the document that the client reads in /docs. Steps that name no
property (the branches of a union) are left out, and the description of the field becomes the remedy.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from pydantic import TypeAdapter

from acmserve.errors import InvalidRequest
from acmserve.validation import did_you_mean, echo, nearest, short_ascii

Schema = Mapping[str, Any]


@dataclass(slots=True)
class _Walk:
    """How far a location was followed: its dotted path, and the schemas that it may mean."""

    path: str
    schemas: list[Schema]
    depth: int = 0

    def step(self, step: str | int, definitions: Schema) -> None:
        """Follow one step. Stay where it names no property and no item."""
        here = [found for schema in self.schemas for found in _variants(schema, definitions)]
        if isinstance(step, int):
            below = [schema["items"] for schema in here if "items" in schema]
        else:
            below = [schema["properties"][step] for schema in here if step in schema.get("properties", ())]
        if below:
            self.path = _joined(self.path, step)
            self.schemas = below
            self.depth += 1

    def description(self) -> str:
        return next((str(schema["description"]) for schema in self.schemas if "description" in schema), "")


def explain(errors: Sequence[Mapping[str, Any]], body: Any, params: Schema) -> InvalidRequest:
    """The first of pydantic's `errors`, and what else is wrong with the same field, as an `InvalidRequest`.

    `body` is the type of the route's body, None where it has none. `params` has the descriptions of path, query and
    header parameters by name in lower case.
    """
    error, walk = _first(_misspelt_first(errors), body, params)
    if error["type"] == "extra_forbidden":
        known = sorted({name for schema in walk.schemas for name in _properties(schema, body)})
        unknown = short_ascii(str(error["loc"][-1]))
        return InvalidRequest(
            _joined(walk.path, unknown),
            f"is not a field of this object.{did_you_mean(unknown, known)}",
            f"It has {', '.join(known)}.",
        )
    if error["type"] == "missing":
        return InvalidRequest(walk.path or "body", "is missing.", f"Add it: {walk.description()}".strip(" :"))
    same_field = [other for other in errors if _follow(other["loc"], body, params).path == walk.path]
    wanted = "; or ".join(dict.fromkeys(str(other["msg"]) for other in same_field))
    message = f"{echo(error['input'])} is not allowed. {wanted}."
    remedy = f"{wanted.replace('Input should', 'It should', 1)}. {walk.description()}"
    return InvalidRequest(walk.path or "body", message, remedy.strip())


def _misspelt_first(errors: Sequence[Mapping[str, Any]]) -> Sequence[Mapping[str, Any]]:
    """The errors. Where a field is missing since it is misspelt, the misspelt one comes first."""
    place, name = errors[0]["loc"][:-1], str(errors[0]["loc"][-1])
    if errors[0]["type"] != "missing":
        return errors
    strange = [error for error in errors if error["type"] == "extra_forbidden" and error["loc"][:-1] == place]
    misspelt = next((error for error in strange if nearest(str(error["loc"][-1]), (name,))), None)
    return errors if misspelt is None else [misspelt, *errors]


def _first(errors: Sequence[Mapping[str, Any]], body: Any, params: Schema) -> tuple[Mapping[str, Any], _Walk]:
    """The first error. Where its field is a union, the error of the branch that came furthest into the value."""
    first = _follow(errors[0]["loc"], body, params)
    best = errors[0], first
    for error in errors[1:]:
        walk = _follow(error["loc"], body, params)
        if walk.path.startswith((f"{first.path}[", f"{first.path}.")) and walk.depth > best[1].depth:
            best = error, walk
    return best


def _follow(loc: Sequence[str | int], body: Any, params: Schema) -> _Walk:
    if loc[0] != "body":
        name = str(loc[1])
        return _Walk(name, [{"description": params.get(name.lower(), "")}])
    schema = _schema(body)
    walk = _Walk("", [schema])
    for step in loc[1:]:
        walk.step(step, schema.get("$defs", {}))
    return walk


@lru_cache(maxsize=32)
def _schema(body: Any) -> Schema:
    return {} if body is None else TypeAdapter(body).json_schema()


def _variants(schema: Schema, definitions: Schema) -> list[Schema]:
    """The schema itself, or what its reference or its union stands for."""
    if "$ref" in schema:
        return _variants(definitions[schema["$ref"].rpartition("/")[2]], definitions)
    union = schema.get("anyOf") or schema.get("oneOf")
    return [schema] if union is None else [found for each in union for found in _variants(each, definitions)]


def _properties(schema: Schema, body: Any) -> list[str]:
    definitions = _schema(body).get("$defs", {})
    return [name for variant in _variants(schema, definitions) for name in variant.get("properties", ())]


def _joined(path: str, step: str | int) -> str:
    if isinstance(step, int):
        return f"{path}[{step}]"
    return f"{path}.{step}" if path else step
