"""The names of tool suites in requests and in the OpenAPI document."""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Annotated, Any

from pydantic import GetPydanticSchema
from pydantic_core import PydanticKnownError, core_schema

from acmserve.context.schema.suite_registry import editing_suites
from acmserve.context.tools.suites import SUITES, describe


def _one_of(names: Callable[[], Collection[str]]) -> GetPydanticSchema:
    """A literal whose values are those of a registry, whenever it is looked at: a deployment has suites of its own."""

    def check(value: Any) -> str:
        if not isinstance(value, str) or value not in names():
            *others, last = (f"'{name}'" for name in names())
            raise PydanticKnownError("literal_error", {"expected": f"{', '.join(others)} or {last}"})
        return value

    def describe_json(*_: Any) -> dict[str, Any]:
        return {"type": "string", "enum": list(names())}

    return GetPydanticSchema(lambda *_: core_schema.no_info_plain_validator_function(check), describe_json)


Suite = Annotated[str, _one_of(editing_suites)]
AnySuite = Annotated[str, _one_of(lambda: SUITES)]
SUITE = f"The tool suite: {describe(editing_suites())}."
