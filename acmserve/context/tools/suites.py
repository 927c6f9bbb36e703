"""Which tools a suite offers, and the prompts that teach them, bound to what the tools do.

    context/suites/sculptor.json --read--> SUITE_FILES["sculptor"] --bind--> SUITES["sculptor"]: Tool, Tool, ...
    acmserve serve --suite FILE  --read-->

What a model reads stands in the files, one a suite. `sculptor-paper` has the six tools of version 2 of *Sculptor:
Empowering LLMs with Cognitive Agency via Active Context Management* (arXiv 2508.04664). The text of these tools is that
of the paper's Figures 7 to 15, word for word. `sculptor` has the same names, types and bounds in words of ours, which
say what edits cost. `sculptor-v1` has the eight tools of version 1, section 3.2. `cwl` has the tool of *Beyond
Compaction* (arXiv 2606.11213), `branch` the two of *Context-Folding* (arXiv 2510.11967). Both go together with all
others.

Decision: schemas never depend on a session, because they are part of the cached prefix.

`python -m acmserve.context.tools.suites` prints the table of the documentation.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from acmserve.context.schema.suite_file import SuiteFile, read_suite
from acmserve.context.schema.suite_registry import SUITE_FILES, editing_suites
from acmserve.context.schema.tool_schema import Schema
from acmserve.context.tools.operations import bind_tools
from acmserve.context.tools.tool import Tool, ToolOperation
from acmserve.errors import AcmError, InvalidRequest, NotFound
from acmserve.validation import echo_json

SCULPTOR = "sculptor"
BRANCHES = "branch"


@dataclass(frozen=True, slots=True)
class Suite:
    """Tools that are offered together, in this order. `summary` is a few words for the HTTP document."""

    summary: str
    tools: tuple[Tool, ...]


def _bound(suite: SuiteFile) -> Suite:
    return Suite(suite.summary, bind_tools(suite))


SUITES: dict[str, Suite] = {name: _bound(suite) for name, suite in SUITE_FILES.items()}
"""The registry with what its tools do. `load_suites` adds to both."""


def load_suites(named: str) -> None:
    """Load the suites of a deployment from files, with commas between them. A suite that is loaded stays as it is.

    Raises `AcmError` for a file that cannot be read, `InvalidRequest` for what is wrong in it.
    """
    for path in filter(None, (part.strip() for part in named.split(","))):
        try:
            text = Path(path).read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise AcmError(f"--suite {path} cannot be read: {error}. Name a file with one suite as JSON.") from None
        suite = read_suite(text, path)
        before = SUITE_FILES.get(suite.name)
        if before is not None and before != suite:
            raise InvalidRequest(f"{path}: name", f"{suite.name!a} is another suite.", "Choose another name.")
        bound = _bound(suite)
        SUITE_FILES[suite.name], SUITES[suite.name] = suite, bound


class _Presets(Mapping[str, str]):
    """The prompts of all suites. One whose name an earlier suite has is named `suite/name`."""

    def _all(self) -> dict[str, str]:
        found: dict[str, str] = {}
        for suite in SUITE_FILES.values():
            for name, text in suite.prompts.items():
                found[f"{suite.name}/{name}" if name in found else name] = text
        return found

    def __getitem__(self, name: str) -> str:
        return self._all()[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._all())

    def __len__(self) -> int:
        return len(self._all())


PRESETS: Mapping[str, str] = _Presets()


def plain_presets() -> tuple[str, ...]:
    """The names of presets, without those that are the same in another suite."""
    return tuple(name for name in PRESETS if "/" not in name)


def find_preset(suites: Collection[str], name: str) -> str:
    """The key in `PRESETS` of the prompt that a request of these suites means by a name: their own before another's."""
    own = next((suite for suite in suites if name in SUITE_FILES[suite].prompts), None)
    return f"{own}/{name}" if own is not None and f"{own}/{name}" in PRESETS else name


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
    return next((known.operation.name for known in found), None)


def offered_beside(suite: str) -> tuple[str, ...]:
    """An editing suite, and those that go together with every other."""
    return (suite, *(name for name in SUITES if name not in editing_suites()))


def check_suites(suites: Collection[str], field: str) -> tuple[str, ...]:
    """Several suites, offered together. Raises when there is none, or when two of them share tools."""
    for suite in suites:
        _suite(suite, field)
    if not suites:
        raise InvalidRequest(field, "names no tool suite.", f"Choose {' or '.join(SUITES)}.")
    if len(set(suites) & set(editing_suites())) > 1:
        raise InvalidRequest(field, "names two suites with the same tools.", f"Choose {' or '.join(editing_suites())}.")
    names = [name for suite in dict.fromkeys(suites) for name in tool_names(suite)]
    for index, name in enumerate(names):
        if name in names[:index]:
            raise InvalidRequest(field, f"names two suites with a tool {name!a}.", "Leave one of them out.")
    return tuple(dict.fromkeys(suites))


def describe(suites: Collection[str]) -> str:
    """The suites with what they have, as one phrase for the HTTP document."""
    *others, last = (f"`{name}` ({SUITES[name].summary})" for name in suites)
    return f"{', '.join(others)} or {last}" if others else last


def table() -> list[str]:
    """The rows of a Markdown table of all tools."""
    suites_of: dict[tuple[str, ToolOperation], list[str]] = {}
    for name, suite in SUITES.items():
        for tool in suite.tools:
            suites_of.setdefault((tool.name, tool.operation), []).append(f"`{name}`")
    rows = ["| tool | suites | what it does | what the next turn computes under `exact` |", "|---|---|---|---|"]
    for (name, operation), names in suites_of.items():
        rows.append(f"| `{name}` | {', '.join(names)} | {operation.does} | {operation.computes} |")
    return rows


def _suite(suite: str, field: str = "suite") -> Suite:
    if suite not in tuple(SUITES):
        raise NotFound(field, f"there is no tool suite {str(suite)[:40]!a}.", f"Choose {' or '.join(SUITES)}.")
    return SUITES[suite]


if __name__ == "__main__":
    print("\n".join(table()))
