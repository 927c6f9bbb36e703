"""Anthropic's edit `clear_thinking_20251015`: old reasoning leaves the conversation, and what was cleared is counted.

    reasoning gone     in all but the last `keep` turns of the assistant that have any

It is an edit of a request and no policy of a budget, since reasoning alone seldom meets a target. What is counted is
all that is cleared now, by earlier requests, too: clients resend their whole history.
"""

from __future__ import annotations

from dataclasses import dataclass

from acmserve.context.episodes.view import ConversationView
from acmserve.context.eviction.plan import EvictionPlan, EvictionStep, Level, finish_plan
from acmserve.context.transcript.omissions import NOTHING, MessageOmissions, Omissions
from acmserve.context.transcript.outline import TEXT, Outline


@dataclass(frozen=True, slots=True)
class ClearThinking:
    """`keep` turns that have reasoning keep it, the last ones. None keeps all."""

    keep: int | None = 1


def plan_clear_thinking(view: ConversationView, keep: int | None = 1) -> EvictionPlan:
    """Clear the reasoning of all but the last `keep` turns that have any. None keeps all.

    A turn is what the assistant says between two messages of the user, tool calls and all.
    """
    editor, turns = view.editor(), _thinking_turns(view.outline)
    steps = []
    for turn in [] if keep is None else turns[: max(0, len(turns) - keep)]:
        size, num_done = editor.num_tokens, editor.num_operations
        for entry in turn:
            editor.strip_reasoning(entry)
        if editor.num_operations > num_done:
            steps.append(EvictionStep(f"turn of message {turn[0]}", Level.REASONING, size - editor.num_tokens))
    editor.num_reasoning = len(steps)
    return finish_plan(view, editor, 0, steps)


def _thinking_turns(outline: Outline) -> list[list[int]]:
    """The messages with reasoning, by turn."""
    turns: list[list[int]] = [[]]
    for entry, line in enumerate(outline.lines):
        if line.is_user and turns[-1]:
            turns.append([])
        elif line.has_reasoning:
            turns[-1].append(entry)
    return [turn for turn in turns if turn]


@dataclass(frozen=True, slots=True)
class Cleared:
    """All that is cleared now, by earlier requests too: the vendor counts so, since clients resend everything."""

    tool_uses: int
    thinking_turns: int
    input_tokens: int


def count_cleared(view: ConversationView) -> Cleared:
    """Count what the view leaves out."""
    omissions = view.omissions
    num_uses = 0
    for entry, line in enumerate(view.outline.lines):
        kept = omissions.entries.get(entry)
        if kept is not None:
            num_uses += len((kept.calls | kept.cleared) & frozenset(range(len(line.names))))
            num_uses += line.observation is not None and (kept.text or TEXT in kept.cleared)
        elif (line.names or line.observation is not None) and omissions.in_gone(entry):
            num_uses += len(line.names) + (line.observation is not None)
    turns = sum(any(_has_lost_reasoning(omissions, entry) for entry in turn) for turn in _thinking_turns(view.outline))
    return Cleared(num_uses, turns, max(0, view.token_counts.num_tokens - view.shown_tokens()))


def only_cleared(outline: Outline, omissions: Omissions) -> Omissions:
    """The part of omissions that clears: without what a budget took out altogether, messages, calls and texts."""
    entries = {
        entry: MessageOmissions(
            reasoning=kept.reasoning and not kept.text,
            cleared=kept.cleared - kept.calls - (frozenset({TEXT}) if kept.text else frozenset()),
            inputs=kept.inputs - kept.calls,
        )
        for entry, kept in omissions.entries.items()
    }
    lines = outline.lines
    thoughts = (
        entry
        for start, end in omissions.gone
        for entry in range(start, end)
        if lines[entry].has_reasoning and not lines[entry].has_text and not lines[entry].names
    )
    gone = tuple((entry, entry + 1) for entry in thoughts if entry not in omissions.entries)
    return Omissions(gone, {entry: kept for entry, kept in entries.items() if kept != NOTHING})


def _has_lost_reasoning(omissions: Omissions, entry: int) -> bool:
    kept = omissions.entries.get(entry)
    return kept.reasoning if kept is not None else omissions.in_gone(entry)
