"""The tool `restore_fragment`: shows the original of a fragment again.

Version 1 has two tools for it, `expand_fragment` for what is folded and `revert_summary` for what is summarized.
"""

from __future__ import annotations

from acmserve.context.edits.cost import effect_of
from acmserve.context.edits.fragments import restore
from acmserve.context.schema.tool_schema import tool_schema
from acmserve.context.session.fragment import Visibility
from acmserve.context.session.nesting import hiding
from acmserve.context.session.state import SessionState
from acmserve.context.tools.tool import FRAGMENT_ID, Arguments, Tool, ToolContext, ToolOutcome
from acmserve.errors import Conflict

_OTHER_WAY = {
    Visibility.FOLDED: "Call expand_fragment instead.",
    Visibility.SUMMARIZED: "Call revert_summary instead.",
}


def _tool(operation: str, name: str, description: str, *allowed: Visibility) -> Tool:
    """A tool that restores fragments in one of these states."""

    def run(state: SessionState, args: Arguments, context: ToolContext) -> ToolOutcome:
        fragment = state.fragment(args["fragment_id"])
        if fragment.visibility in _OTHER_WAY and fragment.visibility not in allowed:
            raise Conflict(
                "fragment_id",
                f"{fragment.fragment_id} is {fragment.visibility.value}, not {allowed[0].value}.",
                _OTHER_WAY[fragment.visibility],
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

    schema = tool_schema(name, description, {"fragment_id": FRAGMENT_ID}, ["fragment_id"])
    which = " or ".join(state.value for state in allowed)
    return Tool(
        operation,
        schema,
        run,
        f"shows the original of a {which} fragment again, byte for byte",
        "what stands behind the fragment, or nothing where its original blocks are still cached",
    )


RESTORE_FRAGMENT = _tool(
    "restore",
    "restore_fragment",
    "Show the original text of a folded or summarized fragment again.",
    Visibility.FOLDED,
    Visibility.SUMMARIZED,
)
EXPAND_FRAGMENT = _tool(
    "restore_folded", "expand_fragment", "Show the original text of a folded fragment again.", Visibility.FOLDED
)
REVERT_SUMMARY = _tool(
    "restore_summarized",
    "revert_summary",
    "Show the original text of a summarized fragment again.",
    Visibility.SUMMARIZED,
)
