"""The prompts of a recording under a policy and a budget, made by the client: every server is sent the same ones.

    none             the whole conversation
    clear_tool_uses  results of all but the last three calls are cleared when the budget is exceeded
    cwl, recency     finished episodes, or the oldest steps, leave: down to the low watermark, in one batch
    compaction       a summary takes the place of all but the first and the last step, and is asked for by a prompt more

All but `compaction` are decided by the code that `acmserve serve` runs itself (`acmserve.context`), on counts of the
model's own tokenizer. Where one cannot meet the budget, the oldest steps leave as under `recency`, and the prompt is
marked as forced. `compaction` is what clients do by themselves (`compaction.py`). Pure: the same recording, policy and
limits give the same prompts.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from acmserve.bench.agent.plain_prompt import Plain, PromptWriter, as_plain, tools_text
from acmserve.bench.agent.recording import RecordedStep, Recording
from acmserve.bench.trace.compaction import SUMMARY_TOKENS, Compacting, ShownPrompt, Weigh
from acmserve.bench.trace.repeats import NO_CALLS, CallRepeats, find_repeats
from acmserve.context.eviction.context_meter import ContextMeter
from acmserve.context.session.budget import Budget
from acmserve.context.session.history import adopt
from acmserve.context.session.render import evicted_entries, render
from acmserve.context.session.state import SessionState
from acmserve.context.transcript.message import Message
from acmserve.context.transcript.tokenizer import Tokenizer, count_tokens
from acmserve.errors import AcmError

NO_POLICY, BUDGET_POLICIES, COMPACTION = "none", ("clear_tool_uses", "cwl", "recency"), "compaction"
POLICIES = (NO_POLICY, *BUDGET_POLICIES, COMPACTION)
# The rates decide where `auto` puts a watermark. Here it is always given.
_ANY_RATE = 1000.0


@dataclass(frozen=True, slots=True)
class Limits:
    """Tokens that a prompt may have, those that a batch of evictions leaves, and those of a summary."""

    max_tokens: int
    low_watermark: int
    summary_tokens: int = SUMMARY_TOKENS


@dataclass(frozen=True, slots=True)
class Prompt:
    """One turn as it is sent. `is_edited`: the policy took out, or replaced, something that was sent before.

    `num_answered` are the tokens of the recorded answer, 0 where nothing follows. `repeats` are what it calls again.
    """

    messages: tuple[Plain, ...]
    tokens: tuple[int, ...]
    is_edited: bool
    is_forced: bool
    pause: float
    num_answered: int = 0
    repeats: CallRepeats = NO_CALLS


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

    def weigh(shown: Sequence[Plain]) -> int:
        return len(writer.tokens(writer.write(shown, recording.tools)))

    show = _show_by(policy, limits, recording.tools, weigh, tokenizer)
    answers = [step.new[0] for step in recording.steps[1:]]
    prompts: list[Prompt] = []
    answered: list[int] = []
    removed: list[frozenset[int]] = []
    before: tuple[Plain, ...] = ()
    for step, answer in zip(recording.steps, [*answers, None], strict=True):
        pause = step.pause
        for shown in show(step):
            messages = writer.write([*shown.messages, *shown.fleeting], recording.tools)
            is_edited = shown.messages[: len(before)] != before
            said = shown.answer or ("" if answer is None else as_plain(answer)["content"])
            num_answered = count_tokens(tokenizer, said)
            tokens = writer.tokens(messages)
            prompts.append(Prompt(tuple(messages), tokens, is_edited, shown.is_forced, pause, num_answered))
            # What asks for a summary is no part of the conversation.
            before, pause = shown.messages, 0.0
        # The last prompt of a step is the one that the recording answers.
        answered.append(len(prompts) - 1)
        removed.append(shown.removed)
    found = find_repeats([step.new for step in recording.steps], removed)
    for number, repeats in zip(answered, found, strict=True):
        prompts[number] = replace(prompts[number], repeats=repeats)
    return prompts


def _show_by(
    policy: str, limits: Limits, tools: Sequence[Any], weigh: Weigh, tokenizer: Tokenizer
) -> Callable[[RecordedStep], Iterator[ShownPrompt]]:
    if policy == NO_POLICY:
        return _Whole().show
    if policy == COMPACTION:
        return Compacting(limits.max_tokens, weigh, tokenizer, limits.summary_tokens).show
    return _Budgeted(policy, limits, tools, weigh, tokenizer).show


class _Whole:
    """No policy: everything is shown."""

    def __init__(self) -> None:
        self._messages: list[Plain] = []

    def show(self, step: RecordedStep) -> Iterator[ShownPrompt]:
        """Everything so far."""
        self._messages += map(as_plain, step.new)
        yield ShownPrompt(tuple(self._messages), tuple(map(as_plain, step.fleeting)))


class _Budgeted:
    """A policy of `acmserve.context` under a budget."""

    def __init__(self, policy: str, limits: Limits, tools: Sequence[Any], weigh: Weigh, tokenizer: Tokenizer) -> None:
        self._budget = Budget(limits.max_tokens, limits.low_watermark, policy)
        self._meter = ContextMeter(tokenizer)
        self._state = SessionState(digest_key=b"bench trace")
        self._messages: list[Message] = []
        self._num_tools = count_tokens(tokenizer, tools_text(tools))
        self._weigh = weigh

    def show(self, step: RecordedStep) -> Iterator[ShownPrompt]:
        """The conversation with what is new, and without what the policy takes out. Whether that was not enough."""
        fleeting = tuple(map(as_plain, step.fleeting))
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
            counted, num_tokens = meter.counted(), self._weigh([*shown, *fleeting])
            # From here on the meter knows what this prompt weighs, and exceeds the budget where the prompt does.
            meter.calibrate(counted, num_tokens)
            if num_tokens <= self._budget.max_tokens:
                self._state = state
                yield ShownPrompt(shown, fleeting, is_forced, removed=evicted_entries(state))
                return

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
