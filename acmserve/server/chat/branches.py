"""Branches in the tool loop: calls of `branch` and `return` are judged here, and a branch is made to end.

    step    branch(d, p)     grep    grep     return(m)        answer
            '- recorded,     [.. the branch ..]     '- recorded, then left out. The loop goes on in main
               then opened

A call only says what is wanted: the branch opens, or closes, when its whole step has been recorded (`settle`). A branch
ends in one of these ways:

- `return(message)`, or an answer without a call: then that text is the message.
- It is too large, or no tool calls are left: the next step has to call `return` (`must_return`). If it does not, the
  branch has failed. So it has when the model cannot be asked (its prompt is too long), or when a step is cut short.
- The client speaks instead of the model, or asks without these tools: see `context.session.branches.branching` and
  `recording.py`.

What failed says so in the result that the main conversation reads. The loop goes on there.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field
from typing import Any

from acmserve.context.session.branches.branch import opened
from acmserve.context.session.branches.branch_tool import BRANCH, RETURN, BranchCall, read_branch, read_return
from acmserve.context.session.branches.branching import Spent, close_branch, open_branch, spent_in
from acmserve.context.session.rollout.record import Initiator
from acmserve.context.session.state import SessionState
from acmserve.context.session.turns.turn import MAX_ID_CHARS, TurnEdit
from acmserve.context.transcript.message import Message, texts
from acmserve.context.transcript.tokenizer import Tokenizer, count_tokens
from acmserve.errors import Conflict
from acmserve.server.http.strict_json import clean_json

NAMES = (BRANCH, RETURN)
DEFAULT_SHARE = 4
NOT_RETURNED = "it was asked to call return, and did not."
NO_MESSAGE = "it ended without a message."
CUT_SHORT = "its last step was cut short."


@dataclass(slots=True)
class LoopBranches:
    """The branches of one answer. `max_tokens` bounds what one holds. `is_branch`: the session is a branch itself.

    `max_branches` bounds how many the model opens in the whole conversation, those of earlier answers among them.
    `opening`, `message` and `failure` are what the running step has asked for so far. `is_forced`: it has to return.
    """

    tokenizer: Tokenizer
    max_tokens: int
    max_branches: int | None = None
    is_branch: bool = False
    opening: tuple[str, BranchCall] | None = None
    message: str | None = None
    failure: str | None = None
    is_forced: bool = False
    client_calls: Collection[str] = ()
    touched: list[str] = field(default_factory=list)

    def begin_step(self, state: SessionState, *, is_last: bool) -> bool:
        """Whether the step that begins has to call `return`. `is_last`: no tool calls are left."""
        self.opening = self.message = self.failure = None
        branch = state.branch
        if branch is not None and branch.call_id not in self.touched:
            self.touched.append(branch.call_id)
        self.is_forced = branch is not None and (is_last or self.spent(state).num_tokens > self.max_tokens)
        return self.is_forced

    def check_other(self, name: str) -> None:
        """Raise `Conflict` for a call of any tool behind a `return` of the same step."""
        if self.message is not None:
            raise Conflict("name", f"{name} was not carried out: the branch has returned.", "Call it in the next step.")

    def call(self, call_id: str, name: str, arguments: object, state: SessionState) -> str:
        """One call of `branch` or `return`. The text is what the model reads of it. Raises `InvalidRequest`."""
        self.check_other(name)
        if self.client_calls:
            others = ", ".join(self.client_calls)
            raise Conflict("name", f"{name} cannot be called in one step with {others}.", "Call it alone.")
        if name == BRANCH:
            return self._open(call_id, arguments, state)
        if state.branch is None:
            raise Conflict("name", "there is no open branch to return from.", self._without_branch())
        self.message = read_return(arguments)
        return "Returned to the main conversation."

    def _open(self, call_id: str, arguments: object, state: SessionState) -> str:
        if self.is_branch:
            raise Conflict("name", "this conversation is a branch; it cannot open another one.", "Do the task here.")
        open_now = state.branch if self.opening is None else self.opening[1]
        if open_now is not None:
            raise Conflict(
                "name",
                f"the branch {open_now.description!a} is open; a branch cannot open another one.",
                "Do the task in it, or call return first.",
            )
        most = self.max_branches
        if most is not None and sum(branch.is_call for branch in state.branches) >= most:
            said = f"no further branch opens: {most} of {most} of this conversation are used."
            raise Conflict("name", said, "Do the task here.")
        wanted = read_branch(arguments)
        self.opening = (call_id, wanted)
        return opened(wanted.description, wanted.prompt)

    def _without_branch(self) -> str:
        if self.opening is not None:
            return "The branch that you have just called begins with the next step."
        return "Answer instead: your answer is what it returns." if self.is_branch else "Answer, or open a branch."

    def end_step(self, state: SessionState, message: Message, *, is_done: bool, is_cut: bool) -> bool:
        """Whether the answer goes on in the main conversation, since the branch ends with this step.

        `is_done`: it has called tools. `is_cut`: it was cut short.
        """
        if state.branch is None or self.message is not None:
            return self.message is not None
        if self.is_forced:
            self.failure = NOT_RETURNED
        elif is_cut:
            self.failure = CUT_SHORT
            return False
        elif not is_done and not self.client_calls:
            said = "\n".join(text for _, text in texts(message)).strip()
            self.message, self.failure = (said, None) if said else (None, NO_MESSAGE)
        return self.message is not None or self.failure is not None

    def settle(self, state: SessionState) -> SessionState:
        """What the step has asked for, once it is recorded."""
        if self.opening is not None:
            call_id, wanted = self.opening
            self.touched.append(call_id)
            return open_branch(state, call_id, wanted)
        if self.message is not None:
            return close_branch(state, self.message, self.spent(state))
        return state if self.failure is None else fail_open(state, self.failure, self.tokenizer)

    def spent(self, state: SessionState) -> Spent:
        """What the open branch took so far."""
        return spent_in(state, lambda text: count_tokens(self.tokenizer, text))

    def as_json(self, state: SessionState) -> list[dict[str, Any]]:
        """What the answer says of the branches that it had to do with."""
        spent = self.spent(state)
        return [
            {
                "branch_id": branch.call_id,
                "description": branch.description,
                "state": branch.state,
                "num_calls": spent.num_calls if branch.is_open else branch.num_calls,
                "num_tokens": spent.num_tokens if branch.is_open else branch.num_tokens,
            }
            for branch in state.branches
            if branch.call_id in self.touched
        ]


def open_call(state: SessionState) -> str | None:
    """The call that opened the branch in which the model works, as records name it."""
    return None if state.branch is None else str(clean_json(state.branch.call_id))[:MAX_ID_CHARS]


def branch_edits(before: SessionState, after: SessionState, tokenizer: Tokenizer) -> list[TurnEdit]:
    """The branches of the model that were opened and closed in between, as the next turn names them."""
    was_open = {branch.call_id: branch.is_open for branch in before.branches}
    found = []
    for branch in after.branches:
        if branch.call_id not in was_open:
            found.append(TurnEdit("branch", (), 0, Initiator.MODEL.value))
        if not branch.is_open and was_open.get(branch.call_id, True):
            num_left = sum(
                count_tokens(tokenizer, text) for _, text in texts(after.entries[branch.result_entry].message)
            )
            kind = "branch_failed" if branch.failed else "return"
            found.append(TurnEdit(kind, (), max(0, branch.num_tokens - num_left), Initiator.MODEL.value))
    return found


def fail_open(state: SessionState, reason: str, tokenizer: Tokenizer) -> SessionState:
    """Close the open branch, where there is one, without a result."""
    if state.branch is None:
        return state
    spent = spent_in(state, lambda text: count_tokens(tokenizer, text))
    return close_branch(state, reason, spent, failed=True)
