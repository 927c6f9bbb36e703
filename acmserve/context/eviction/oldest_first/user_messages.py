"""The policy `user_messages`: the oldest messages of the user leave first. It is a last resort of the policy `chain`.

    before   system  task  step  user  step  user  step  user        the first step ends the beginning, which stays
    after    system  task  step  [..]  step        step  user        one marker, where the first message was

A long conversation may hold more of what users said than its budget. Every other policy keeps all of it, so their
budgets break then. The beginning stays: the system, the task, and everything in front of the first step or episode.
The newest turn of the user stays, too.

Decision: one marker stands for all that went, in the place of the first, and it never changes. So a later eviction
changes nothing in front of what it takes. How much went is told in the answer. The transcript keeps every message, and
search finds it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from acmserve.context.episodes.view import ConversationView
from acmserve.context.eviction.plan import BudgetUnmet, EvictionPlan, EvictionStep, Level, finish_plan
from acmserve.context.eviction.policy import Option
from acmserve.context.eviction.protected import said_and_rest
from acmserve.context.transcript.parts import Role

NO_USERS = "no message of the user is left that may go"


@dataclass(frozen=True, slots=True)
class UserMessages:
    """Takes messages of the user from the front, and nothing else."""

    summary: ClassVar[str] = "the oldest messages of the user, but never the first ones nor the newest"
    options: ClassVar[tuple[Option, ...]] = ()
    needs_episodes: ClassVar[bool] = False
    needs_model: ClassVar[bool] = False

    def plan(self, view: ConversationView, target: int) -> EvictionPlan:
        """Take the oldest messages of the user behind the beginning until the target is met."""
        editor = view.editor()
        steps: list[EvictionStep] = []
        for entry in evictable_users(view):
            if editor.num_tokens <= target:
                break
            size, num_done = editor.num_tokens, editor.num_operations
            editor.drop_user(entry)
            if editor.num_operations > num_done:
                steps.append(EvictionStep(f"user message {entry}", Level.REMOVE, size - editor.num_tokens))
        unmet = None
        if editor.num_tokens > target:
            after = view.with_omissions(editor.omissions())
            left = said_and_rest(after, editor.num_tokens, "answers and results")
            unmet = BudgetUnmet(editor.num_tokens - target, left)
        return finish_plan(view, editor, target, steps, unmet)


def evictable_users(view: ConversationView) -> list[int]:
    """The messages of the user that may go, the oldest first: between the beginning and the newest turn of the user.

    Nothing from an open branch on may go.
    """
    lines = view.outline.lines
    end = len(lines) if view.end is None else min(view.end, len(lines))
    newest = next((entry for entry in range(len(lines) - 1, -1, -1) if lines[entry].is_user), 0)
    while newest > 0 and lines[newest - 1].role is Role.PROTECTED:
        newest -= 1
    return [entry for entry in range(view.episodes.beginning, min(end, newest)) if lines[entry].is_user]
