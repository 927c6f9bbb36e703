"""What a context tool is: its schema, its function and a line of documentation, as one value. It knows no tool.

    call -> find_tool -> Tool: read (arguments against the schema) -> ToolOperation: run -> ToolOutcome

The words that a model reads of a tool are data (`context/suites/`). A `Tool` binds them to what is done.

`run` is pure. A wrong call raises `InvalidRequest`, whose text becomes the result, so that the model can go on. Results
are short, since every one is appended to the conversation. They are exact about ids and tokens. The same call on the
same state reads the same, to the byte, because results are part of the cached prefix.

A summary needs a model and a semantic search needs an embedder, and this layer has neither. The outcome then says so
in `needs`, and the caller calls again with what was needed in `supplied`.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from acmserve.context.accounting.rendered_spans import PromptRenderer
from acmserve.context.episodes.delimiter import Scope
from acmserve.context.schema.arguments import parse_arguments, parse_given
from acmserve.context.schema.suite_file import OfferedTool
from acmserve.context.schema.tool_schema import Schema
from acmserve.context.session.state import SessionState
from acmserve.context.transcript.tokenizer import Tokenizer
from acmserve.errors import InvalidRequest

Arguments = Mapping[str, Any]
TEXT: Schema = {"type": "string"}
ROLE: Schema = {"type": "string", "enum": ["user", "assistant", "all"], "default": "user"}


def bounded(default: int, minimum: int, maximum: int) -> Schema:
    """An argument that is an integer."""
    return {"type": "integer", "default": default, "minimum": minimum, "maximum": maximum}


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

    A call of `delimiter` is judged against `scope`. None: what the transcript says. `renderer` writes prompts of the
    session, so that what is told of an edit is what it does to them. `own_tools` are the names of all context tools,
    whose results are not searched. `run_tool` fills them in, and the call. `result_template` is the tool's.
    `may_wait`: an edit takes effect when that is cheapest, not in the next step.
    """

    tokenizer: Tokenizer
    suite: str = "sculptor"
    fidelity: str = "exact"
    supplied: str | Sequence[Sequence[float]] | None = None
    scope: Scope | None = None
    renderer: PromptRenderer | None = None
    own_tools: frozenset[str] = frozenset()
    call: ToolCall | None = None
    result_template: str = ""
    may_wait: bool = False


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
class ToolOperation:
    """What a tool does, whatever a suite calls it and says of it.

    `does` and `computes` (what the next turn computes again under `exact`) are its row in the docs. `accepts` are the
    arguments that `run` takes, and what each may be at most. Those with a default may be left out of a tool's schema.
    `read` makes of the arguments, as they were written, what `run` takes. An operation with a `fixed_name` is known in
    transcripts by the name of its tool.

    Of `optional` arguments `run` gets None where a call names none, whatever the schema's default. A model that
    searches a file it has read does not think of the role.
    """

    name: str
    run: Callable[[SessionState, Any, ToolContext], ToolOutcome]
    does: str
    computes: str = "nothing"
    accepts: Mapping[str, Schema] = field(default_factory=dict)
    read: Callable[[Schema, object], Any] = parse_arguments
    optional: tuple[str, ...] = ()
    fixed_name: str | None = None


@dataclass(frozen=True, slots=True, eq=False)
class Tool:
    """An operation as a suite offers it. `result` is the template of its results, "" for the server's own words."""

    operation: ToolOperation
    offered: OfferedTool
    result: str = ""

    @property
    def schema(self) -> Schema:
        """The entry of a `tools` array."""
        return self.offered.schema

    @property
    def name(self) -> str:
        """What the suite calls it."""
        return self.offered.name

    def run(self, state: SessionState, arguments: object, context: ToolContext) -> ToolOutcome:
        """Carry out a call with arguments as they were written. Raises `InvalidRequest`."""
        given = self.operation.read(self.schema, arguments)
        if self.operation.fixed_name is None:
            parameters = {name: self.offered.arguments.get(name, name) for name in self.operation.accepts}
            defaults = {
                name: schema["default"] for name, schema in self.operation.accepts.items() if "default" in schema
            }
            said = parse_given(self.schema, arguments) if self.operation.optional else given
            given = defaults | {name: given[called] for name, called in parameters.items() if called in given}
            given |= {name: None for name in self.operation.optional if parameters[name] not in said}
        outcome = self.operation.run(state, given, replace(context, result_template=self.result))
        if outcome.error is not None or outcome.needs is not None:
            return outcome
        return replace(outcome, result=in_words(self.result, outcome.result, outcome.fragment_ids))


def in_words(template: str, result: str, fragment_ids: Sequence[str]) -> str:
    """A result in the words of a suite, "" for the server's own."""
    if not template:
        return result
    return template.format(result=result, id=fragment_ids[0] if fragment_ids else "", ids=", ".join(fragment_ids))


def parsed_arguments(arguments: object) -> object:
    """Arguments as the model wrote them, parsed where they are JSON."""
    if not isinstance(arguments, str):
        return arguments
    try:
        return json.loads(arguments)
    except (ValueError, RecursionError):
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
