"""When the edits of one answer take effect in its prompt, and what the answer says of it.

    step k of the loop --> view_commit --> plan_commit --> state to render
                                                      '--> acm.commit: what waits, what took effect, why

What is still waiting when the turn ends takes effect then: the pause is the cheapest moment of all. It stores nothing,
and knows no HTTP. Decision: only the steps of this answer tell how likely a further edit is. So the same answer gives
the same prompts, whatever was served before.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from acmserve.context.edits.commit import (
    TURN_END,
    CommitPlan,
    Pricing,
    apply_commit,
    commit_all,
    edit_share,
    plan_commit,
    view_commit,
)
from acmserve.context.session.known_entries import compare_entries
from acmserve.context.session.render import render_whole
from acmserve.context.session.state import SessionState, TranscriptEntry
from acmserve.context.session.waiting import waiting
from acmserve.context.transcript.message import Message
from acmserve.server.budget.budgets import Budgets, PromptOverhead

TEMPLATE_SHARE = 1.1
"""What a prompt has at most beside the texts that are counted, as a factor."""
WAITS = "a further edit is likely, and would have what stands behind both computed twice"


@dataclass(slots=True)
class LoopCommits:
    """The commits of one loop. `fidelity` is that of its steps. Where nothing ever waited it says nothing."""

    budgets: Budgets
    fidelity: str
    plan: CommitPlan = field(default_factory=CommitPlan)
    waits: list[dict[str, Any]] = field(default_factory=list)
    _shown: tuple[tuple[TranscriptEntry, ...], list[Message]] = ((), [])
    _in_use: bool = False

    def begin_step(
        self,
        state: SessionState,
        steps: Sequence[Mapping[str, Any]],
        beside: PromptOverhead,
        max_tokens: int,
        *,
        is_last: bool,
    ) -> SessionState:
        """The state to render, behind these steps of the answer. `is_last`: no further step will edit."""
        self.plan, self.waits = CommitPlan(), []
        if waiting(state):
            self._in_use = True
            share = 0.0 if is_last else edit_share(map(_has_edited, steps))
            limit = self._limit(state, beside, max_tokens)
            view = view_commit(state, self._first_changed(state), share, limit, self._pricing, self.budgets.tokenizer)
            self.plan = plan_commit(view)
            state = apply_commit(state, self.plan)
            prices = {edit.fragment_id: edit.price for edit in view.edits}
            self.waits = [
                {
                    "fragment_id": fragment.fragment_id,
                    "state": fragment.visibility.value,
                    "reason": WAITS,
                    "computed_tokens": round(prices[fragment.fragment_id]),
                }
                for fragment in waiting(state)
            ]
        self._shown = (state.entries, render_whole(state))
        return state

    def end(self, state: SessionState) -> SessionState:
        """The state when the turn ends: nothing waits."""
        left = commit_all(state, TURN_END)
        if left.fragment_ids:
            self._in_use, self.plan = True, left
        return apply_commit(state, left)

    @property
    def ended(self) -> bool:
        """Whether something took effect when the turn ended, so that the next prompt differs from the last one."""
        return self.plan.reason == TURN_END

    @property
    def as_json(self) -> dict[str, Any]:
        """What the answer, or a step, says of its commits."""
        if not self._in_use:
            return {}
        committed = {"committed": list(self.plan.fragment_ids), "reason": self.plan.reason or None}
        return {"commit": {"waiting": list(self.waits), **committed}}

    def _first_changed(self, state: SessionState) -> int:
        """The first entry that the prompt of this step has otherwise than the last one."""
        num_known, changed = compare_entries(self._shown, (state.entries, render_whole(state)))
        return min([num_known, *changed])

    def _limit(self, state: SessionState, beside: PromptOverhead, max_tokens: int) -> int:
        """Tokens that the texts of a prompt may have."""
        budget, num_beside = self.budgets.of(state), self.budgets.num_overhead(beside)
        room = self.budgets.window - max_tokens
        if budget is not None:
            room = min(room, budget.max_tokens)
        return int((room - num_beside) / TEMPLATE_SHARE)

    @property
    def _pricing(self) -> Pricing:
        return Pricing(self.fidelity, self.budgets.rates.prefill_rate / self.budgets.rates.move_rate)


def _has_edited(step: Mapping[str, Any]) -> bool:
    """Whether a step hid or showed a fragment."""
    return any(made["changed"] and made["fragment_ids"] for made in step["operations"])
