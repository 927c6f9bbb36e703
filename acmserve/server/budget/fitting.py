"""Fits a prompt into its budget by rendering it: what the template writes is counted, and not the sum of the parts.

    may exceed?   no   nothing is rendered: the last prompt is known, and what was appended is small
                  yes  render the prompt                       its tokens, and what each message weighs in it
    exceeds?      yes  plan, render the prompt without it      too large still: plan again, lower by what it missed

Told are the tokens of both renderings. Where the template takes no rendering (or there is none) the parts are summed as
before. The same state and the same budget give the same plan.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from acmserve.context.accounting.rendered_spans import PromptRenderer, read_sizes
from acmserve.context.eviction.chain import DESCRIPTIONS, KEPT, USER_MESSAGES, with_stage
from acmserve.context.eviction.context_meter import ContextMeter
from acmserve.context.eviction.oldest_first.descriptions import NOT_ENOUGH, plan_descriptions
from acmserve.context.eviction.oldest_first.user_messages import NO_USERS, UserMessages
from acmserve.context.eviction.plan import EvictionPlan
from acmserve.context.session.budget import Budget
from acmserve.context.session.render import InFront, nothing_in_front, render, render_whole
from acmserve.context.session.state import SessionState
from acmserve.context.transcript.media import media_keys
from acmserve.context.transcript.template_rules import TemplateRules

MAX_PLANS = 4


@dataclass(frozen=True, slots=True)
class PromptFitting:
    """For one request. `renderer` writes its prompts (None: nobody can), with `in_front` in messages of the user."""

    renderer: PromptRenderer | None
    rules: TemplateRules
    in_front: InFront = nothing_in_front

    def measure(self, meter: ContextMeter, state: SessionState, *, parts: bool = True) -> bool:
        """Bring the meter, which follows the state, to what the template writes. False where that is not known.

        Without `parts` each message keeps the weight that it has.
        """
        if self.renderer is None:
            return False
        if meter.is_rendered:
            return True
        messages = render(state, self.rules, self.in_front)
        num_tokens = self.renderer.num_tokens(messages)
        if num_tokens is None:
            return False
        sizes = read_sizes(render_whole(state), self.renderer, meter.token_counts.count) if parts else ()
        meter.take_rendered(num_tokens, [key for message in messages for key in media_keys(message)], sizes or ())
        return True

    def exceeds(self, meter: ContextMeter, state: SessionState, budget: Budget) -> bool:
        """Whether the prompt is larger than the budget. Rendered only where that is not clear."""
        if self.renderer is not None and not meter.may_exceed(budget):
            return False
        self.measure(meter, state)
        return meter.exceeds(budget)

    def fit(
        self,
        meter: ContextMeter,
        state: SessionState,
        budget: Budget,
        plan: EvictionPlan,
        plan_again: Callable[[int], EvictionPlan] | None = None,
    ) -> EvictionPlan:
        """The plan with the tokens of the rendered prompts, and planned again where it does not keep the budget.

        `plan_again` plans for another target. The meter follows the state before the plan.
        """
        if not plan.changes or not self.measure(meter, state):
            return plan
        num_before = meter.num_tokens
        for _ in range(MAX_PLANS):
            num_after = self._num_after(meter, state, plan)
            if num_after is None:
                return plan
            num_missed = num_after - plan.num_after
            num_over = num_after + meter.reserve - budget.max_tokens
            fitted = replace(plan, num_before=num_before, num_after=num_after)
            if num_over <= 0 or plan.target <= 0 or plan_again is None:
                break
            again = plan_again(max(0, min(plan.target, budget.max_tokens) - max(num_missed, num_over)))
            if again.omissions == plan.omissions:
                break
            plan = again
        return meter.judge(fitted, budget)

    def take_last_resorts(
        self, meter: ContextMeter, state: SessionState, budget: Budget, plan: EvictionPlan
    ) -> tuple[EvictionPlan, SessionState]:
        """The plan that was carried out on the state, judged, and where it breaks the budget with its last resorts.

        The meter follows the state. Messages of users go first, and descriptions only where those are not enough.
        """
        target = plan.target
        plan, state = self.let_users_go(meter, state, budget, plan)
        if plan.unmet is None or not meter.view.editor().noted():
            return plan, state
        done = self._plan_descriptions(meter, state, budget, target)
        if done is None:
            return with_stage(plan, DESCRIPTIONS, None, NOT_ENOUGH), state
        state = self.carry_out(meter, state, done)
        return meter.judge(with_stage(plan, DESCRIPTIONS, done), budget), state

    def let_users_go(
        self, meter: ContextMeter, state: SessionState, budget: Budget, plan: EvictionPlan
    ) -> tuple[EvictionPlan, SessionState]:
        """The first of them: messages of users go until the target is met, where the plan breaks the budget."""
        plan = meter.judge(plan, budget)
        if plan.unmet is None:
            return with_stage(plan, USER_MESSAGES, None, KEPT), state
        users = self._plan_users(meter, state, budget, plan.target)
        if not users.changes:
            return with_stage(plan, USER_MESSAGES, None, NO_USERS), state
        state = self.carry_out(meter, state, users)
        return meter.judge(with_stage(plan, USER_MESSAGES, users), budget), state

    def _plan_users(self, meter: ContextMeter, state: SessionState, budget: Budget, target: int) -> EvictionPlan:
        self.measure(meter, state)

        def plan_again(target: int) -> EvictionPlan:
            return UserMessages().plan(meter.view, target)

        return self.fit(meter, state, budget, plan_again(target), plan_again)

    def _plan_descriptions(
        self, meter: ContextMeter, state: SessionState, budget: Budget, target: int
    ) -> EvictionPlan | None:
        """Descriptions go until the target is met, or else until the budget is. None where they are not enough."""

        def plan_again(target: int) -> EvictionPlan:
            return plan_descriptions(meter.view, target)

        for wanted in (target, budget.max_tokens - meter.reserve):
            plan = self.fit(meter, state, budget, plan_again(wanted), plan_again)
            if plan.changes and plan.unmet is None:
                return plan
        return None

    def carry_out(self, meter: ContextMeter, state: SessionState, plan: EvictionPlan) -> SessionState:
        """The state, which the meter follows, after a plan, and the meter at what the template writes of it."""
        after = meter.carry_out(plan, state)
        self.measure(meter, after, parts=False)
        return after

    def _num_after(self, meter: ContextMeter, state: SessionState, plan: EvictionPlan) -> int | None:
        assert self.renderer is not None
        messages = render(replace(state, omissions=plan.omissions), self.rules, self.in_front)
        num_tokens = self.renderer.num_tokens(messages)
        if num_tokens is None:
            return None
        return num_tokens + meter.token_counts.media.weight(key for m in messages for key in media_keys(m))
