"""The token budgets of this server's sessions, and the meter of each: what the next prompt will weigh.

    adopted state --follow-->  meter  --exceeds?--> plan --> state with a larger `omissions` --render--> prompt
                                 ^                                                                     |
                                 '------------------------- calibrate <------ receipt -----------------'

The meters are a memory only: the least recently used go, and are built anew when wanted. A session has its own budget,
kept with it, or that of the server. It brings nothing under a budget: see `enforcement.py`.
"""

from __future__ import annotations

import json
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from acmserve.context.accounting.rendered_spans import PromptRenderer
from acmserve.context.episodes.delimiter import Scope
from acmserve.context.eviction import registry
from acmserve.context.eviction.budget_json import parse_budget
from acmserve.context.eviction.context_meter import ContextMeter
from acmserve.context.eviction.plan import EvictionPlan
from acmserve.context.session.budget import Budget
from acmserve.context.session.low_watermark import Measured
from acmserve.context.session.render import InFront, nothing_in_front
from acmserve.context.session.state import SessionState
from acmserve.context.storage.session import Key, Session
from acmserve.context.transcript.template_rules import TAKES_ALL, Overheads, TemplateRules
from acmserve.context.transcript.tokenizer import Tokenizer, count_tokens
from acmserve.server.budget.fitting import PromptFitting
from acmserve.server.budget.rates import Rates

MAX_METERS = 1024


@dataclass(frozen=True, slots=True)
class PromptOverhead:
    """What stands in every prompt of a request beside the messages. `renderer` writes such prompts (None: nobody).

    `in_front` is what stands in front of messages of the user, which `num_map_tokens` counts, too.
    """

    tools: Sequence[Mapping[str, Any]] = ()
    preset: str = ""
    num_map_tokens: int = 0
    renderer: PromptRenderer | None = None
    in_front: InFront = nothing_in_front


