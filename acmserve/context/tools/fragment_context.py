"""The tool `fragment_context`: cuts text between two markers into fragments that other tools name by id."""

from __future__ import annotations

from collections.abc import Sequence

from acmserve.context.edits.cost import EditCost, fold_costs
from acmserve.context.edits.cut import Cut, cut_between
from acmserve.context.session.fragment import Fragment
from acmserve.context.session.state import SessionState
from acmserve.context.tools.tool import ROLE, TEXT, Arguments, ToolContext, ToolOperation, ToolOutcome, bounded, counted
from acmserve.context.transcript.call_arguments import ArgumentPart, part_name
from acmserve.context.transcript.tokenizer import Tokenizer
from acmserve.errors import InvalidRequest

_PREVIEW_CHARS = 40


def _run(state: SessionState, args: Arguments, context: ToolContext) -> ToolOutcome:
    tokenizer, num_asked = context.tokenizer, args["num_fragments"]
    cut = _cut(state, args, tokenizer)
    costs = fold_costs(cut.state, cut.fragments, context.suite, context.fidelity, tokenizer)
    ids = tuple(fragment.fragment_id for fragment in cut.fragments)
    return ToolOutcome(cut.state, _words(cut, costs, num_asked), fragment_ids=ids)


def _cut(state: SessionState, args: Arguments, tokenizer: Tokenizer) -> Cut:
    """The cut in the messages of the role. Where the call names none, in those of users, or else in all."""
    wanted = args["start_marker"], args["end_marker"], args["num_fragments"]
    if args["role"] is not None:
        return cut_between(state, *wanted, args["role"], tokenizer)
    try:
        return cut_between(state, *wanted, "user", tokenizer)
    except InvalidRequest:
        return cut_between(state, *wanted, "all", tokenizer)


def _roles(cut: Cut) -> str:
    """Whose messages the fragments are of, where not of users."""
    places = [piece.place for fragment in cut.fragments for piece in fragment.pieces]
    roles = dict.fromkeys(str(cut.state.entries[place.entry].message.get("role")) for place in places)
    return "" if list(roles) == ["user"] else f" in messages of role {' and '.join(map(repr, roles))}"


def _words(made: Cut, costs: Sequence[EditCost], num_asked: int) -> str:
    """The new fragments, one a line."""
    fewer = f" ({num_asked} were asked for, the text has no more to cut)" if len(made.fragments) < num_asked else ""
    first = f" The start marker occurs {made.num_candidates:,} times; the first was taken." * (made.num_candidates > 1)
    lines = [f"Made {counted(len(made.fragments), 'fragment')}{_roles(made)}{fewer}, nothing is hidden yet.{first}"]
    for fragment, cost in zip(made.fragments, costs, strict=True):
        start, end = _ends(made.state, fragment)
        lines.append(
            f"{fragment.fragment_id}: {fragment.num_tokens:,} tokens{_argument(made.state, fragment)}, "
            f'from "{start}" to "{end}"; a fold {cost}.'
        )
    return "\n".join(lines)


def _argument(state: SessionState, fragment: Fragment) -> str:
    """In which argument of a call a fragment begins, if in any."""
    place = fragment.pieces[0].place
    if not isinstance(place.part, ArgumentPart):
        return ""
    return f" in {part_name(state.entries[place.entry].message, place.part)}"


def _ends(state: SessionState, fragment: Fragment) -> tuple[str, str]:
    first, last = state.piece_text(fragment.pieces[0]), state.piece_text(fragment.pieces[-1])
    return " ".join(first.lstrip()[:_PREVIEW_CHARS].split()), " ".join(last.rstrip()[-_PREVIEW_CHARS:].split())


FRAGMENT = ToolOperation(
    "fragment",
    _run,
    "cuts the text between two markers into fragments, at line or sentence ends",
    "nothing: it only names",
    {"start_marker": TEXT, "end_marker": TEXT, "num_fragments": bounded(5, 1, 20), "role": ROLE},
    optional=("role",),
)
