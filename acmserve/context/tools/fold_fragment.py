"""The tool `fold_fragment`: hides a fragment behind a marker, where that makes the prompt shorter.

The call, its result and the marker count. A fold that costs more than it hides is refused, and told from when it pays.
"""

from __future__ import annotations

from acmserve.context.accounting.call_tokens import call_messages, num_added, num_call_tokens
from acmserve.context.edits.cost import effect_of, num_tokens_shown
from acmserve.context.edits.fragments import fold
from acmserve.context.session.render import render
from acmserve.context.session.state import SessionState
from acmserve.context.tools.tool import TEXT, Arguments, ToolContext, ToolOperation, ToolOutcome, in_words
from acmserve.errors import Conflict

_MARGIN = 8
"""Tokens by which the marker of a longer text may be longer."""


def _run(state: SessionState, args: Arguments, context: ToolContext) -> ToolOutcome:
    outcome, net = hidden(state, fold(state, args["fragment_id"], context.suite, context.tokenizer), args, context)
    fragment = state.fragment(args["fragment_id"])
    if net <= 0 and not fragment.hidden:
        num_shown = num_tokens_shown(state, fragment, context.tokenizer)
        raise Conflict(
            "fragment_id",
            f"folding {fragment.fragment_id} would not pay: it has {num_shown:,} tokens, and its marker, this call and "
            f"the result have {num_shown - net:,}.",
            f"Leave it visible, or fragment {num_shown - net + _MARGIN:,} tokens or more of its message around it.",
        )
    return outcome


def hidden(before: SessionState, after: SessionState, args: Arguments, context: ToolContext) -> tuple[ToolOutcome, int]:
    """The outcome of a fold, or of a summary, and the tokens that the prompt has fewer with call and result."""
    fragment = after.fragment(args["fragment_id"])
    effect = effect_of(before, after, context.fidelity, context.tokenizer)
    name, net = fragment.fragment_id, effect.num_saved
    when = "The prompt shows it when that costs least. Alone it" if context.may_wait else "The next step"
    for _ in range(2):
        result = f"{name} is {fragment.visibility.value}: {fewer(net)}, this call counted. {when} {effect.cost}."
        said = in_words(context.result_template, result, (name,))
        net = _net(before, after, effect.num_saved, said, context)
    result = f"{name} is {fragment.visibility.value}: {fewer(net)}, this call counted. {when} {effect.cost}."
    return ToolOutcome(after, result, changed=True, fragment_ids=(name,)), net


def _net(before: SessionState, after: SessionState, num_saved: int, result: str, context: ToolContext) -> int:
    """Tokens that the prompt has fewer once the call and its result stand in it."""
    call = context.call
    if call is None:
        return num_saved
    written = call_messages(call.name, call.arguments, result)
    added = num_added(render(before), render(after), written, context.renderer)
    if added is not None:
        return -added
    return num_saved - num_call_tokens(call.name, call.arguments, result, context.tokenizer)


def fewer(num_saved: int) -> str:
    """By how much the conversation is shorter, or longer."""
    return f"{num_saved:,} tokens fewer" if num_saved >= 0 else f"{-num_saved:,} tokens more"


FOLD = ToolOperation(
    "fold", _run, "hides a fragment behind a marker", "what stands behind the fragment", {"fragment_id": TEXT}
)
