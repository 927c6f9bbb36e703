"""The tool `restore_fragment`: shows the original of a fragment again.

Version 1 has two tools for it, `expand_fragment` for what is folded and `revert_summary` for what is summarized.
"""

from __future__ import annotations

from acmserve.context.edits.cost import edit_cost
from acmserve.context.edits.fragments import restore
from acmserve.context.schema.suite_registry import name_of
from acmserve.context.session.fragment import Visibility
from acmserve.context.session.state import SessionState
from acmserve.context.tools.tool import TEXT, Arguments, ToolContext, ToolOperation, ToolOutcome
from acmserve.errors import Conflict

_OTHERS = {Visibility.FOLDED: "restore_folded", Visibility.SUMMARIZED: "restore_summarized"}


def _operation(name: str, *allowed: Visibility) -> ToolOperation:
    """An operation that restores fragments in one of these states."""

    def run(state: SessionState, args: Arguments, context: ToolContext) -> ToolOutcome:
        fragment = state.fragment(args["fragment_id"])
        if fragment.visibility in _OTHERS and fragment.visibility not in allowed:
            other = name_of(context.suite, _OTHERS[fragment.visibility])
            raise Conflict(
                "fragment_id",
                f"{fragment.fragment_id} is {fragment.visibility.value}, not {allowed[0].value}.",
                "" if other is None else f"Call {other} instead.",
            )
        new = restore(state, fragment.fragment_id)
        cost = edit_cost(new, fragment, fragment.num_tokens, context.fidelity, context.tokenizer)
        result = (
            f"{fragment.fragment_id} is visible again: {fragment.num_tokens:,} tokens. The next step {cost} at most."
        )
        return ToolOutcome(new, result, changed=True, fragment_ids=(fragment.fragment_id,))

    which = " or ".join(state.value for state in allowed)
    return ToolOperation(
        name,
        run,
        f"shows the original of a {which} fragment again, byte for byte",
        "what stands behind the fragment, or nothing where its original blocks are still cached",
        {"fragment_id": TEXT},
    )


RESTORE = _operation("restore", Visibility.FOLDED, Visibility.SUMMARIZED)
RESTORE_FOLDED = _operation("restore_folded", Visibility.FOLDED)
RESTORE_SUMMARIZED = _operation("restore_summarized", Visibility.SUMMARIZED)
