"""The tool `fold_fragment`: hides a fragment behind a marker."""

from __future__ import annotations

from acmserve.context.edits.cost import edit_cost, num_tokens_shown
from acmserve.context.edits.fragments import fold
from acmserve.context.session.state import SessionState
from acmserve.context.tools.tool import TEXT, Arguments, ToolContext, ToolOperation, ToolOutcome


def _run(state: SessionState, args: Arguments, context: ToolContext) -> ToolOutcome:
    return hidden(fold(state, args["fragment_id"], context.suite, context.tokenizer), args["fragment_id"], context)


def hidden(new: SessionState, fragment_id: str, context: ToolContext) -> ToolOutcome:
    """The outcome of a fold, or of a summary."""
    fragment = new.fragment(fragment_id)
    num_shown = num_tokens_shown(fragment, context.tokenizer)
    cost = edit_cost(new, fragment, num_shown, context.fidelity, context.tokenizer)
    result = (
        f"{fragment_id} is {fragment.visibility.value}, {fragment.num_tokens - num_shown:,} tokens fewer. The next "
        f"step {cost}; folds of text behind it, asked for now, add nothing to that."
    )
    return ToolOutcome(new, result, changed=True, fragment_ids=(fragment_id,))


FOLD = ToolOperation(
    "fold", _run, "hides a fragment behind a marker", "what stands behind the fragment", {"fragment_id": TEXT}
)
