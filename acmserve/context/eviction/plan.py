"""What an eviction would do, as data: decided by a policy, carried out by whoever stores it.

before  [prologue][ A ][ B ][ C ............ active]   num_before
after   [prologue][ B'][ C ................. active]   num_after <= target, or `unmet` names what is in the way
                  ^ first_entry  <---- behind ----->   the engine computes or moves this once, for the whole plan
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import Enum

from acmserve.context.episodes.view import ConversationView
from acmserve.context.transcript.omission_editor import OmissionEditor
from acmserve.context.transcript.omissions import Omissions


class Level(Enum):
    """What is taken, from the least to the most."""

    REASONING = "strip_reasoning"
    BULK = "strip_bulk"
    INTERMEDIATE = "strip_intermediate"
    REMOVE = "remove"
    DESCRIPTIONS = "drop_descriptions"
    CLEAR = "clear_result"
    SUMMARIZE = "summarize"


@dataclass(frozen=True, slots=True)
class EvictionStep:
    """One thing taken out: of which episode (or message), how, and the tokens that it freed."""

    what: str
    level: Level
    num_tokens: int


@dataclass(frozen=True, slots=True)
class Protected:
    """Tokens that no eviction may touch, and why."""

    what: str
    num_tokens: int


@dataclass(frozen=True, slots=True)
class BudgetUnmet:
    """The target cannot be met: by how many tokens, and what is left, the largest first. The sum is what is shown.

    `reason` says why nothing could be taken, where that is not what the policy protects.
    """

    num_over: int
    protected: tuple[Protected, ...]
    reason: str = ""

    def __str__(self) -> str:
        if self.reason:
            return f"{self.num_over:,} tokens over the budget; {self.reason}"
        named = ", ".join(f"{item.what} {item.num_tokens:,}" for item in self.protected[:5])
        more = f" and {len(self.protected) - 5} more" if len(self.protected) > 5 else ""
        return f"{self.num_over:,} tokens over the budget; what is left may not be evicted: {named}{more}"


@dataclass(frozen=True, slots=True)
class Stage:
    """What one policy of a chain freed. `reason` says why it was not asked, or changed nothing."""

    policy: str
    num_tokens: int = 0
    reason: str = ""


@dataclass(frozen=True, slots=True)
class EvictionPlan:
    """`omissions` is all that is taken out when the plan is carried out. Empty `steps`: nothing changes.

    `first_entry` is the first message that changes, `num_behind` the tokens shown from there on afterwards: what the
    next turn computes under `exact`. `num_written` of them are a summary that nobody has computed yet. The counters are
    those of the vendor's `applied_edits`. `stages` are those of a chain, in order.
    """

    omissions: Omissions
    target: int
    num_before: int
    num_after: int
    steps: tuple[EvictionStep, ...] = ()
    unmet: BudgetUnmet | None = None
    first_entry: int | None = None
    num_behind: int = 0
    cleared_tool_uses: int = 0
    cleared_thinking_turns: int = 0
    num_written: int = 0
    stages: tuple[Stage, ...] = ()

    @property
    def changes(self) -> bool:
        """Whether anything is taken out that was not."""
        return bool(self.steps)

    @property
    def cleared_input_tokens(self) -> int:
        """Tokens that the prompt has fewer."""
        return max(0, self.num_before - self.num_after)


def finish_plan(
    view: ConversationView,
    editor: OmissionEditor,
    target: int,
    steps: Iterable[EvictionStep] = (),
    unmet: BudgetUnmet | None = None,
) -> EvictionPlan:
    """The plan of what an editor of this view did."""
    new, first = editor.omissions(), editor.first_entry
    return EvictionPlan(
        omissions=new,
        target=target,
        num_before=editor.num_before,
        num_after=editor.num_tokens,
        steps=tuple(steps),
        unmet=unmet,
        first_entry=first,
        num_behind=0 if first is None else view.with_omissions(new).shown_tokens(first),
        cleared_tool_uses=editor.num_uses,
        cleared_thinking_turns=editor.num_reasoning,
    )
