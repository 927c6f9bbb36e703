"""The `delimiter` tool: how its calls are read and judged, and the words of its results.

    start expl   {"action": "start", "name": "find-auth", "type": "expl"}
    end expl     {"action": "end", "description": "login is checked in auth.py:40, tokens live 1 h"}
    start act    {"action": "start", "name": "fix-auth", "type": "act", "dependencies": ["find-auth"]}
    end act      {"action": "end"}

A call is read into a `EpisodeMark`, and judged against a `Scope`: the names declared so far and the one that is active.
Both are pure. The transcript holds the calls, and `graph.py` reads them back by the same two functions. So what the
model has read and what the graph says cannot differ. A wrong call raises `InvalidRequest` whose text teaches.

Decision: models fill in arguments that they do not need ("" or []). Those count as not given. What contradicts the call
(a description of an act, dependencies of an exploration, the name of another episode) is refused.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field

from acmserve.context.episodes.episode import Kind
from acmserve.context.schema.arguments import parse_arguments
from acmserve.context.schema.suite_registry import shipped_tool
from acmserve.context.schema.tool_schema import tool_schema
from acmserve.errors import Conflict, InvalidRequest
from acmserve.validation import echo_json

DELIMITER = "delimiter"
MAX_NAME_CHARS = 80
MAX_DESCRIPTION_CHARS = 2000
_MAX_LISTED = 20

DELIMITER_TOOL = shipped_tool("cwl", DELIMITER)
_FUNCTION = DELIMITER_TOOL["function"]
# `parse_arguments` reads plain values. The one list is read here.
_PLAIN_PROPERTIES = {k: v for k, v in _FUNCTION["parameters"]["properties"].items() if k != "dependencies"}
_PLAIN = tool_schema(DELIMITER, _FUNCTION["description"], _PLAIN_PROPERTIES, ["action"])


@dataclass(frozen=True, slots=True)
class EpisodeMark:
    """One call as it was written: the start of an episode (`starts`), or the end of the active one."""

    starts: bool
    name: str = ""
    kind: Kind | None = None
    dependencies: tuple[str, ...] = ()
    description: str = ""


@dataclass(frozen=True, slots=True)
class Scope:
    """What was declared so far: the kind of every name, and the name that is active."""

    kinds: Mapping[str, Kind] = field(default_factory=dict)
    active: str | None = None

    def after(self, mark: EpisodeMark) -> Scope:
        """The scope behind a valid mark."""
        if mark.starts and mark.kind is not None:
            return Scope({**self.kinds, mark.name: mark.kind}, mark.name)
        return Scope(self.kinds)


@dataclass(frozen=True, slots=True)
class Marked:
    """The outcome of one call: the scope behind it, the result for the model, and the error of a wrong call."""

    scope: Scope
    result: str
    error: InvalidRequest | None = None


def run_delimiter(scope: Scope, arguments: object) -> Marked:
    """Carry out one call. Never raises for a wrong call. The scope stays as it was then."""
    try:
        mark = read_mark(arguments)
        check_mark(mark, scope)
    except InvalidRequest as error:
        return Marked(scope, f"Error: {error}", error)
    return Marked(scope.after(mark), _result(mark, scope))


def is_refusal(result: object) -> bool:
    """Whether the result of a call says that it was not carried out."""
    return isinstance(result, str) and result.startswith("Error")


def read_mark(arguments: object) -> EpisodeMark:
    """The call as its arguments (JSON text or an object) write it. Raises `InvalidRequest`."""
    rest, given = _take_dependencies(arguments)
    values = {name: value.strip() for name, value in parse_arguments(_PLAIN, rest).items() if value.strip()}
    dependencies = _read_dependencies(given)
    kind = Kind(values["type"]) if "type" in values else None
    mark = EpisodeMark(
        values["action"] == "start", values.get("name", ""), kind, dependencies, _line(values.get("description", ""))
    )
    if mark.starts:
        _check_start(mark)
    elif dependencies:
        raise InvalidRequest("dependencies", "belong to the start of an act, not to an end.", "Leave them out.")
    if len(mark.description) > MAX_DESCRIPTION_CHARS:
        raise InvalidRequest(
            "description",
            f"has {len(mark.description):,} characters.",
            f"Say it in at most {MAX_DESCRIPTION_CHARS:,}: only what later work needs.",
        )
    return mark


def _check_start(mark: EpisodeMark) -> None:
    """What can be said about a start without knowing the conversation."""
    if not mark.name:
        raise InvalidRequest("name", "is missing; a start needs it.", "Give a short new name, such as 'find-config'.")
    if len(mark.name) > MAX_NAME_CHARS or not mark.name.isprintable():
        raise InvalidRequest("name", f"{echo_json(mark.name)} is not one line of at most {MAX_NAME_CHARS} characters.")
    if mark.kind is None:
        raise InvalidRequest("type", "is missing; a start needs it.", "Choose expl (find out) or act (change).")
    if mark.description:
        raise InvalidRequest("description", "belongs to the end of an expl, not to a start.", "Leave it out.")
    if mark.kind is Kind.EXPL and mark.dependencies:
        raise InvalidRequest("dependencies", "are declared by an act only.", "Leave them out of an expl.")
    if mark.kind is Kind.ACT and not mark.dependencies:
        raise InvalidRequest(
            "dependencies", "are missing; an act needs at least one ended expl.", "Name those whose findings it uses."
        )


def check_mark(mark: EpisodeMark, scope: Scope) -> None:
    """Raise `InvalidRequest` (`Conflict`) when the mark cannot stand in this scope."""
    if mark.starts:
        _check_start_in(mark, scope)
        return
    if scope.active is None:
        raise Conflict("action", "there is no active episode to end.", "Start one first.")
    kind = scope.kinds[scope.active]
    if mark.name not in ("", scope.active):
        raise Conflict(
            "name", f"the active episode is {echo_json(scope.active)}, not {echo_json(mark.name)}.", "End needs none."
        )
    if mark.kind not in (None, kind):
        raise Conflict("type", f"{echo_json(scope.active)} is an {kind.value}.", "An end needs no type.")
    if kind is Kind.EXPL and not mark.description:
        raise InvalidRequest(
            "description", f"is missing; ending the expl {echo_json(scope.active)} needs it.", "Say what was learned."
        )
    if kind is Kind.ACT and mark.description:
        raise InvalidRequest(
            "description", f"is not allowed; {echo_json(scope.active)} is an act.", 'End it with {"action": "end"}.'
        )


def _check_start_in(mark: EpisodeMark, scope: Scope) -> None:
    if scope.active is not None:
        kind = scope.kinds[scope.active].value
        raise Conflict("action", f"the {kind} {echo_json(scope.active)} is still active.", "End it first.")
    if mark.name in scope.kinds:
        raise Conflict("name", f"{echo_json(mark.name)} was used before; names are unique.", "Choose another name.")
    for name in mark.dependencies:
        if scope.kinds.get(name) is not Kind.EXPL:
            what = "is an act" if name in scope.kinds else "is no episode of this conversation"
            raise Conflict("dependencies", f"{echo_json(name)} {what}.", _known(scope))


def _known(scope: Scope) -> str:
    names = [name for name, kind in scope.kinds.items() if kind is Kind.EXPL][-_MAX_LISTED:]
    return f"Ended expl episodes: {', '.join(names)}." if names else "Explore first: start and end an expl."


def _result(mark: EpisodeMark, scope: Scope) -> str:
    if mark.starts and mark.kind is Kind.EXPL:
        return f"Started expl {mark.name}. End it with a description of what you learned."
    if mark.starts:
        return f"Started act {mark.name}, which uses {', '.join(mark.dependencies)}. End it without a description."
    assert scope.active is not None
    if scope.kinds[scope.active] is Kind.ACT:
        return f"Ended act {scope.active}."
    return f"Ended expl {scope.active}. An act may now depend on it."


def _line(text: str) -> str:
    """Text as one line."""
    return " ".join(text.split())


def _take_dependencies(arguments: object) -> tuple[object, object]:
    """The arguments without the one list among them, and that list."""
    if isinstance(arguments, str):
        with contextlib.suppress(ValueError, RecursionError):
            arguments = json.loads(arguments)
    if not isinstance(arguments, Mapping):
        return arguments, None
    return {name: value for name, value in arguments.items() if name != "dependencies"}, arguments.get("dependencies")


def _read_dependencies(given: object) -> tuple[str, ...]:
    """Names, each once. A string that writes a list, or one name, is understood."""
    if isinstance(given, str):
        with contextlib.suppress(ValueError, RecursionError):
            given = json.loads(given)
    names = [given] if isinstance(given, str) else ([] if given is None else given)
    if not isinstance(names, list | tuple) or not all(isinstance(name, str) for name in names):
        raise InvalidRequest(
            "dependencies", f"{echo_json(given)} is not a list of names.", 'Give for instance ["find"].'
        )
    return tuple(dict.fromkeys(name.strip() for name in names if name.strip()))
