"""A branch of a conversation, as data: work on a task of its own, of which only a message comes back.

    entries    user   call branch   result   | call grep   result   call return   result |   answer
                      call_entry    result_  [start                                   end)
                                    entry
    while open        call branch   "open.."   call grep   result                             the model works here
    closed            call branch   message                                                  answer

The branch sees the main history. When it is closed its entries are left out, and the result of the call that opened it
is the returned message. The main conversation is the one that never branched and had the message as a tool result. A
branch never holds a message of the user or the system, so nothing that a person said is left out with it.

Decision: what is left out lies in the session's `Omissions`, like what an eviction took out. So rendering, counting and
evicting need to know nothing of branches. `hide_closed` puts it there, and again wherever omissions are made anew. A
branch whose work was done in a session of its own has no entries here (`is_empty`).

Branches are those of the paper "Scaling Long-Horizon LLM Agent via Context-Folding" (arXiv:2510.11967). Pure. It does
not know sessions' states (`branching.py`) or how calls are judged (`branch_tool.py`).
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

from acmserve.context.transcript.message import Message
from acmserve.context.transcript.omissions import Omissions, with_ranges
from acmserve.context.transcript.outline import Outline
from acmserve.context.transcript.parts import Role, role_of
from acmserve.errors import IntegrityError

BranchState = Literal["open", "returned", "failed"]


@dataclass(frozen=True, slots=True)
class Branch:
    """`end` is the entry behind the last one, None while the branch is open. Calls and tokens are counted at its end.

    What came back stands in the transcript only, in the result of the call, where it can be folded and redacted.
    """

    call_id: str
    call_entry: int
    result_entry: int
    start: int
    description: str
    prompt: str
    end: int | None = None
    failed: bool = False
    num_calls: int = 0
    num_tokens: int = 0

    @property
    def is_open(self) -> bool:
        return self.end is None

    @property
    def is_empty(self) -> bool:
        """Whether it has no entries: its work was done elsewhere, or it failed before its first step."""
        return self.start == self.end

    @property
    def is_call(self) -> bool:
        """Whether the model opened it. A branch of a client is a session, and has only its message here."""
        return self.failed or not self.is_empty

    @property
    def state(self) -> BranchState:
        return "open" if self.end is None else "failed" if self.failed else "returned"

    def holds(self, entry: int) -> bool:
        """Whether an entry belongs to the branch."""
        return self.start <= entry and (self.end is None or entry < self.end)


def opened(description: str, prompt: str) -> str:
    """What the model reads as the result of `branch` while it works there."""
    return (
        f"The branch is open: {description}\nTask: {prompt}\n"
        "You see the conversation so far. What you do from here on leaves it when you call return; only the message of "
        "return stays. Put into it whatever the main conversation needs to know."
    )


def ended_without(reason: str) -> str:
    """What the main conversation reads as the result of a branch that failed."""
    return f"Error: the branch ended without a result: {reason}"


def open_of(branches: Sequence[Branch]) -> Branch | None:
    """The branch that is open. There is one at most, and it is the last."""
    return branches[-1] if branches and branches[-1].is_open else None


def branch_at(branches: Sequence[Branch], entry: int) -> Branch | None:
    """The branch that an entry belongs to. Branches are in order, and apart."""
    number = bisect_right(branches, entry, key=lambda branch: branch.start)
    return branches[number - 1] if number and branches[number - 1].holds(entry) else None


def view_bounds(branches: Sequence[Branch], num_entries: int, outline: Outline) -> tuple[int, int | None]:
    """Where an open branch begins, or else the end. The step that runs, where that is not the last.

    It is the step that called a branch which has just ended, and whose message nobody has read yet. Of branches that
    clients returned one behind the other it is the call of the first.
    """
    if not branches:
        return num_entries, None
    last, opened_one = outline.last_step(), open_of(branches)
    held = branch_at(branches, last)
    running = _first_placed(branches, last, outline) if held is None or held.is_open else held.call_entry
    return num_entries if opened_one is None else opened_one.call_entry, None if running == last else running


def _first_placed(branches: Sequence[Branch], step: int, outline: Outline) -> int:
    """The first of the calls that clients' branches put behind the last answer. The step itself where it is no such."""
    first = step
    for branch in reversed(branches):
        if branch.is_call or branch.call_entry != step:
            break
        first, step = step, outline.last_step(step)
    return first


def hide_closed(omissions: Omissions, branches: Sequence[Branch]) -> Omissions:
    """The omissions with the entries of all closed branches. The very object where they are left out already."""
    closed = [(branch.start, branch.end) for branch in branches if branch.end is not None and not branch.is_empty]
    return with_ranges(omissions, closed)


def branches_before(branches: Sequence[Branch], num_entries: int) -> tuple[Branch, ...]:
    """What remains when a history diverges behind its first entries: a branch whose end is no more is open again.

    A failed branch that ends there is open again too, since it was ended by what followed.
    """
    kept = []
    for branch in branches:
        if branch.start > num_entries or branch.result_entry >= num_entries:
            continue
        end = num_entries if branch.end is None else branch.end
        if branch.is_empty or end < num_entries or (end == num_entries and not branch.failed):
            kept.append(branch)
        else:
            kept.append(replace(branch, end=None, failed=False, num_calls=0, num_tokens=0))
    return tuple(kept)


def check_branches(branches: Sequence[Branch], messages: Sequence[Message], omissions: Omissions) -> None:
    """Raise `IntegrityError` with the numbers when branches overlap, leave the transcript, or closed ones are shown."""
    position, num_entries = 0, len(messages)
    for branch in branches:
        end = num_entries if branch.end is None else branch.end
        if not position <= branch.call_entry < branch.result_entry < branch.start <= end <= num_entries:
            raise IntegrityError(f"session: {branch} behind entry {position} of {num_entries}")
        if branch.is_open and branch is not branches[-1]:
            raise IntegrityError(f"session: the branch at {branch.start} is open, and not the last of {len(branches)}")
        if messages[branch.result_entry].get("tool_call_id") != branch.call_id:
            raise IntegrityError(f"session: entry {branch.result_entry} is no result of {branch}")
        others = [n for n in range(branch.start, end) if role_of(messages[n]) is Role.PROTECTED]
        if others:
            raise IntegrityError(f"session: {branch} holds the messages {others} of others than the model")
        position = end
    if hide_closed(omissions, branches) is not omissions:
        raise IntegrityError(f"session: a closed branch is shown, left out are only {omissions.gone}")