@dataclass(slots=True)
class Budgets:
    """`default` is the server's budget, `window` the model's context in tokens, `num_base` what every prompt has.

    `rules` are those of the served template. `scoped` has the sessions whose running step has called `delimiter`. Each
    of them has a meter.
    """

    tokenizer: Tokenizer
    default: Budget | None = None
    window: int = 32_768
    overheads: Overheads = field(default_factory=Overheads)
    num_base: int = 0
    rates: Rates = field(default_factory=Rates)
    rules: TemplateRules = TAKES_ALL
    scoped: set[Key] = field(default_factory=set)
    _meters: OrderedDict[Key, ContextMeter] = field(default_factory=OrderedDict)
    _rendered: dict[Key, PromptOverhead] = field(default_factory=dict)

    def parse(self, value: object, where: str) -> Budget:
        """The budget that a client wrote. Raises `InvalidRequest`."""
        return parse_budget(value, self.window, where)

    def of(self, state: SessionState) -> Budget | None:
        """The budget that holds for a session."""
        return self.default if state.budget is None else state.budget

    def meter(self, session: Session) -> ContextMeter:
        """The session's meter, brought to the state that is stored."""
        meter = self._held(session)
        meter.follow(session.state, keep_active=False)
        return meter

    def meter_at(self, session: Session, state: SessionState) -> ContextMeter:
        """The session's meter, brought to a state that goes on from the one that is stored."""
        meter = self._held(session)
        meter.follow(state, keep_active=False)
        return meter

    def _held(self, session: Session) -> ContextMeter:
        meter = self._meters.get(session.key)
        if meter is None:
            meter = self._meters[session.key] = ContextMeter(self.tokenizer, self.overheads, self.rules)
            meter.expect(self.num_base)
        self._meters.move_to_end(session.key)
        while len(self._meters) > MAX_METERS:
            self.drop(next(iter(self._meters)))
        return meter

    def apart(self, session: Session) -> Budgets:
        """These budgets with a copy of the session's meter. What is counted there leaves no trace here."""
        key, meter = session.key, self._meters.get(session.key)
        meters = OrderedDict[Key, ContextMeter]() if meter is None else OrderedDict({key: meter.copied()})
        rendered = {key: self._rendered[key]} if key in self._rendered else {}
        return replace(self, scoped=self.scoped & {key}, _meters=meters, _rendered=rendered)

    def fitting(self, session: Session, beside: PromptOverhead) -> PromptFitting:
        """How prompts of a session are fitted: by the renderer of this request, or else by that of the last one."""
        if beside.renderer is not None:
            self._rendered[session.key] = beside
        known = self._rendered.get(session.key, beside)
        return PromptFitting(known.renderer, self.rules, known.in_front)

    def renderer(self, session: Session) -> PromptRenderer | None:
        """What wrote the last prompt of a session. None where nothing did."""
        known = self._rendered.get(session.key)
        return None if known is None else known.renderer

    def know(self, session: Session) -> None:
        """Look at the stored state before another one takes its place, so that a rewind is seen as one."""
        if self.of(session.state) is not None:
            self.meter(session)

    def drop(self, key: Key) -> None:
        """Forget a session's meter, and what its running step has declared."""
        self.scoped.discard(key)
        self._meters.pop(key, None)
        self._rendered.pop(key, None)

    def scope(self, session: Session) -> Scope:
        """What the next call of `delimiter` is judged against: the transcript, and the calls of the running step."""
        meter = self.meter(session)
        return meter.graph.scope() if meter.scope is None else meter.scope

    def declare(self, session: Session, scope: Scope) -> None:
        """Remember the scope behind a call, until the transcript has it."""
        self.meter(session).scope = scope
        self.scoped.add(session.key)

    def follow(self, session: Session, state: SessionState) -> tuple[ContextMeter, SessionState]:
        """The meter at `state`, which goes on from the session's own, and the state (see `ContextMeter.follow`)."""
        budget = self.of(state)
        meter = self.meter(session)
        return meter, meter.follow(
            state, keep_active=budget is not None and registry.find(budget.policy).needs_episodes
        )

    def end_scope(self, session: Session) -> None:
        """The step that ran is over, and the transcript says it all."""
        self.scoped.discard(session.key)
        if session.key in self._meters:
            self._meters[session.key].scope = None

    def watermark(self, meter: ContextMeter, budget: Budget, *, can_move: bool) -> int:
        """Where an eviction stops, in tokens."""
        return meter.watermark(budget, self.measure(meter, budget, can_move=can_move))

    def plan(self, meter: ContextMeter, budget: Budget, *, can_move: bool) -> EvictionPlan:
        """What an eviction down to the low watermark takes, by a policy that calls no model."""
        return meter.plan(budget, self.measure(meter, budget, can_move=can_move))

    def num_overhead(self, beside: PromptOverhead) -> int:
        """Tokens of a prompt beside its messages, about."""
        written = [json.dumps(tool) for tool in beside.tools]
        num_tokens = sum(count_tokens(self.tokenizer, text) for text in (*written, beside.preset))
        return self.num_base + num_tokens + len(written) + beside.num_map_tokens

    def measure(self, meter: ContextMeter, budget: Budget, *, can_move: bool) -> Measured:
        """What the session and its engine have shown."""
        return meter.measure(budget, self.rates.prefill_rate, self.rates.move_rate if can_move else None)


def load_policies(named: str, default: object) -> None:
    """Load the policies of other packages that the operator names: by flag, and in the server's own budget.

    Only settings of the server come here, since a policy is imported. Raises `InvalidRequest`.
    """
    for name in named.split(","):
        if name.strip():
            registry.load(name.strip())
    policy = default.get("policy") if isinstance(default, Mapping) else None
    if isinstance(policy, str) and ":" in policy:
        registry.load(policy, "--budget.policy")


def set_budget(state: SessionState, budget: Budget | None) -> SessionState:
    """The state with another budget. The very state where it is the one that it has."""
    return state if state.budget == budget else replace(state, budget=budget)
