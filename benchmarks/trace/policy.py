"""The prompts of a recording under a policy and a budget, made by the client: every server is sent the same ones.

    none             the whole conversation
    clear_tool_uses  results of all but the last three calls are cleared when the budget is exceeded
    cwl, recency     finished episodes, or the oldest steps, leave: down to the low watermark, in one batch
    compaction       a summary takes the place of the oldest steps
    bm25, memagent   what a long-context agent would do instead (`trace_memory.py`)

The first five are decided by the code that `acmserve serve` runs itself (`acmserve.context`), on counts of the model's
own tokenizer. Summaries are texts of `summaries.py`; reading and writing them is asked of the server as well, since the
user waits for that (`Aside`). Where a policy cannot meet the budget, the oldest steps leave as under `recency`, and the
prompt is marked as forced.

Pure: the same recording, policy and limits give the same prompts.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

from acmserve.bench.agent.plain_prompt import Plain, PromptWriter, as_plain, tools_text
from acmserve.bench.agent.recording import Recording, Step
from acmserve.bench.harness.summaries import SUMMARIES
from acmserve.context.eviction.context_meter import ContextMeter
from acmserve.context.eviction.plan import EvictionPlan
from acmserve.context.session.budget import Budget
from acmserve.context.session.render import render
from acmserve.context.session.history import adopt
from acmserve.context.session.state import SessionState
from acmserve.context.transcript.message import Message
from acmserve.context.transcript.tokenizer import Tokenizer, count_tokens
from acmserve.errors import AcmError

BUDGET_POLICIES = {"clear_tool_uses": "clear_tool_uses", "cwl": "cwl", "recency": "recency", "compaction": "compact"}
SUMMARY_TOKENS = 320
_ASK_SUMMARY = (
    "Summarize this conversation for the assistant who goes on with it. Keep names, numbers and decisions.\n\n"
)
# The rates decide where `auto` puts a watermark; here it is always given.
_ANY_RATE = 1000.0


@dataclass(frozen=True, slots=True)
class Limits:
    """Tokens that a prompt may have, and those that a batch of evictions leaves."""

    max_tokens: int
    low_watermark: int


@dataclass(frozen=True, slots=True)
class Aside:
    """A request that comes before a turn: a summary, or an update of a memory. Its answer is not used."""

    messages: tuple[Plain, ...]
    max_tokens: int


@dataclass(frozen=True, slots=True)
class Shown:
    """What a policy leaves of a conversation, not yet joined; and what had to be asked for it."""

    messages: tuple[Plain, ...]
    asides: tuple[Aside, ...] = ()
    is_forced: bool = False


@dataclass(frozen=True, slots=True)
class Prompt:
    """One turn as it is sent. `is_edited`: what was sent before is no longer its beginning."""

    messages: tuple[Plain, ...]
    tokens: tuple[int, ...]
    is_edited: bool
    is_forced: bool
    pause: float
    asides: tuple[Aside, ...] = ()


class Editor(Protocol):
    """Follows one conversation and decides what is shown of it."""

    def show(self, step: Step) -> Shown:
        """The conversation with what is new, and without what the policy takes out; `fleeting` is not in it."""


def plan_prompts(recording: Recording, editor: Editor, writer: PromptWriter) -> list[Prompt]:
    """All prompts of a recording, in order."""
    prompts: list[Prompt] = []
    before: tuple[Plain, ...] = ()
    for step in recording.steps:
        shown = editor.show(step)
        messages = writer.write([*shown.messages, *map(as_plain, step.fleeting)], recording.tools)
        tokens = writer.tokens(messages)
        is_edited = shown.messages[: len(before)] != before
        prompts.append(Prompt(tuple(messages), tokens, is_edited, shown.is_forced, step.pause, shown.asides))
        before = shown.messages
    return prompts


class Whole:
    """No policy: everything is shown."""

    def __init__(self) -> None:
        self._messages: list[Plain] = []

    def show(self, step: Step) -> Shown:
        """See `Editor`."""
        self._messages += map(as_plain, step.new)
        return Shown(tuple(self._messages))


class Budgeted:
    """A policy of `acmserve.context` under a budget. Raises AcmError where not even the last step fits into it."""

    def __init__(
        self, policy: str, limits: Limits, tools: Sequence[Any], writer: PromptWriter, tokenizer: Tokenizer
    ) -> None:
        self._budget = Budget(limits.max_tokens, limits.low_watermark, BUDGET_POLICIES[policy])
        self._meter = ContextMeter(tokenizer)
        self._state = SessionState(digest_key=b"bench trace")
        self._messages: list[Message] = []
        self._writer, self._tokenizer, self._tools = writer, tokenizer, tools
        self._num_tools = count_tokens(tokenizer, tools_text(tools))
        self._num_summaries = 0

    def show(self, step: Step) -> Shown:
        """See `Editor`."""
        meter = self._meter
        self._messages += step.new
        state = meter.follow(adopt(self._state, self._messages).state, keep_active=self._budget.policy == "cwl")
        fleeting = list(map(as_plain, step.fleeting))
        meter.expect(self._num_tools + sum(count_tokens(self._tokenizer, one["content"]) for one in fleeting))
        asides: list[Aside] = []
        is_forced = False
        while True:
            if meter.exceeds(self._budget):
                state, is_forced = self._evict(state, asides)
            shown = tuple(map(as_plain, render(state)))
            counted = meter.counted()
            num_tokens = len(self._writer.tokens(self._writer.write([*shown, *fleeting], self._tools)))
            # From here on the account knows what this prompt weighs, and exceeds the budget where the prompt does.
            meter.calibrate(counted, num_tokens)
            if num_tokens <= self._budget.max_tokens:
                self._state = state
                return Shown(shown, tuple(asides), is_forced)

    def _evict(self, state: SessionState, asides: list[Aside]) -> tuple[SessionState, bool]:
        """The state after the policy, and after the oldest steps have left where that was not enough."""
        plan = self._plan(asides)
        state = state if plan is None else self._meter.carry_out(plan, state)
        is_forced = self._meter.exceeds(self._budget)
        return (self._force(state) if is_forced else state), is_forced

    def _plan(self, asides: list[Aside]) -> EvictionPlan | None:
        """What the policy takes; None where there is nothing worth a summary. A summary is asked for aside."""
        meter, budget = self._meter, self._budget
        measured = meter.measure(budget, _ANY_RATE, None)
        if budget.policy != "compact":
            return meter.plan(budget, measured)
        compaction = meter.compaction(meter.watermark(budget, measured), SUMMARY_TOKENS)
        if compaction is None:
            return None
        summary = SUMMARIES[self._num_summaries % len(SUMMARIES)]
        self._num_summaries += 1
        asked = {"role": "user", "content": _ASK_SUMMARY + compaction.text}
        asides.append(Aside((asked,), SUMMARY_TOKENS))
        return meter.summarized(compaction, summary)

    def _force(self, state: SessionState) -> SessionState:
        """The oldest steps leave."""
        meter, recency = self._meter, replace(self._budget, policy="recency")
        plan = meter.plan(recency, meter.measure(recency, _ANY_RATE, None))
        state = meter.carry_out(plan, state)
        if meter.exceeds(recency):
            over = meter.num_tokens + meter.reserve - recency.max_tokens
            raise AcmError(
                f"--budget {recency.max_tokens}: the last step, the user's messages and the tools alone are {over:,} "
                "tokens too many; give a larger budget"
            )
        return state
