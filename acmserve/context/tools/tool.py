"""What a context tool is: its schema, its function and a line of documentation, as one value. It knows no tool.

    call -> find_tool -> read (arguments against the schema) -> run -> ToolOutcome: new state, result text

`run` is pure. A wrong call raises `InvalidRequest`, whose text becomes the result, so that the model can go on. Results
are short, since every one is appended to the conversation. They are exact about ids and tokens. The same call on the
same state reads the same, to the byte, because results are part of the cached prefix.

A summary needs a model and a semantic search needs an embedder, and this layer has neither. The outcome then says so
in `needs`, and the caller calls again with what was needed in `supplied`.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from acmserve.context.episodes.delimiter import Scope
from acmserve.context.schema.arguments import parse_arguments
from acmserve.context.schema.tool_schema import Schema, text
from acmserve.context.session.state import SessionState
from acmserve.context.transcript.tokenizer import Tokenizer
from acmserve.errors import InvalidRequest

Arguments = Mapping[str, Any]
FRAGMENT_ID = text("Id of the fragment, for instance 'f1a2b3'")


@dataclass(frozen=True, slots=True)
class ToolCall:
    """`arguments` is JSON text or an object, as the model or the client wrote it."""

    name: str
    arguments: object = None


@dataclass(frozen=True, slots=True)
class SummaryWanted:
    """A summary of the text of a fragment, with this focus."""

    fragment_id: str
    text: str
    focus: str
    num_tokens: int


@dataclass(frozen=True, slots=True)
class EmbeddingsWanted:
    """One vector for each of these texts. The first is the query."""

    texts: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class ToolContext:
    """What a call needs besides the state. `fidelity` is what the next step will be asked for.

    A call of `delimiter` is judged against `scope`. None: what the transcript says. `own_tools` are the names of all
    context tools, whose results are not searched. `run_tool` fills them in.
    """

    tokenizer: Tokenizer
    suite: str = "sculptor"
    fidelity: str = "exact"
    supplied: str | Sequence[Sequence[float]] | None = None
    scope: Scope | None = None
    own_tools: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class ToolOutcome:
    """`result` goes back to the model. `error` says what was wrong with the call (the state is the old one then).

    `changed`: the conversation renders differently now. With `needs` nothing was done yet: call again with it supplied.
    `scope` is that behind a call of `delimiter`, for the next call of the same step.
    """

    state: SessionState
    result: str = ""
    changed: bool = False
    fragment_ids: tuple[str, ...] = ()
    needs: SummaryWanted | EmbeddingsWanted | None = None
    error: InvalidRequest | None = None
    scope: Scope | None = None


@dataclass(frozen=True, slots=True, eq=False)
class Tool:
    """One tool. `does` and `computes` (what the next turn computes again under `exact`) are its row in the docs.

    `operation` names what it does, whatever the tool is called. `read` makes of the arguments, as they were written,
    what `run` takes.
    """

    operation: str
    schema: Schema
    run: Callable[[SessionState, Any, ToolContext], ToolOutcome]
    does: str
    computes: str = "nothing"
    read: Callable[[Schema, object], Any] = parse_arguments

    @property
    def name(self) -> str:
        name: str = self.schema["function"]["name"]
        return name


def parsed_arguments(arguments: object) -> object:
    """Arguments as the model wrote them, parsed where they are JSON."""
    if not isinstance(arguments, str):
        return arguments
    try:
        return json.loads(arguments)
    except ValueError:
        return arguments


def with_input(context: ToolContext, supplied: str | Sequence[Sequence[float]]) -> ToolContext:
    """The context of the second call, with what the first one needed."""
    return replace(context, supplied=supplied)


def as_written(_: Schema, arguments: object) -> object:
    """For tools that read their arguments themselves."""
    return arguments


def refused(error: InvalidRequest) -> str:
    """The result of a wrong call: what was wrong, and what to do instead."""
    return f"Error: {error}"


def counted(count: int, one: str, many: str = "") -> str:
    """A number with its noun."""
    return f"{count} {one if count == 1 else many or one + 's'}"
