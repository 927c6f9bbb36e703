"""The policies that need no episodes: clear old tool results, clear old reasoning, drop the oldest steps.

    clear_tool_uses   call -> "[tool result cleared]"   all but the last `keep`, when the trigger is reached
    clear_thinking    reasoning gone                    all but the last `keep` turns of the assistant that have any
    recency           call and result gone, text gone   the oldest steps, until the target is met

The first two are the vendor's `clear_tool_uses_20250919` and `clear_thinking_20251015`, with their names and defaults.
Their trigger looks at what the model would see *now*, with earlier clearings in force: a conversation that was cleared
grows until the trigger is reached again, and its prefix stays cached meanwhile.

Decisions: `keep` counts all tool uses, those of excluded tools and those that are cleared already too; calls without a
result are never cleared; `recency` keeps user and system messages, as every policy here does, and the last step.
"""

from __future__ import annotations

from dataclasses import dataclass

from acmserve.context.eviction.cwl import finish_plan
from acmserve.context.eviction.plan import BudgetUnmet, EvictionPlan, EvictionStep, Level, Protected
from acmserve.context.transcript.omission_editor import OmissionEditor
from acmserve.context.transcript.omissions import NOTHING, MessageOmissions, Omissions
from acmserve.context.transcript.omitted_tokens import shown_tokens
from acmserve.context.transcript.outline import Outline, Role, Use
from acmserve.context.transcript.token_counts import TokenCounts


@dataclass(frozen=True, slots=True)
class ClearToolUses:
    """`trigger_tokens` or `trigger_uses` must be exceeded; with both None it always clears.

    `clear_at_least`: tokens that one clearing must free, or nothing is cleared. `clear_tool_inputs`: the arguments of
    the calls go too, of all tools or of those named.
    """

    trigger_tokens: int | None = 100_000
    trigger_uses: int | None = None
    keep: int = 3
    clear_at_least: int = 0
    exclude_tools: frozenset[str] = frozenset()
    clear_tool_inputs: bool | frozenset[str] = False

    def clears_inputs(self, name: str) -> bool:
        """Whether the arguments of calls of this tool go with their results."""
        asked = self.clear_tool_inputs
        return asked if isinstance(asked, bool) else name in asked


def plan_clear_tool_uses(
    outline: Outline, token_counts: TokenCounts, omissions: Omissions, options: ClearToolUses, end: int | None = None
) -> EvictionPlan:
    """Clear the results of all but the last tool uses, before entry `end`."""
    editor = OmissionEditor(outline, token_counts, omissions)
    before, target = editor.num_tokens, options.trigger_tokens or 0
    uses = [use for use in outline.uses() if outline.result(use) is not None and not omissions.has_lost(use)]
    num_shown = sum(use.number not in editor.of(use.entry).cleared for use in uses)
    if not _is_triggered(options, before, num_shown):
        return finish_plan(editor, omissions, outline, token_counts, target, before, ())
    steps = []
    for use in uses[: max(0, len(uses) - options.keep)]:
        name = outline.name(use)
        size, num_done = editor.num_tokens, editor.num_operations
        if name not in options.exclude_tools and (end is None or use.entry < end):
            editor.clear_result(use, options.clears_inputs(name))
        if editor.num_operations > num_done:
            steps.append(EvictionStep(f"{name} in message {use.entry}", Level.CLEAR, size - editor.num_tokens))
    if before - editor.num_tokens < options.clear_at_least:
        return finish_plan(
            OmissionEditor(outline, token_counts, omissions), omissions, outline, token_counts, target, before, ()
        )
    return finish_plan(editor, editor.omissions(), outline, token_counts, target, before, steps)


def _is_triggered(options: ClearToolUses, num_tokens: int, num_uses: int) -> bool:
    if options.trigger_tokens is None and options.trigger_uses is None:
        return True
    return (options.trigger_tokens is not None and num_tokens > options.trigger_tokens) or (
        options.trigger_uses is not None and num_uses > options.trigger_uses
    )


