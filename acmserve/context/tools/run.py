"""Carries out one call of a context tool: arguments in, new state and the tool's result out.

    call -> parse_arguments -> (wants a summary or embeddings? ask the caller, come again) -> new state, result text

A wrong call is an ordinary result that says what to do instead; the state stays as it was and the loop goes on. The
same state and the same call give the same result text, since it becomes part of the cached conversation.

A summary needs a model and a semantic search needs an embedder; this layer has neither. `run_tool` then answers with
`needs`, and the caller calls again with what was wanted in `supplied`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from acmserve.context.edits import fragments as edits
from acmserve.context.edits.cost import edit_cost
from acmserve.context.episodes.delimiter import DELIMITER, Scope, run_delimiter
from acmserve.context.episodes.graph import EpisodeGraph
from acmserve.context.schema.arguments import echo, parse_arguments
from acmserve.context.session.branch_tool import BRANCH, RETURN
from acmserve.context.session.branching import check_main
from acmserve.context.session.fragment import Fragment, Visibility
from acmserve.context.session.state import SessionState
from acmserve.context.tools import results as tool_result
from acmserve.context.tools.search import search_exact, show
from acmserve.context.tools.semantic_search import passages, rank
from acmserve.context.tools.suites import SCULPTOR, suite_tools, tool_names
from acmserve.context.transcript.tokenizer import Tokenizer, count_tokens
from acmserve.errors import Conflict, InvalidRequest, NotFound


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
    """One vector for each of these texts; the first is the query."""

    texts: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class ToolContext:
    """What a call needs besides the state. `fidelity` is what the next step will be asked for.

    `scope` is what a call of `delimiter` is judged against; None: what the transcript says.
    """

    tokenizer: Tokenizer
    suite: str = SCULPTOR
    fidelity: str = "exact"
    supplied: str | Sequence[Sequence[float]] | None = None
    scope: Scope | None = None


@dataclass(frozen=True, slots=True)
class ToolOutcome:
    """`result` goes back to the model; `error` says what was wrong with the call (the state is the old one then).

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


def run_tool(state: SessionState, call: ToolCall, bench: ToolContext) -> ToolOutcome:
    """Carry out one call on a state. Never raises for a wrong call."""
    try:
        tool = find_tool(bench.suite, call.name)
        if call.name == DELIMITER:
            return _delimit(state, call.arguments, bench)
        if call.name in (BRANCH, RETURN):
            raise Conflict("name", f"{call.name} is carried out in the server's own loop only.", _BRANCHES_ELSEWHERE)
        outcome = _HANDLERS[call.name](state, parse_arguments(tool, call.arguments), bench)
        check_main(state, outcome.state)
        return outcome
    except InvalidRequest as error:
        return ToolOutcome(state, tool_result.refused(error), error=error)


def find_tool(suite: str, name: str) -> Mapping[str, Any]:
    """The schema of a tool; raises `NotFound` naming the tools of the suite."""
    for tool in suite_tools(suite):
        if tool["function"]["name"] == name:
            return tool
    raise NotFound("name", f"suite {suite} has no tool {echo(name)}.", f"Its tools: {', '.join(tool_names(suite))}.")


Arguments = Mapping[str, Any]


def _delimit(state: SessionState, arguments: object, bench: ToolContext) -> ToolOutcome:
    """A mark changes nothing by itself: the call and its result, in the transcript, are the annotation."""
    if state.branch is not None:
        raise Conflict("action", "episodes are marked in the main conversation only.", "Call return first.")
    scope = EpisodeGraph(entry.message for entry in state.entries).scope() if bench.scope is None else bench.scope
    marked = run_delimiter(scope, arguments)
    return ToolOutcome(state, marked.result, error=marked.error, scope=marked.scope)


def _fragment_context(state: SessionState, args: Arguments, bench: ToolContext) -> ToolOutcome:
    cut = edits.cut_between(
        state, args["start_marker"], args["end_marker"], args["num_fragments"], args["role"], bench.tokenizer
    )
    costs = [
        edit_cost(
            cut.state, f, edits.num_marker_tokens(f, bench.suite, bench.tokenizer), bench.fidelity, bench.tokenizer
        )
        for f in cut.fragments
    ]
    result = tool_result.cut(cut, costs, args["num_fragments"])
    return ToolOutcome(cut.state, result, fragment_ids=tuple(f.fragment_id for f in cut.fragments))


def _fold_fragment(state: SessionState, args: Arguments, bench: ToolContext) -> ToolOutcome:
    new = edits.fold(state, args["fragment_id"], bench.suite, bench.tokenizer)
    return _hidden(new, args["fragment_id"], bench)


