"""The token budgets of this server's sessions, and the account of each: what the next prompt will weigh.

    adopted state --follow--> account --exceeds?--> plan --> state with a larger `shed` --render--> prompt
                                 ^                                                                     |
                                 '------------------------- calibrate <------ receipt -----------------'

The accounts are a memory only (`context.account`): the least recently used go, and are built anew when wanted. A
session has its own budget, kept with it, or that of the server. It brings nothing under a budget: see `enforcement.py`.
"""

from __future__ import annotations

import json
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from acmserve.context.episodes.delimiter import Scope
from acmserve.context.eviction.context_meter import Account, Overheads
from acmserve.context.eviction.low_watermark import Measured
from acmserve.context.eviction.plan import BudgetUnmet, EvictionPlan, EvictionStep
from acmserve.context.eviction.policy import EPISODE_POLICIES
from acmserve.context.session.budget import Budget, parse_budget
from acmserve.context.session.state import SessionState
from acmserve.context.storage.session import Key, Session
from acmserve.context.transcript.tokenizer import Tokenizer, count_tokens
from acmserve.server.budget.rates import Pace

MAX_ACCOUNTS = 1024


@dataclass(frozen=True, slots=True)
class Beside:
    """What stands in every prompt of a request beside the messages."""

    tools: Sequence[Mapping[str, Any]] = ()
    preset: str = ""
    num_map_tokens: int = 0


@dataclass(slots=True)
class Budgets:
    """`default` is the server's budget, `window` the model's context in tokens, `num_base` what every prompt has."""

    tokenizer: Tokenizer
    default: Budget | None = None
    window: int = 32_768
    overheads: Overheads = field(default_factory=Overheads)
    num_base: int = 0
    pace: Pace = field(default_factory=Pace)
    _accounts: OrderedDict[Key, Account] = field(default_factory=OrderedDict)

    def parse(self, value: object, where: str) -> Budget:
        """The budget that a client wrote; raises `InvalidRequest`."""
        return parse_budget(value, self.window, where)

    def of(self, state: SessionState) -> Budget | None:
        """The budget that holds for a session."""
        return self.default if state.budget is None else state.budget

    def account(self, session: Session) -> Account:
        """The session's account, brought to the state that is stored."""
        account = self._accounts.get(session.key)
        if account is None:
            account = self._accounts[session.key] = Account(self.tokenizer, self.overheads)
            account.expect(self.num_base)
        self._accounts.move_to_end(session.key)
        while len(self._accounts) > MAX_ACCOUNTS:
            self._accounts.popitem(last=False)
        account.follow(session.state, keep_active=False)
        return account

    def know(self, session: Session) -> None:
        """Look at the stored state before another one takes its place, so that a rewind is seen as one."""
        if self.of(session.state) is not None:
            self.account(session)

    def drop(self, session: Session) -> None:
        """Forget a session's account."""
        self._accounts.pop(session.key, None)

    def scope(self, session: Session) -> Scope:
        """What the next call of `delimiter` is judged against: the transcript, and the calls of the running step."""
        account = self.account(session)
        return account.graph.scope() if account.scope is None else account.scope

    def declare(self, session: Session, scope: Scope) -> None:
        """Remember the scope behind a call, until the transcript has it."""
        self.account(session).scope = scope

    def follow(self, session: Session, state: SessionState) -> tuple[Account, SessionState]:
        """The account at `state`, which goes on from the session's own, and the state (see `Account.follow`)."""
        budget = self.of(state)
        account = self.account(session)
        return account, account.follow(state, keep_active=budget is not None and budget.policy in EPISODE_POLICIES)

    def end_scope(self, session: Session) -> None:
        """The step that ran is over, and the transcript says it all."""
        if session.key in self._accounts:
            self._accounts[session.key].scope = None

    def watermark(self, account: Account, budget: Budget, *, can_move: bool) -> int:
        """Where an eviction stops, in tokens."""
        return account.watermark(budget, self.measure(account, budget, can_move=can_move))

    def plan(self, account: Account, budget: Budget, *, can_move: bool) -> EvictionPlan:
        """What an eviction down to the low watermark takes, by a policy that calls no model."""
        return account.plan(budget, self.measure(account, budget, can_move=can_move))

    def num_beside(self, beside: Beside) -> int:
        """Tokens of a prompt beside its messages, about."""
        written = [json.dumps(tool) for tool in beside.tools]
        num_tokens = sum(count_tokens(self.tokenizer, text) for text in (*written, beside.preset))
        return self.num_base + num_tokens + len(written) + beside.num_map_tokens

    def measure(self, account: Account, budget: Budget, *, can_move: bool) -> Measured:
        """What the session and its engine have shown."""
        return account.measure(budget, self.pace.prefill_rate, self.pace.move_rate if can_move else None)


def set_budget(state: SessionState, budget: Budget | None) -> SessionState:
    """The state with another budget; the very state where it is the one that it has."""
    return state if state.budget == budget else replace(state, budget=budget)


def told_steps(steps: Sequence[EvictionStep]) -> list[dict[str, Any]]:
    """What goes, one item for each episode (or message), in order, with the tokens of each level."""
    items: dict[str, dict[str, Any]] = {}
    for step in steps:
        item = items.setdefault(step.what, {"episode": step.what, "levels": {}, "tokens": 0})
        item["levels"][step.level.value] = item["levels"].get(step.level.value, 0) + step.num_tokens
        item["tokens"] += step.num_tokens
    return list(items.values())


def told_unmet(unmet: BudgetUnmet | None) -> dict[str, Any] | None:
    """Why a budget cannot be met: by how many tokens, and what may not be evicted."""
    if unmet is None:
        return None
    return {
        "message": str(unmet),
        "tokens_over": unmet.num_over,
        "protected": [{"what": item.what, "tokens": item.num_tokens} for item in unmet.protected],
    }
