"""The policy `chain`, the default: one policy after the other, each as far as those before it did not reach the target.

    cwl               finished episodes, where any are marked       keeps what running work depends on
    clear_tool_uses   old results, one by one, the oldest first     keeps the calls, and the last results
    recency           whole steps, the oldest first                 keeps the last step
    compact           a summary of what notes and steps are left    a model writes it
    user_messages     what users said, the oldest first             keeps the beginning, and the newest turn
    descriptions      what evicted explorations left of themselves  keeps the newest, as many as fit

So a budget is kept for every agent, whether it marks its work, calls tools or writes plain text. What the system wrote
and the last step stay, and so do results that no answer has read. What users said goes only where all that is not
enough for the budget itself. Descriptions go only where not even that is enough.

Decision: all stages take down to one target, the low watermark, in one plan. The prompt changes once for them, and then
grows by appending. `compact` needs a model, so whoever carries the plan out asks, and then takes the last resorts
(`with_stage`). After the stages before it a summary finds little but the notes of episodes, and it is
asked for only where those weigh more. `descriptions` is told only where it was asked, so plans without it are as ever.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

from acmserve.context.episodes.view import ConversationView
from acmserve.context.eviction.clear_tool_uses import ClearToolUses, ClearToolUsesPolicy, plan_clear_tool_uses
from acmserve.context.eviction.compact import CompactPolicy
from acmserve.context.eviction.cwl import BULK_TOOLS, INTERMEDIATE_TOOLS, LEVEL_OPTIONS, Cwl
from acmserve.context.eviction.oldest_first.recency import Recency
from acmserve.context.eviction.plan import EvictionPlan, Stage
from acmserve.context.eviction.policy import Option

CWL, COMPACT, USER_MESSAGES, DESCRIPTIONS = "cwl", "compact", "user_messages", "descriptions"
NO_MARKS = "no episode is marked"
REACHED = "the target was reached before"
KEPT = "the budget is kept without it"


@dataclass(frozen=True, slots=True)
class Chain:
    """`cwl`, `clear_tool_uses`, `recency`, `compact`, `user_messages`, and descriptions. Options are the stages'."""

    summary: ClassVar[str] = (
        "finished episodes where any are marked, then old results, then the oldest steps, then a summary,"
        " then what users said, and at the very last descriptions of explorations"
    )
    options: ClassVar[tuple[Option, ...]] = (*LEVEL_OPTIONS, *ClearToolUsesPolicy.options, *CompactPolicy.options)
    needs_episodes: ClassVar[bool] = True
    needs_model: ClassVar[bool] = False
    has_last_resorts: ClassVar[bool] = True

    bulk_tools: frozenset[str] = BULK_TOOLS
    intermediate_tools: frozenset[str] = INTERMEDIATE_TOOLS
    keep: int = 3
    exclude_tools: frozenset[str] = frozenset()
    clear_tool_inputs: bool = False
    instructions: str = ""

    def __post_init__(self) -> None:
        Cwl(self.bulk_tools, self.intermediate_tools)

    def plan(self, view: ConversationView, target: int) -> EvictionPlan:
        """What the stages that call no model take, in one plan. `stages` says what each of them did."""
        done: list[EvictionPlan] = []
        stages: list[Stage] = []
        there, num_shown = view, view.shown_tokens()
        for name, plan in self._stages():
            if num_shown <= target or (name == CWL and view.episodes.prologue_end is None):
                stages.append(Stage(name, reason=REACHED if num_shown <= target else NO_MARKS))
                continue
            done.append(plan(there, target))
            stages.append(Stage(name, num_shown - done[-1].num_after))
            there, num_shown = there.with_omissions(done[-1].omissions), done[-1].num_after
        return _joined(view, target, done, stages)

    def _stages(self) -> Iterator[tuple[str, Callable[[ConversationView, int], EvictionPlan]]]:
        yield CWL, self._evict_episodes
        yield "clear_tool_uses", self._clear_results
        yield "recency", Recency().plan

    def _evict_episodes(self, view: ConversationView, target: int) -> EvictionPlan:
        """Unannotated work goes only where the rest is not enough: an act that starts meanwhile would keep it."""
        policy = Cwl(self.bulk_tools, self.intermediate_tools)
        plan = policy.plan_episodes(view, target)
        if plan.num_after > target and view.expected.act_starts:
            plan = policy.plan_episodes(replace(view, expected=replace(view.expected, act_starts=False)), target)
        return plan

    def _clear_results(self, view: ConversationView, target: int) -> EvictionPlan:
        """As the policy of that name, but only as many as it takes."""
        keep = max(0, self.keep - view.expected.num_pending)
        clearing = ClearToolUses(None, None, keep, 0, self.exclude_tools, self.clear_tool_inputs)
        return plan_clear_tool_uses(view, clearing, target, view.unread())


def _joined(view: ConversationView, target: int, done: Sequence[EvictionPlan], stages: Sequence[Stage]) -> EvictionPlan:
    """The plans of the stages as one plan of the view."""
    omissions = done[-1].omissions if done else view.omissions
    first = _first(done)
    after = view.with_omissions(omissions)
    return EvictionPlan(
        omissions,
        target,
        num_before=view.shown_tokens(),
        num_after=done[-1].num_after if done else after.shown_tokens(),
        steps=tuple(step for plan in done for step in plan.steps),
        unmet=done[-1].unmet if done else None,
        first_entry=first,
        num_behind=0 if first is None else after.shown_tokens(first),
        cleared_tool_uses=sum(plan.cleared_tool_uses for plan in done),
        cleared_thinking_turns=sum(plan.cleared_thinking_turns for plan in done),
        stages=tuple(stages),
    )


def with_stage(plan: EvictionPlan, name: str, done: EvictionPlan | None, reason: str = "") -> EvictionPlan:
    """The plan with one stage more, which was planned behind it. `reason` says why it did nothing."""
    if done is None:
        return replace(plan, stages=(*plan.stages, Stage(name, reason=reason)))
    return replace(
        done,
        num_before=plan.num_before,
        steps=(*plan.steps, *done.steps),
        first_entry=_first((plan, done)),
        cleared_tool_uses=plan.cleared_tool_uses,
        cleared_thinking_turns=plan.cleared_thinking_turns,
        num_written=plan.num_written + done.num_written,
        stages=(*plan.stages, Stage(name, done.num_before - done.num_after)),
    )


def _first(plans: Sequence[EvictionPlan]) -> int | None:
    return min((plan.first_entry for plan in plans if plan.first_entry is not None), default=None)
