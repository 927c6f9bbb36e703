"""The policy `recency`: the oldest steps leave first, whatever they were about.

A step is a message of the assistant with the results of its calls. Messages of the user and the system stay. So do the
last step, and every step with results that no answer has read.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from acmserve.context.episodes.view import ConversationView
from acmserve.context.eviction.plan import BudgetUnmet, EvictionPlan, EvictionStep, Level, finish_plan
from acmserve.context.eviction.policy import Option
from acmserve.context.eviction.protected import said_and_rest
from acmserve.context.transcript.parts import Role


@dataclass(frozen=True, slots=True)
class Recency:
    """Drops whole steps from the front."""

    summary: ClassVar[str] = "the oldest steps"
    options: ClassVar[tuple[Option, ...]] = ()
    needs_episodes: ClassVar[bool] = False
    needs_model: ClassVar[bool] = False

    def plan(self, view: ConversationView, target: int) -> EvictionPlan:
        """Drop the oldest steps before the open branch until the target is met."""
        editor = view.editor()
        steps = []
        for entry in _steps(view):
            if editor.num_tokens <= target or (view.end is not None and entry >= view.end):
                break
            size, num_done = editor.num_tokens, editor.num_operations
            editor.drop_step(entry)
            if editor.num_operations > num_done:
                steps.append(EvictionStep(f"message {entry}", Level.REMOVE, size - editor.num_tokens))
        unmet = None
        if editor.num_tokens > target:
            unmet = BudgetUnmet(editor.num_tokens - target, said_and_rest(view, editor.num_tokens, "the last step"))
        return finish_plan(view, editor, target, steps, unmet)


def _steps(view: ConversationView) -> list[int]:
    """The assistant's messages before the last one, and results that answer none of them. None that is unread."""
    unread = {use.entry for use in view.unread()}
    return [
        entry
        for entry, line in enumerate(view.outline.lines[: view.last_step()])
        if (line.role is Role.ASSISTANT and entry not in unread) or (line.role is Role.RESULT and line.use is None)
    ]
