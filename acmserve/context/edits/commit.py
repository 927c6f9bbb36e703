"""When edits that wait take effect in the prompt: the edit scheduler.

    prompt    [ kept ... ][f1 waits][.......][f2 waits][.......][ new ]
    now       f1 commits: everything behind it is computed once, and f2 is free
    later     what is new is computed now, and once more when f1 commits

Derivation. Let A be what a commit of the first waiting edit computes, and n what this step computes behind it in any
case. A step of waiting computes n twice. A commit now is in vain, as far as the two overlap, when another edit comes.
Its place is unknown, so the overlap is A - A^2 / 2L on average, with L the prompt. With q the share of late steps that
edited, waiting pays while

    q * (A - A^2 / 2L) > n + carried * saved

The last term is the longer prompt that a step reads meanwhile. Edits behind the first one never commit alone, since its
commit computes them anyway, unless the step computes from in front of them.

Tokens that are moved count by the rates of this engine, so under `reuse` the longer prompt decides, and edits hardly
wait. Pure. It knows neither loops nor sessions.

What takes effect has its place in the rollout record, as the operation `commit`. The edit itself stands there where it
was accepted.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

from acmserve.context.edits.cost import EditCost, ShownTexts, num_saved_by
from acmserve.context.session.rollout.record import Initiator
from acmserve.context.session.state import SessionState
from acmserve.context.session.waiting import committed, waiting
from acmserve.context.transcript.tokenizer import Tokenizer

CARRIED_SHARE = 0.02
"""What a token that could be gone costs each step, in tokens computed."""
MEMORY = 0.9
"""By how much a step counts less than the one behind it."""
FIRST_SHARE = 0.7
"""The share of steps that edit, before any was seen."""
COMMIT = "commit"
"""The operation of a rollout record that says which edits took effect."""
TURN_END, INTERRUPTED = "turn_end", "interrupted"


@dataclass(frozen=True, slots=True)
class WaitingEdit:
    """`price` is what its commit costs, with everything behind it, in tokens computed."""

    fragment_id: str
    price: float


@dataclass(frozen=True, slots=True)
class CommitView:
    """The moment in front of a step. `edits` wait, front to back. All prices are in tokens computed.

    `prompt_price` is the price of the whole prompt. `step_price` is the price of what the step computes in any case, as
    far as that lies behind the first edit. `edit_share` is how likely a further edit is. `needs_room`: the prompt is
    too long.
    """

    edits: tuple[WaitingEdit, ...]
    prompt_price: float
    step_price: float
    edit_share: float
    num_saved: int = 0
    needs_room: bool = False


@dataclass(frozen=True, slots=True)
class CommitPlan:
    """The edits that take effect now, and why: `room`, `cheapest`, `in_front`, or "" for none.

    Without a choice everything does: `turn_end`, or `interrupted` behind a turn that broke off.
    """

    fragment_ids: tuple[str, ...] = ()
    reason: str = ""


def plan_commit(view: CommitView) -> CommitPlan:
    """Which edits take effect in this step: all, none, or those behind what the step computes anyway."""
    if not view.edits:
        return CommitPlan()
    every = tuple(edit.fragment_id for edit in view.edits)
    if view.needs_room:
        return CommitPlan(every, "room")
    price = view.edits[0].price
    overlap = price * (1 - price / (2 * max(view.prompt_price, price, 1.0)))
    if view.edit_share * overlap <= view.step_price + CARRIED_SHARE * view.num_saved:
        return CommitPlan(every, "cheapest")
    free = tuple(edit.fragment_id for edit in view.edits if edit.price <= view.step_price)
    return CommitPlan(free, "in_front" if free else "")


def commit_all(state: SessionState, reason: str) -> CommitPlan:
    """The plan that leaves nothing waiting, for a reason that is no choice."""
    left = tuple(fragment.fragment_id for fragment in waiting(state))
    return CommitPlan(left, reason if left else "")


def apply_commit(state: SessionState, plan: CommitPlan) -> SessionState:
    """The state with the planned edits in the prompt, and in its record. The very state where none is planned."""
    after = committed(state, plan.fragment_ids)
    if after is state or state.rollout.header is None:
        return after
    arguments = {"fragment_ids": list(plan.fragment_ids), "reason": plan.reason}
    return replace(after, rollout=state.rollout.operated(Initiator.POLICY, COMMIT, arguments, None))


def edit_share(steps: Iterable[bool]) -> float:
    """How likely the next step edits, after steps that did or did not."""
    share = FIRST_SHARE
    for edits in steps:
        share = share * MEMORY + (1 - MEMORY) * edits
    return share


@dataclass(frozen=True, slots=True)
class Pricing:
    """What tokens cost: under this fidelity, moved ones `move_price` tokens computed each."""

    fidelity: str = "exact"
    move_price: float = 0.0

    def price(self, num_tokens: int) -> float:
        """Of tokens behind an edit."""
        cost = EditCost(0).with_text(num_tokens, self.fidelity)
        return cost.num_computed + cost.num_moved * self.move_price


def view_commit(
    state: SessionState, first_changed: int, share: float, limit: int | None, pricing: Pricing, tokenizer: Tokenizer
) -> CommitView:
    """The moment in front of a step that computes the messages from entry `first_changed` on in any case.

    `limit` are the tokens that the texts of a prompt may have.
    """
    after = committed(state)
    shown, then = ShownTexts(state, tokenizer), ShownTexts(after, tokenizer)
    num_prompt = shown.num_tokens_from_entry(0)
    return CommitView(
        edits=tuple(
            WaitingEdit(fragment.fragment_id, pricing.price(then.num_tokens_from(fragment.pieces[0])))
            for fragment in waiting(state)
        ),
        prompt_price=pricing.price(num_prompt),
        step_price=pricing.price(shown.num_tokens_from_entry(first_changed)),
        edit_share=share,
        num_saved=num_saved_by(state, after, tokenizer),
        needs_room=limit is not None and num_prompt > limit,
    )
