"""The tool `fold_fragment`: hides a fragment behind a marker."""

from __future__ import annotations

from acmserve.context.edits.cost import effect_of
from acmserve.context.edits.fragments import fold
from acmserve.context.schema.tool_schema import tool_schema
from acmserve.context.session.state import SessionState
from acmserve.context.tools.tool import FRAGMENT_ID, Arguments, Tool, ToolContext, ToolOutcome

_SCHEMA = tool_schema(
    "fold_fragment",
    "Hide a fragment behind a short marker. Its text is kept and can be restored at any time. Folding is cheapest "
    "early, while little text follows the fragment.",
    {"fragment_id": FRAGMENT_ID},
    ["fragment_id"],
)


def _run(state: SessionState, args: Arguments, context: ToolContext) -> ToolOutcome:
    return hidden(state, fold(state, args["fragment_id"], context.suite, context.tokenizer), args, context)


def hidden(before: SessionState, after: SessionState, args: Arguments, context: ToolContext) -> ToolOutcome:
    """The outcome of a fold, or of a summary."""
    fragment = after.fragment(args["fragment_id"])
    effect = effect_of(before, after, context.fidelity, context.tokenizer)
    name = fragment.fragment_id
    result = (
        f"{name} is {fragment.visibility.value}, {fewer(effect.num_saved)}. The next step {effect.cost}; "
        "folds of text behind it, asked for now, add nothing to that."
    )
    return ToolOutcome(after, result, changed=True, fragment_ids=(name,))


def fewer(num_saved: int) -> str:
    """By how much the conversation is shorter, or longer."""
    return f"{num_saved:,} tokens fewer" if num_saved >= 0 else f"{-num_saved:,} tokens more"


FOLD_FRAGMENT = Tool("fold", _SCHEMA, _run, "hides a fragment behind a marker", "what stands behind the fragment")
