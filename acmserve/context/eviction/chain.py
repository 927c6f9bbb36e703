"""The policy `chain`, the default: one policy after the other, each as far as those before it did not reach the target.

    cwl               finished episodes, where any are marked       keeps what running work depends on
    clear_tool_uses   old results, one by one, the oldest first     keeps the calls, and the last results
    recency           whole steps, the oldest first                 keeps the last step
    compact           a summary of what notes and steps are left    a model writes it

So a budget is kept for every agent, whether it marks its work, calls tools or writes plain text. What every policy here
protects stays: what users and the system wrote, and the last step.

Decision: all stages take down to one target, the low watermark, in one plan. The prompt changes once for them, and then
grows by appending. The last stage needs a model, so whoever carries the plan out asks for it (`combined`). After the
stages before it a summary finds little but the notes of episodes, and it is asked for only where those weigh more.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import ClassVar

from acmserve.context.episodes.view import ConversationView
from acmserve.context.eviction.clear_tool_uses import ClearToolUses, ClearToolUsesPolicy, plan_clear_tool_uses
from acmserve.context.eviction.compact import CompactPolicy
from acmserve.context.eviction.cwl import BULK_TOOLS, INTERMEDIATE_TOOLS, Cwl
from acmserve.context.eviction.plan import EvictionPlan, Stage
from acmserve.context.eviction.policy import Option
from acmserve.context.eviction.recency import Recency
from acmserve.context.transcript.omissions import Omissions

NO_MARKS = "no episode is marked"
REACHED = "the target was reached before"


@dataclass(frozen=True, slots=True)
class Chain:
    """`cwl`, then `clear_tool_uses`, then `recency`, then `compact`. Their options are those of the stages."""

    summary: ClassVar[str] = (
        "finished episodes where any are marked, then old results, then the oldest steps, then a summary"
    )
    options: ClassVar[tuple[Option, ...]] = (*Cwl.options, *ClearToolUsesPolicy.options, *CompactPolicy.options)
    needs_episodes: ClassVar[bool] = True
    needs_model: ClassVar[bool] = False
    ends_in_summary: ClassVar[bool] = True

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
        plans: list[EvictionPlan] = []
        stages: list[Stage] = []
        there, num_before = view, view.shown_tokens()
        num_shown = num_before
        for name, plan in self._stages(view):
            if num_shown <= target:
                stages.append(Stage(name, reason=REACHED))
                continue
            if name == "cwl" and view.episodes.prologue_end is None:
                stages.append(Stage(name, reason=NO_MARKS))
                continue
            done = plan(there, target)
            plans.append(done)
            stages.append(Stage(name, done.num_before - done.num_after))
            there, num_shown = there.with_omissions(done.omissions), done.num_after
        return _joined(view, there.omissions, target, plans, stages)

    def _stages(self, view: ConversationView) -> Iterator[tuple[str, PlanStage]]:
        yield "cwl", Cwl(self.bulk_tools, self.intermediate_tools).plan
        yield "clear_tool_uses", self._clear
        yield "recency", Recency().plan

    def _clear(self, view: ConversationView, target: int) -> EvictionPlan:
        """As the policy of that name, but only as many as it takes."""
        keep = max(0, self.keep - view.expected.num_pending)
        clearing = ClearToolUses(None, None, keep, 0, self.exclude_tools, self.clear_tool_inputs)
        return plan_clear_tool_uses(view, clearing, target)
