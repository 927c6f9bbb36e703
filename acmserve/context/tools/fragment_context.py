"""The tool `fragment_context`: cuts text between two markers into fragments that other tools name by id."""

from __future__ import annotations

from collections.abc import Sequence

from acmserve.context.edits.cost import EditCost, fold_costs
from acmserve.context.edits.cut import Cut, cut_between
from acmserve.context.schema.tool_schema import choice, integer, text, tool_schema
from acmserve.context.session.fragment import Fragment
from acmserve.context.session.state import SessionState
from acmserve.context.tools.tool import Arguments, Tool, ToolContext, ToolOutcome, counted

_PREVIEW_CHARS = 40

_SCHEMA = tool_schema(
    "fragment_context",
    "Cut the conversation text between two markers into fragments with ids, so that they can be folded, summarized "
    "and restored. Cutting changes nothing that you see.",
    {
        "start_marker": text("Text that marks the beginning of what to fragment, copied exactly"),
        "end_marker": text("Text that marks the end of what to fragment, copied exactly"),
        "num_fragments": integer(5, 1, 20, "How many fragments to make (default: 5)"),
        "role": choice(("user", "assistant", "all"), "user", "Whose messages to look into (default: user)"),
    },
    ["start_marker", "end_marker"],
)


def _run(state: SessionState, args: Arguments, context: ToolContext) -> ToolOutcome:
    tokenizer, num_asked = context.tokenizer, args["num_fragments"]
    cut = cut_between(state, args["start_marker"], args["end_marker"], num_asked, args["role"], tokenizer)
    costs = fold_costs(cut.state, cut.fragments, context.suite, context.fidelity, tokenizer)
    ids = tuple(fragment.fragment_id for fragment in cut.fragments)
    return ToolOutcome(cut.state, _words(cut, costs, num_asked), fragment_ids=ids)


def _words(made: Cut, costs: Sequence[EditCost], num_asked: int) -> str:
    """The new fragments, one a line."""
    fewer = f" ({num_asked} were asked for, the text has no more to cut)" if len(made.fragments) < num_asked else ""
    first = f" The start marker occurs {made.num_candidates:,} times; the first was taken." * (made.num_candidates > 1)
    lines = [f"Made {counted(len(made.fragments), 'fragment')}{fewer}, nothing is hidden yet.{first}"]
    for fragment, cost in zip(made.fragments, costs, strict=True):
        start, end = _ends(made.state, fragment)
        lines.append(
            f'{fragment.fragment_id}: {fragment.num_tokens:,} tokens, from "{start}" to "{end}"; folding it now {cost}.'
        )
    lines.append("Text that follows it makes a fold dearer: fold early, and several at once.")
    return "\n".join(lines)


def _ends(state: SessionState, fragment: Fragment) -> tuple[str, str]:
    first, last = state.piece_text(fragment.pieces[0]), state.piece_text(fragment.pieces[-1])
    return " ".join(first.lstrip()[:_PREVIEW_CHARS].split()), " ".join(last.rstrip()[-_PREVIEW_CHARS:].split())


FRAGMENT_CONTEXT = Tool(
    "fragment",
    _SCHEMA,
    _run,
    "cuts the text between two markers into fragments, at line or sentence ends",
    "nothing: it only names",
)
