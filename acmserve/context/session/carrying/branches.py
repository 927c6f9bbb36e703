"""Carries branches over to entries that have moved or changed.

    old   u  call  result  [ work  work  work ]  answer
    new   u  call  result  [ work ]  a user's message  work  answer      ended, failed, in front of what is not its own

A branch needs its call and the call's result. Without one of them it is dropped, and what it held is shown. A closed
branch leaves out what it holds, so it ends where a message stands that is not its own. It does not know who ends an
open one (`branching.py`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from acmserve.context.session.branches.branch import Branch
from acmserve.context.session.carrying.fragments import Landings
from acmserve.context.session.carrying.record import REMOVED, DroppedEdit

INTERRUPTED = "a message that is not its own stands in it now; it ends there, without a result."


@dataclass(frozen=True, slots=True)
class CarriedBranches:
    """`ended` are those whose result has to say so. `shown` are the old entries of branches that are no more."""

    branches: tuple[Branch, ...]
    ended: tuple[Branch, ...] = ()
    shown: frozenset[int] = frozenset()
    dropped: tuple[DroppedEdit, ...] = ()


def carry_branches(branches: Sequence[Branch], landings: Landings, num_entries: int) -> CarriedBranches:
    """The branches where they stand now. `num_entries` is the number of old entries."""
    kept: list[Branch] = []
    ended: list[Branch] = []
    shown: set[int] = set()
    dropped: list[DroppedEdit] = []
    position = 0
    for branch in branches:
        inside = range(branch.start, num_entries if branch.end is None else branch.end)
        carried = _carry(branch, landings, inside, position)
        if carried is None:
            shown |= set(inside)
            dropped.append(DroppedEdit("branch", branch.call_id, REMOVED))
            continue
        kept.append(carried)
        if carried.failed and not branch.failed:
            ended.append(carried)
            dropped.append(DroppedEdit("branch", branch.call_id, INTERRUPTED))
        if carried.end is not None:
            shown |= {at for at in inside if at in landings and not carried.holds(landings[at].entry)}
            position = carried.end
    return CarriedBranches(tuple(kept), tuple(ended), frozenset(shown), tuple(dropped))


def _carry(branch: Branch, landings: Landings, inside: range, position: int) -> Branch | None:
    call, result = landings.get(branch.call_entry), landings.get(branch.result_entry)
    if call is None or result is None or not position <= call.entry < result.entry:
        return None
    work = sorted(landings[at].entry for at in inside if at in landings)
    last = landings.get(branch.start - 1, result)
    start = work[0] if work else max(last.entry, result.entry) + 1
    if start <= result.entry:
        return None
    moved = replace(branch, call_entry=call.entry, result_entry=result.entry, start=start)
    if branch.end is None:
        return moved
    num_own = next((num for num, at in enumerate(work) if at != start + num), len(work))
    if num_own < len(work):
        return replace(moved, end=start + num_own, failed=True)
    return replace(moved, end=start + num_own)
