"""All suites by name: those that ship with acmserve, one file each, and those of a deployment. The only list of them.

    acmserve/context/suites/*.json     read once, when this is imported
    acmserve serve --suite FILE        added by `tools/suites.py`, which knows what tools do

It knows the texts of a suite, not its functions.
"""

from __future__ import annotations

from importlib.resources import files

from acmserve.context.schema.suite_file import SuiteFile, read_suite
from acmserve.context.schema.tool_schema import Schema
from acmserve.errors import NotFound

_SHIPPED = ("sculptor", "sculptor-paper", "sculptor-v1", "cwl", "branch")
"""The order in which they are offered and listed."""


def _read_shipped() -> dict[str, SuiteFile]:
    folder = files("acmserve.context") / "suites"
    texts = {name: (folder / f"{name}.json").read_text(encoding="utf-8") for name in _SHIPPED}
    return {name: read_suite(text, f"{name}.json") for name, text in texts.items()}


SUITE_FILES: dict[str, SuiteFile] = _read_shipped()


def find_suite_file(name: str, field: str = "suite") -> SuiteFile:
    """The suite of that name. Raises `NotFound` naming those there are."""
    found = SUITE_FILES.get(name) if isinstance(name, str) else None
    if found is None:
        remedy = f"Choose {' or '.join(SUITE_FILES)}. One of your own needs --suite FILE."
        raise NotFound(field, f"there is no tool suite {str(name)[:40]!a}.", remedy)
    return found


def shipped_tool(suite: str, name: str) -> Schema:
    """The schema of a tool that ships with acmserve."""
    return next(tool.schema for tool in SUITE_FILES[suite].tools if tool.name == name)


def name_of(suite: str, *operations: str) -> str | None:
    """What a suite calls the first tool with one of these operations. None where it has none."""
    return next((tool.name for tool in find_suite_file(suite).tools if tool.operation in operations), None)


def editing_suites() -> tuple[str, ...]:
    """The suites that hide and restore. A session has one of them."""
    return tuple(name for name, suite in SUITE_FILES.items() if suite.markers)
