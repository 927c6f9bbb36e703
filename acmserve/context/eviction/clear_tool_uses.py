"""The policy `clear_tool_uses`: a placeholder takes the place of old tool results.

    call -> "[tool result cleared]"     all but the last `keep`, when the trigger is reached

`ClearToolUses` is Anthropic's edit `clear_tool_uses_20250919`, with its names and defaults. Its trigger looks at what
the model would see *now*, with earlier clearings in force. A conversation that was cleared grows until the trigger is
reached again, and its prefix stays cached meanwhile.

Decisions: `keep` counts all tool uses, those of excluded tools and those that are cleared already, too. Calls without a
result are never cleared. As a policy it has no trigger of its own: the budget is the trigger. An observation counts as
the result of a tool of that name, `observation`. A policy keeps what no answer has read, also where that is more than
`keep` results. The vendor's edit does as the client asked.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, replace
from typing import ClassVar

from acmserve.context.episodes.view import ConversationView
from acmserve.context.eviction.plan import EvictionPlan, EvictionStep, Level, finish_plan
from acmserve.context.eviction.policy import Option, OptionKind
from acmserve.context.transcript.outline import OBSERVATION, TEXT, Use


@dataclass(frozen=True, slots=True)
class ClearToolUses:
    """`trigger_tokens` or `trigger_uses` must be exceeded. With both None it always clears.

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


@dataclass(frozen=True, slots=True)
class ClearToolUsesPolicy:
    """Clears the results of all but the last tool uses."""

    summary: ClassVar[str] = "old tool results"
    options: ClassVar[tuple[Option, ...]] = (
        Option("keep", OptionKind.COUNT, 3, "Tool results that stay", "Give how many tool results to keep."),
        Option("exclude_tools", OptionKind.TOOLS, frozenset(), "Tools whose results stay"),
        Option("clear_tool_inputs", OptionKind.FLAG, False, "Whether the arguments of cleared calls go, too"),
    )
    needs_episodes: ClassVar[bool] = False
    needs_model: ClassVar[bool] = False

    keep: int = 3
    exclude_tools: frozenset[str] = frozenset()
    clear_tool_inputs: bool = False

    def plan(self, view: ConversationView, target: int) -> EvictionPlan:
        """Clear whether the target demands it or not. Pending results will count among the last."""
        keep = max(0, self.keep - view.expected.num_pending)
        clearing = ClearToolUses(None, None, keep, 0, self.exclude_tools, self.clear_tool_inputs)
        return replace(plan_clear_tool_uses(view, clearing, unread=view.unread()), target=target)


def plan_clear_tool_uses(
    view: ConversationView, options: ClearToolUses, stop_at: int | None = None, unread: Collection[Use] = ()
) -> EvictionPlan:
    """Clear the results of all but the last tool uses, before the open branch, until `stop_at` tokens are shown.

    The results of `unread` stay.
    """
    editor, lines = view.editor(), view.outline.lines
    target = (options.trigger_tokens or 0) if stop_at is None else stop_at
    uses, num_shown = _answered_uses(view)
    if not _is_triggered(options, editor.num_tokens, num_shown):
        return finish_plan(view, editor, target)
    steps = []
    for use in uses[: max(0, len(uses) - options.keep)]:
        name = OBSERVATION if use.number == TEXT else lines[use.entry].names[use.number]
        if name in options.exclude_tools or use in unread or (view.end is not None and use.entry >= view.end):
            continue
        if stop_at is not None and editor.num_tokens <= stop_at:
            break
        size, num_done = editor.num_tokens, editor.num_operations
        editor.clear_result(use, options.clears_inputs(name))
        if editor.num_operations > num_done:
            steps.append(EvictionStep(f"{name} in message {use.entry}", Level.CLEAR, size - editor.num_tokens))
    if editor.num_before - editor.num_tokens < options.clear_at_least:
        return finish_plan(view, view.editor(), target)
    return finish_plan(view, editor, target, steps)


def _answered_uses(view: ConversationView) -> tuple[list[Use], int]:
    """The calls that are left and have a result, and how many of these results are shown."""
    omissions = view.omissions
    uses: list[Use] = []
    num_shown = 0
    for entry, line in enumerate(view.outline.lines):
        kept = omissions.entries.get(entry)
        if kept is None and omissions.gone and omissions.in_gone(entry):
            continue
        for number, results in enumerate(line.results):
            if not results or (kept is not None and number in kept.calls):
                continue
            uses.append(Use(entry, number))
            num_shown += kept is None or number not in kept.cleared
        if line.observation is not None and (kept is None or not kept.text):
            uses.append(Use(entry, TEXT))
            num_shown += kept is None or TEXT not in kept.cleared
    return uses, num_shown


def _is_triggered(options: ClearToolUses, num_tokens: int, num_uses: int) -> bool:
    if options.trigger_tokens is None and options.trigger_uses is None:
        return True
    return (options.trigger_tokens is not None and num_tokens > options.trigger_tokens) or (
        options.trigger_uses is not None and num_uses > options.trigger_uses
    )
