"""A policy of another package: the results of the tool that was called longest ago leave first."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from acmserve.context.episodes.view import ConversationView
from acmserve.context.eviction.plan import EvictionPlan, EvictionStep, Level, finish_plan
from acmserve.context.eviction.policy import Option, OptionKind
from acmserve.context.transcript.outline import Use


@dataclass(frozen=True, slots=True)
class LeastRecentlyUsed:
    summary: ClassVar[str] = "the tool results that were used longest ago"
    options: ClassVar[tuple[Option, ...]] = (
        Option("spare_tools", OptionKind.TOOLS, frozenset(), "Tools that stay whatever their age"),
    )
    needs_episodes: ClassVar[bool] = False
    needs_model: ClassVar[bool] = False

    spare_tools: frozenset[str] = frozenset()

    def plan(self, view: ConversationView, target: int) -> EvictionPlan:
        editor, used = view.editor(), dict[str, list[Use]]()
        for entry, line in enumerate(view.outline.lines):
            for number, name in enumerate(line.names):
                used.setdefault(name, []).append(Use(entry, number))
        steps = []
        for name, uses in sorted(used.items(), key=lambda item: item[1][-1]):
            if editor.num_tokens > target and name not in self.spare_tools:
                size = editor.num_tokens
                editor.drop_calls(uses)
                steps.append(EvictionStep(f"calls of {name}", Level.REMOVE, size - editor.num_tokens))
        return finish_plan(view, editor, target, steps)


class Unfit:
    """Has no plan."""

    options = ()
