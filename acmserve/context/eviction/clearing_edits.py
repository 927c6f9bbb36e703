"""The vendor's context editing on a conversation: a list of edits, and what was cleared before, decide what is shown.

    turn 1   c r c r c r c r     over the trigger: all but the last 3 results are cleared
             c . c r c r c r
    turn 2   c . c r c r c r c r c r    below the trigger again: what was cleared stays, the prefix stays cached
    turn 3   c . c . c . c r c r c r c r    over it again

Clients resend their whole history, so a `Memory` says what was cleared in it. Without one every request is judged
alone, as the vendor does. Same history and same memory give the same result. A later turn only adds clearings. Where
the history diverges from the one remembered, what was cleared before that point stays.

Decisions: what a session has cleared stays cleared, also under edits that would not clear it any more (a larger `keep`,
an edit left out). It is reported, too, since the prompt is without it. Reasoning is no part of a message's identity:
many clients send it once and leave it out later.

Pure. It knows neither the vendor's JSON nor HTTP.
"""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from acmserve.context.episodes.view import ConversationView
from acmserve.context.eviction.clear_thinking import ClearThinking, count_cleared, plan_clear_thinking
from acmserve.context.eviction.clear_tool_uses import ClearToolUses, plan_clear_tool_uses
from acmserve.context.transcript.message import Message, digest_message
from acmserve.context.transcript.omissions import (
    EMPTY,
    MessageOmissions,
    Omissions,
    omissions_before_divergence,
    render_without,
)
from acmserve.context.transcript.outline import Outline
from acmserve.context.transcript.parts import without_reasoning
from acmserve.context.transcript.token_counts import Count, TokenCounts

CLEAR_TOOL_USES = "clear_tool_uses_20250919"
CLEAR_THINKING = "clear_thinking_20251015"
COMPACT = "compact_20260112"
DIGEST_BYTES = 16
_KEY = secrets.token_bytes(32)


@dataclass(frozen=True, slots=True)
class Compact:
    """Over `trigger_tokens` of prompt a summary takes the place of the conversation.

    `instructions` replace the server's prompt for summaries, "" keeps it. With `pause_after_compaction` the answer ends
    behind the summary.
    """

    trigger_tokens: int = 150_000
    pause_after_compaction: bool = False
    instructions: str = ""


VendorEdit = ClearToolUses | ClearThinking | Compact


@dataclass(frozen=True, slots=True)
class Weights:
    """How a prompt is counted: `count` is the served tokenizer, the rest what the template writes around the texts.

    `base_tokens` is what the prompt has besides the messages (system, tools). A result weighs like a message if None.
    """

    count: Count
    message_overhead: int = 4
    call_overhead: int = 8
    base_tokens: int = 0
    result_overhead: int | None = None

    def token_counts(self) -> TokenCounts:
        """New counts of this kind."""
        return TokenCounts(
            self.count, self.message_overhead, self.call_overhead, self.base_tokens, self.result_overhead
        )


@dataclass(frozen=True, slots=True)
class Memory:
    """What was cleared in a history: `digests` has 16 bytes for each of its messages, and no text."""

    digests: bytes = b""
    omissions: Omissions = EMPTY


@dataclass(frozen=True, slots=True)
class EditedHistory:
    """`applied` is the vendor's `applied_edits`. `memory` is for the next request. `num_tokens` is what is left."""

    outline: Outline
    omissions: Omissions
    applied: list[dict[str, Any]]
    memory: Memory
    num_tokens: int


def edit_history(
    messages: Sequence[Message],
    edits: Sequence[VendorEdit],
    weights: Weights,
    memory: Memory | None = None,
) -> EditedHistory:
    """Decide what is cleared of a history in OpenAI's form."""
    token_counts = weights.token_counts()
    token_counts.extend(messages)
    digests = b"".join(digest_message(without_reasoning(message), _KEY) for message in messages)
    before = EMPTY if memory is None else _still_cleared(memory, digests, messages)
    view = ConversationView(Outline(messages), token_counts, before)
    omissions = plan_edits(view, edits)
    left = view.with_omissions(omissions)
    return EditedHistory(view.outline, omissions, applied_edits(left), Memory(digests, omissions), left.shown_tokens())


def edit_chat(
    messages: Sequence[Message],
    edits: Sequence[VendorEdit],
    weights: Weights,
    memory: Memory | None = None,
) -> tuple[list[Message], EditedHistory]:
    """What is left of messages in OpenAI's form after the edits. The arguments are those of `edit_history`."""
    edited = edit_history(messages, edits, weights, memory)
    return render_without(messages, edited.omissions), edited


def plan_edits(view: ConversationView, edits: Sequence[VendorEdit]) -> Omissions:
    """What is left out after the clearing edits, in their order. A `Compact` clears nothing.

    Results from an open branch on stay.
    """
    for edit in edits:
        if isinstance(edit, ClearThinking):
            view = view.with_omissions(plan_clear_thinking(view, edit.keep).omissions)
        elif isinstance(edit, ClearToolUses):
            view = view.with_omissions(plan_clear_tool_uses(view, edit).omissions)
    return view.omissions


def applied_edits(view: ConversationView) -> list[dict[str, Any]]:
    """The vendor's `applied_edits` for all that is cleared now. Edits that cleared nothing are left out."""
    cleared, omissions = count_cleared(view), view.omissions
    thoughts = {entry: MessageOmissions(reasoning=True) for entry in _thoughtless(omissions)}
    only_thinking = view.with_omissions(Omissions(omissions.gone, thoughts))
    num_thinking = max(0, view.token_counts.num_tokens - only_thinking.shown_tokens())
    applied: list[dict[str, Any]] = []
    if cleared.thinking_turns:
        applied.append(
            {
                "type": CLEAR_THINKING,
                "cleared_thinking_turns": cleared.thinking_turns,
                "cleared_input_tokens": num_thinking,
            }
        )
    if cleared.tool_uses:
        num_tokens = max(0, cleared.input_tokens - num_thinking)
        applied.append(
            {"type": CLEAR_TOOL_USES, "cleared_tool_uses": cleared.tool_uses, "cleared_input_tokens": num_tokens}
        )
    return applied


def _thoughtless(omissions: Omissions) -> list[int]:
    return [entry for entry, kept in omissions.entries.items() if kept.reasoning]


def _still_cleared(memory: Memory, digests: bytes, messages: Sequence[Message]) -> Omissions:
    """What stays cleared in a history that may have diverged from the one remembered."""
    known = memory.digests
    if digests.startswith(known):
        return memory.omissions
    starts = range(0, min(len(known), len(digests)), DIGEST_BYTES)
    differs = (at for at in starts if known[at : at + DIGEST_BYTES] != digests[at : at + DIGEST_BYTES])
    num_same = next(differs, len(digests)) // DIGEST_BYTES
    return omissions_before_divergence(memory.omissions, messages[:num_same])
