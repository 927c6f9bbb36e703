"""What an answer says of its budget, `acm.budget`: what was taken out, and whether the prompt kept to it.

    before the prompt   tokens: as they are counted     unmet: by the plan
    receipt             tokens: those that were served  unmet: whenever these are above `max_tokens`, and only then

So a breach is never silent, whatever the count was worth.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from acmserve.context.accounting.known_prompt import Counted
from acmserve.context.eviction.plan import BudgetUnmet, EvictionPlan, EvictionStep, Stage
from acmserve.context.session.budget import Budget

UNKNOWN_MEDIA = "the prompt has media whose tokens were not known before it was served"
BY_PARTS = "the prompt was counted by its parts, and the chat template writes more"
AS_SAMPLED = "the prompt has more tokens than its text: earlier answers are served as the tokens that were sampled"


class BudgetReport:
    """One report. `fields` is what answers carry, from before it is settled on."""

    def __init__(self, budget: Budget, plan: EvictionPlan | None, summary: Mapping[str, Any] | None = None) -> None:
        """`summary` joins the fields where the policy asks a model."""
        self._budget = budget
        self._unmet = None if plan is None else plan.unmet
        self._counted: Counted | None = None
        self._num_unknown_media = 0
        self.fields: dict[str, Any] = {
            "max_tokens": budget.max_tokens,
            "policy": budget.policy,
            "tokens": 0,
            "evicted_tokens": 0 if plan is None else plan.cleared_input_tokens,
            "evicted": [] if plan is None else steps_json(plan.steps),
            "unmet": unmet_json(self._unmet),
        }
        if plan is not None and plan.stages:
            self.fields["stages"] = stages_json(plan.stages)
        self.fields |= summary or {}

    def begin(self, counted: Counted, num_unknown_media: int) -> None:
        """The prompt is made, as it is counted."""
        self._counted, self._num_unknown_media = counted, num_unknown_media
        self.fields["tokens"] = counted.num_tokens
        if num_unknown_media:
            self.fields["unknown_media"] = num_unknown_media

    def settle(self, num_served: int) -> None:
        """The prompt had so many tokens in truth."""
        self.fields["tokens"] = num_served
        num_over = num_served - self._budget.max_tokens
        unmet = self._unmet or BudgetUnmet(num_over, (), self._reason)
        self.fields["unmet"] = unmet_json(replace(unmet, num_over=num_over)) if num_over > 0 else None

    @property
    def _reason(self) -> str:
        """Why a prompt is over its budget that was counted below it."""
        if self._num_unknown_media:
            return UNKNOWN_MEDIA
        return BY_PARTS if self._counted is None or self._counted.num_rendered is None else AS_SAMPLED


def steps_json(steps: Sequence[EvictionStep]) -> list[dict[str, Any]]:
    """What goes, one item for each episode (or message), in order, with the tokens of each level."""
    items: dict[str, dict[str, Any]] = {}
    for step in steps:
        item = items.setdefault(step.what, {"episode": step.what, "levels": {}, "tokens": 0})
        item["levels"][step.level.value] = item["levels"].get(step.level.value, 0) + step.num_tokens
        item["tokens"] += step.num_tokens
    return list(items.values())


def levels_json(steps: Sequence[EvictionStep]) -> dict[str, int]:
    """The tokens of each level, over all that goes."""
    levels: dict[str, int] = {}
    for step in steps:
        levels[step.level.value] = levels.get(step.level.value, 0) + step.num_tokens
    return levels


def stages_json(stages: Sequence[Stage]) -> list[dict[str, Any]]:
    """What each policy of a chain did, in order. `reason` says why one was not asked, or changed nothing."""
    return [
        {"policy": stage.policy, "evicted_tokens": stage.num_tokens, "reason": stage.reason or None} for stage in stages
    ]


def unmet_json(unmet: BudgetUnmet | None) -> dict[str, Any] | None:
    """Why a budget cannot be met: by how many tokens, and what may not be evicted."""
    if unmet is None:
        return None
    return {
        "message": str(unmet),
        "tokens_over": unmet.num_over,
        "protected": [{"what": item.what, "tokens": item.num_tokens} for item in unmet.protected],
    }