def _summarize_fragment(state: SessionState, args: Arguments, bench: ToolContext) -> ToolOutcome:
    fragment_id, focus = args["fragment_id"], args["focus"]
    fragment = edits.check_summarizable(state, fragment_id, focus)
    stored = fragment.summary(focus)
    summary = stored if stored is not None else bench.supplied
    if summary is None:
        wanted = SummaryWanted(fragment_id, state.fragment_text(fragment), focus, fragment.num_tokens)
        return ToolOutcome(state, needs=wanted)
    if not isinstance(summary, str):
        raise TypeError(f"summarize_fragment was supplied with {type(summary).__name__}, not a summary")
    new = edits.summarize(state, fragment_id, focus, summary, bench.suite, bench.tokenizer)
    return _hidden(new, fragment_id, bench)


def _hidden(new: SessionState, fragment_id: str, bench: ToolContext) -> ToolOutcome:
    fragment = new.fragment(fragment_id)
    num_shown = sum(count_tokens(bench.tokenizer, text) for text in fragment.shown or ())
    cost = edit_cost(new, fragment, num_shown, bench.fidelity, bench.tokenizer)
    result = tool_result.hidden(fragment, num_shown, cost)
    return ToolOutcome(new, result, changed=True, fragment_ids=(fragment_id,))


def _restore(*allowed: Visibility) -> Callable[[SessionState, Arguments, ToolContext], ToolOutcome]:
    """A handler that restores fragments in one of these states."""

    def restore(state: SessionState, args: Arguments, bench: ToolContext) -> ToolOutcome:
        fragment = state.fragment(args["fragment_id"])
        if fragment.visibility in _OTHER_WAY and fragment.visibility not in allowed:
            raise Conflict(
                "fragment_id",
                f"{fragment.fragment_id} is {fragment.visibility.value}, not {allowed[0].value}.",
                _OTHER_WAY[fragment.visibility],
            )
        return _shown(edits.restore(state, fragment.fragment_id), fragment, bench)

    return restore


def _shown(new: SessionState, fragment: Fragment, bench: ToolContext) -> ToolOutcome:
    cost = edit_cost(new, fragment, fragment.num_tokens, bench.fidelity, bench.tokenizer)
    result = tool_result.restored(fragment, cost)
    return ToolOutcome(new, result, changed=True, fragment_ids=(fragment.fragment_id,))


def _restore_context(state: SessionState, args: Arguments, bench: ToolContext) -> ToolOutcome:
    new = edits.restore_all(state)
    gone = tuple(f for f in state.fragments if f not in new.fragments)
    hidden = tuple(f.fragment_id for f in gone if f.hidden)
    return ToolOutcome(new, tool_result.restored_all(gone, hidden), changed=bool(hidden), fragment_ids=hidden)


def _search_context(state: SessionState, args: Arguments, bench: ToolContext) -> ToolOutcome:
    query, role, max_results, size = args["query"], args["role"], args["max_results"], args["context_size"]
    if args.get("mode", "exact") == "exact":
        found = search_exact(state, query, role, max_results, size)
        return ToolOutcome(found.state, tool_result.found(found, query, role))
    if not query.strip():
        raise InvalidRequest("query", "is empty.", "Give the text to search for.")
    candidates = passages(state, role)
    if bench.supplied is None:
        return ToolOutcome(state, needs=EmbeddingsWanted((query, *(p.text for p in candidates))))
    if isinstance(bench.supplied, str):
        raise TypeError("search_context was supplied with a text, not with vectors")
    best = rank(candidates, bench.supplied, args["similarity_threshold"], max_results)
    found = show(state, list(best), 0)
    return ToolOutcome(found.state, tool_result.found(found, query, role))


def _get_search_detail(state: SessionState, args: Arguments, bench: ToolContext) -> ToolOutcome:
    hit = state.hit(args["search_id"])
    return ToolOutcome(state, tool_result.detail(state, hit, args["extended_context"]))


_BRANCHES_ELSEWHERE = "Send acm.tools, or make a branch with POST .../sessions/{session_id}/branches."
_OTHER_WAY = {
    Visibility.FOLDED: "Call expand_fragment instead.",
    Visibility.SUMMARIZED: "Call revert_summary instead.",
}
_HANDLERS: Mapping[str, Callable[[SessionState, Arguments, ToolContext], ToolOutcome]] = {
    "fragment_context": _fragment_context,
    "fold_fragment": _fold_fragment,
    "summarize_fragment": _summarize_fragment,
    "summary_fragment": _summarize_fragment,
    "restore_fragment": _restore(Visibility.FOLDED, Visibility.SUMMARIZED),
    "expand_fragment": _restore(Visibility.FOLDED),
    "revert_summary": _restore(Visibility.SUMMARIZED),
    "restore_context": _restore_context,
    "search_context": _search_context,
    "get_search_detail": _get_search_detail,
}


def with_input(bench: ToolContext, supplied: str | Sequence[Sequence[float]]) -> ToolContext:
    """The workbench of the second call, with what the first one wanted."""
    return replace(bench, supplied=supplied)
