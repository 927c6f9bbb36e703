"""What evicted explorations left of themselves: their descriptions, the oldest first. They go last of all.

    before   [a: found it]  [b: found it]  [c: found it]  step     each in the place of its exploration
    after                                  [c: found it]  step     no more go than it takes

A description is all that is left of a whole exploration, so every policy takes everything else first. But a thousand
of them can be more than any budget. `cwl` takes them behind its episodes, and `chain` behind all its stages.

Decision: none goes where even all of them are not enough, for they would be lost for nothing. A summary that a model
wrote is no description, and stays. Knows messages and their notes. Does not know the episodes that left them.
"""

from __future__ import annotations

from acmserve.context.episodes.view import ConversationView
from acmserve.context.eviction.plan import BudgetUnmet, EvictionPlan, EvictionStep, Level, finish_plan
from acmserve.context.eviction.protected import said_and_rest
from acmserve.context.transcript.omission_editor import OmissionEditor

NOT_ENOUGH = "all descriptions together are not enough"


def plan_descriptions(view: ConversationView, target: int) -> EvictionPlan:
    """The plan that takes descriptions, and nothing else. It changes nothing where all of them are not enough."""
    editor = view.editor()
    steps = drop_descriptions(view, editor, target)
    unmet = None
    if editor.num_tokens > target:
        left = said_and_rest(view, editor.num_tokens, "answers and results")
        unmet = BudgetUnmet(editor.num_tokens - target, left)
    return finish_plan(view, editor, target, steps, unmet)


def drop_descriptions(view: ConversationView, editor: OmissionEditor, target: int) -> list[EvictionStep]:
    """Take out the oldest descriptions until the target is met. None where even all of them are not enough."""
    trial = view.with_omissions(editor.omissions()).editor()
    noted: list[int] = []
    for entry in trial.noted():
        if trial.num_tokens <= target:
            break
        trial.drop_notes(entry)
        noted.append(entry)
    steps = []
    for entry in noted if trial.num_tokens <= target else ():
        size = editor.num_tokens
        editor.drop_notes(entry)
        steps.append(EvictionStep(f"descriptions in message {entry}", Level.DESCRIPTIONS, size - editor.num_tokens))
    return steps