def plan_clear_thinking(
    outline: Outline, token_counts: TokenCounts, omissions: Omissions, keep: int | None = 1
) -> EvictionPlan:
    """Clear the reasoning of all but the last `keep` turns that have any; None keeps all.

    A turn is what the assistant says between two messages of the user, tool calls and all.
    """
    editor = OmissionEditor(outline, token_counts, omissions)
    before = editor.num_tokens
    turns = _thinking_turns(outline)
    steps = []
    num_turns = 0
    for turn in [] if keep is None else turns[: max(0, len(turns) - keep)]:
        size, num_done = editor.num_tokens, editor.num_operations
        for entry in turn:
            editor.strip_reasoning(entry)
        if editor.num_operations > num_done:
            num_turns += 1
            steps.append(EvictionStep(f"turn of message {turn[0]}", Level.REASONING, size - editor.num_tokens))
    editor.num_reasoning = num_turns
    return finish_plan(editor, editor.omissions(), outline, token_counts, 0, before, steps)


def _thinking_turns(outline: Outline) -> list[list[int]]:
    """The messages with reasoning, by turn."""
    turns: list[list[int]] = [[]]
    for entry, line in enumerate(outline.lines):
        if line.is_user and turns[-1]:
            turns.append([])
        elif line.has_reasoning:
            turns[-1].append(entry)
    return [turn for turn in turns if turn]


def plan_recency(
    outline: Outline, token_counts: TokenCounts, omissions: Omissions, target: int, end: int | None = None
) -> EvictionPlan:
    """Drop the oldest steps before entry `end`, an assistant's message with its results, until `target` is met."""
    editor = OmissionEditor(outline, token_counts, omissions)
    before, steps = editor.num_tokens, []
    for entry in _steps(outline)[:-1]:
        if editor.num_tokens <= target or (end is not None and entry >= end):
            break
        size, num_done = editor.num_tokens, editor.num_operations
        for index in range(len(outline.lines[entry].names)):
            editor.drop_call(Use(entry, index))
        editor.drop_text(entry)
        if editor.num_operations > num_done:
            steps.append(EvictionStep(f"message {entry}", Level.REMOVE, size - editor.num_tokens))
    unmet = None
    if editor.num_tokens > target:
        over = editor.num_tokens - target
        unmet = BudgetUnmet(over, _left(outline, token_counts, editor.num_tokens))
    return finish_plan(editor, editor.omissions(), outline, token_counts, target, before, steps, unmet)


def _steps(outline: Outline) -> list[int]:
    """The assistant's messages, and results that answer none of them."""
    return [
        entry
        for entry, line in enumerate(outline.lines)
        if line.role is Role.ASSISTANT or (line.role is Role.RESULT and line.use is None)
    ]


def _left(outline: Outline, token_counts: TokenCounts, num_shown: int) -> tuple[Protected, ...]:
    num_all = token_counts.between(0, len(outline))
    kept = token_counts.base_tokens + num_all - token_counts.omittable_between(0, len(outline))
    return tuple(
        item
        for item in (
            Protected("system and user messages", kept),
            Protected("the last step", num_shown - kept),
        )
        if item.num_tokens
    )


@dataclass(frozen=True, slots=True)
class Cleared:
    """All that is cleared now, by earlier requests too: the vendor counts so, since clients resend everything."""

    tool_uses: int
    thinking_turns: int
    input_tokens: int


def count_cleared(outline: Outline, token_counts: TokenCounts, omissions: Omissions) -> Cleared:
    """Count what a shed takes out of a conversation."""
    lost = [
        use
        for use in outline.uses()
        if omissions.has_lost(use)
        or (use.entry in omissions.entries and use.number in omissions.entries[use.entry].cleared)
    ]
    turns = sum(any(_has_lost_reasoning(omissions, entry) for entry in turn) for turn in _thinking_turns(outline))
    return Cleared(len(lost), turns, max(0, token_counts.num_tokens - shown_tokens(outline, token_counts, omissions)))


def only_cleared(outline: Outline, omissions: Omissions) -> Omissions:
    """The part of a shed that clears: without what a budget took out altogether, messages, calls and texts."""
    entries = {
        entry: MessageOmissions(
            reasoning=kept.reasoning and not kept.text,
            cleared=kept.cleared - kept.calls,
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
