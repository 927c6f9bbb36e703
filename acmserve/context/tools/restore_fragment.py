"""The tool `restore_fragment`: shows the original of a fragment again.

Version 1 has two tools for it, `expand_fragment` for what is folded and `revert_summary` for what is summarized.
"""

from __future__ import annotations

from acmserve.context.edits.cost import effect_of
from acmserve.context.edits.fragments import restore
from acmserve.context.schema.suite_registry import name_of
from acmserve.context.session.fragment import Visibility
from acmserve.context.session.nesting import hiding
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
        name, outer = fragment.fragment_id, hiding(new.fragments, fragment.pieces)
        if outer is not None:
            result = (
                f"{name} is restored, inside {outer.visibility.value} {outer.fragment_id}: restore that to read it."
            )
            return ToolOutcome(new, result, fragment_ids=(name,))
        cost = effect_of(state, new, context.fidelity, context.tokenizer).cost
        result = f"{name} is visible again: {fragment.num_tokens:,} tokens. The next step {cost} at most."
        return ToolOutcome(new, result, changed=True, fragment_ids=(name,))

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
