"""The prompts of a recording under a policy and a budget, made by the client: every server is sent the same ones.

    none             the whole conversation
    clear_tool_uses  results of all but the last three calls are cleared when the budget is exceeded
    cwl, recency     finished episodes, or the oldest steps, leave: down to the low watermark, in one batch

A policy is decided by the code that `acmserve serve` runs itself (`acmserve.context`), on counts of the model's own
tokenizer. Where a policy cannot meet the budget, the oldest steps leave as under `recency`, and the prompt is marked as
forced. Pure: the same recording, policy and limits give the same prompts.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from acmserve.bench.agent.plain_prompt import Plain, PromptWriter, as_plain, tools_text
from acmserve.bench.agent.recording import RecordedStep, Recording
from acmserve.context.eviction.context_meter import ContextMeter
from acmserve.context.session.budget import Budget
from acmserve.context.session.history import adopt
from acmserve.context.session.render import render
from acmserve.context.session.state import SessionState
from acmserve.context.transcript.message import Message
from acmserve.context.transcript.tokenizer import Tokenizer, count_tokens
from acmserve.errors import AcmError

NO_POLICY, BUDGET_POLICIES = "none", ("clear_tool_uses", "cwl", "recency")
POLICIES = (NO_POLICY, *BUDGET_POLICIES)
# The rates decide where `auto` puts a watermark; here it is always given.
_ANY_RATE = 1000.0


@dataclass(frozen=True, slots=True)
class Limits:
    """Tokens that a prompt may have, and those that a batch of evictions leaves."""

    max_tokens: int
    low_watermark: int


@dataclass(frozen=True, slots=True)
class Prompt:
    """One turn as it is sent. `is_edited`: what was sent before is no longer its beginning."""

    messages: tuple[Plain, ...]
    tokens: tuple[int, ...]
    is_edited: bool
    is_forced: bool
    pause: float


def read_policy(text: str, limits: Limits) -> tuple[str, Limits]:
    """A policy, and the limits with the watermark that is written behind it: `recency@0.9`. Raises ValueError."""
    policy, at, share = text.partition("@")
    if policy not in POLICIES or (at and not 0 < float(share) <= 1):
        raise ValueError(text)
    return policy, replace(limits, low_watermark=int(limits.max_tokens * float(share))) if at else limits


def plan_prompts(
    recording: Recording, policy: str, limits: Limits, writer: PromptWriter, tokenizer: Tokenizer
) -> list[Prompt]:
    """All prompts of a recording, in order. Raises AcmError where not even the last step fits into the budget."""
    show = _Whole() if policy == NO_POLICY else _Budgeted(policy, limits, recording.tools, writer, tokenizer).show
    prompts: list[Prompt] = []
    before: tuple[Plain, ...] = ()
    for step in recording.steps:
        shown, is_forced = show(step)
        messages = writer.write(shown, recording.tools)
        is_edited = shown[: len(before)] != before
        prompts.append(Prompt(tuple(messages), writer.tokens(messages), is_edited, is_forced, step.pause))
        before = shown
    return prompts


class _Whole:
    """No policy: everything is shown."""

    def __init__(self) -> None:
        self._messages: list[Plain] = []

    def __call__(self, step: RecordedStep) -> tuple[tuple[Plain, ...], bool]:
        self._messages += map(as_plain, step.new)
        return tuple(self._messages), False


class _Budgeted:
    """A policy of `acmserve.context` under a budget."""

    def __init__(
        self, policy: str, limits: Limits, tools: Sequence[Any], writer: PromptWriter, tokenizer: Tokenizer
    ) -> None:
        self._budget = Budget(limits.max_tokens, limits.low_watermark, policy)
        self._meter = ContextMeter(tokenizer)
        self._state = SessionState(digest_key=b"bench trace")
        self._messages: list[Message] = []
        self._num_tools = count_tokens(tokenizer, tools_text(tools))
        self._weigh: Callable[[Sequence[Plain]], int] = lambda shown: len(writer.tokens(writer.write(shown, tools)))

    def show(self, step: RecordedStep) -> tuple[tuple[Plain, ...], bool]:
        """The conversation with what is new, and without what the policy takes out. Whether that was not enough."""
        meter = self._meter
        self._messages += step.new
        state = meter.follow(adopt(self._state, self._messages).state, keep_active=self._budget.policy == "cwl")
        meter.expect(self._num_tools)
        is_forced = False
        while True:
            if meter.exceeds(self._budget):
                state = self._evict(state, self._budget)
                is_forced = meter.exceeds(self._budget)
                state = self._force(state) if is_forced else state
            shown = tuple(map(as_plain, render(state)))
            counted, num_tokens = meter.counted(), self._weigh(shown)
            # From here on the meter knows what this prompt weighs, and exceeds the budget where the prompt does.
            meter.calibrate(counted, num_tokens)
            if num_tokens <= self._budget.max_tokens:
                self._state = state
                return shown, is_forced

    def _evict(self, state: SessionState, budget: Budget) -> SessionState:
        meter = self._meter
        return meter.carry_out(meter.plan(budget, meter.measure(budget, _ANY_RATE, None)), state)

    def _force(self, state: SessionState) -> SessionState:
        """The oldest steps leave."""
        meter, recency = self._meter, replace(self._budget, policy="recency")
        state = self._evict(state, recency)
        if meter.exceeds(recency):
            over = meter.num_tokens + meter.reserve - recency.max_tokens
            raise AcmError(
                f"--budget {recency.max_tokens}: the last step, the user's messages and the tools alone are {over:,} "
                "tokens too many; give a larger budget"
            )
        return state
