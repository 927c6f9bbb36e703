"""From recordings to the prompts of every session, policy and repetition, before any server starts."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace

from acmserve.bench.agent import agentperf
from acmserve.bench.agent.plain_prompt import PromptWriter
from acmserve.bench.agent.recording import Recording, first_steps, record, rotated
from acmserve.bench.agent.scripted_agent import make_trace
from acmserve.bench.harness.library_text import read_library
from acmserve.bench.trace.baselines import Remembering, Retrieving
from acmserve.bench.trace.load import Session
from acmserve.bench.trace.policy import BUDGET_POLICIES, Budgeted, Editor, Limits, Prompt, Whole, plan_prompts
from acmserve.bench.trace.run import Part
from acmserve.context.transcript.tokenizer import Tokenizer
from acmserve.errors import AcmError

BUNDLED = "bundled"
POLICIES = ("none", *BUDGET_POLICIES, "bm25", "memagent")
# Room for the answer and for what a server writes around a prompt.
_SPARE_TOKENS = 64


@dataclass(frozen=True, slots=True)
class Wanted:
    """What to replay. `skip`: turns in front of the opening; `num_turns`: those behind it, None for all.

    A recording ends where its whole conversation would have more than `window` tokens.
    """

    traces: str
    num_tasks: int
    policies: tuple[str, ...]
    concurrencies: tuple[int, ...]
    num_repetitions: int
    limits: Limits
    window: int
    skip: int
    num_turns: int | None
    seed: int


class Planner:
    """Plans each recording once for every policy."""

    def __init__(self, wanted: Wanted, writer: PromptWriter, tokenizer: Tokenizer, say: Callable[[str], None]) -> None:
        self._wanted, self._writer, self._tokenizer, self._say = wanted, writer, tokenizer, say
        self._recordings = self._read(max(wanted.concurrencies))
        self._planned: dict[tuple[str, str], tuple[Prompt, ...]] = {}
        if not self._recordings:
            raise AcmError(
                f"no trace has more than {wanted.skip + 1} turns in {wanted.window} tokens: give less --skip"
            )

    def parts(self) -> list[Part]:
        """Policies and concurrencies in order, each with the sessions of its repetitions."""
        cells = [(policy, number) for policy in self._wanted.policies for number in self._wanted.concurrencies]
        return [self._part(policy, number, cell) for cell, (policy, number) in enumerate(cells)]

    def _part(self, policy: str, concurrency: int, cell: int) -> Part:
        recordings = self._recordings
        if self._wanted.traces == BUNDLED:
            recordings = recordings[:concurrency]
        else:
            num_rounds = -(-concurrency // len(recordings))
            recordings = recordings * num_rounds
        repetitions = [
            tuple(
                Session(recording.name, f"{cell:03d}{repetition:02d}{number:03d}", self._prompts(recording, policy))
                for number, recording in enumerate(recordings)
            )
            for repetition in range(self._wanted.num_repetitions)
        ]
        return Part(policy, concurrency, tuple(repetitions))

    def _prompts(self, recording: Recording, policy: str) -> tuple[Prompt, ...]:
        key = (recording.name, policy)
        if key not in self._planned:
            self._say(f"planning {recording.name}, {policy}")
            editor = self._editor(policy, recording)
            prompts = plan_prompts(recording, editor, self._writer)
            num_turns = self._wanted.num_turns
            end = None if num_turns is None else self._wanted.skip + num_turns + 1
            self._planned[key] = tuple(prompts[self._wanted.skip : end])
        return self._planned[key]

    def _editor(self, told: str, recording: Recording) -> Editor:
        policy, limits = read_policy(told, self._wanted.limits)
        tools = recording.tools
        if policy == "none":
            return Whole()
        if policy in BUDGET_POLICIES:
            return Budgeted(policy, limits, tools, self._writer, self._tokenizer)
        maker = Retrieving if policy == "bm25" else Remembering
        return maker(limits, tools, self._writer, self._tokenizer)

    def _read(self, num_sessions: int) -> list[Recording]:
        """The recordings, each cut to the window; those that are over before the opening are left out."""
        wanted = self._wanted
        if wanted.traces == BUNDLED:
            trace = make_trace(read_library(), self._tokenizer, wanted.num_tasks)
            found = [
                record(rotated(trace, number), f"tasks from {number + 1}", wanted.seed + number)
                for number in range(num_sessions)
            ]
        else:
            texts = _text_limits(wanted.limits.max_tokens)
            read = agentperf.read_recordings(wanted.traces)
            found = [agentperf.cut_texts(recording, texts, self._tokenizer) for recording in read]
        fitted = [self._fit(recording) for recording in found]
        return [recording for recording in fitted if len(recording.steps) > wanted.skip + 1]

    def _fit(self, recording: Recording) -> Recording:
        wanted = self._wanted
        if wanted.num_turns is not None:
            recording = first_steps(recording, wanted.skip + wanted.num_turns + 1)
        sizes = [len(prompt.tokens) for prompt in plan_prompts(recording, Whole(), self._writer)]
        num_fitting = next((n for n, size in enumerate(sizes) if size > wanted.window), len(sizes))
        return first_steps(recording, num_fitting)


def read_policy(told: str, limits: Limits) -> tuple[str, Limits]:
    """A policy, and the limits with the watermark that is written behind it: `recency@0.9`. Raises ValueError."""
    policy, at, share = told.partition("@")
    if policy not in POLICIES or (at and not 0 < float(share) <= 1):
        raise ValueError(told)
    return policy, replace(limits, low_watermark=int(limits.max_tokens * float(share))) if at else limits


def _text_limits(budget: int) -> agentperf.Limits:
    """So much of each text that the system's, the task, the last step and its result fit into a budget."""
    return agentperf.Limits(system=budget // 6, user=budget // 8, said=budget // 8, result=budget // 4)


def needed_window(parts: Iterable[Part], writer: PromptWriter, max_tokens: int) -> int:
    """Tokens that the longest prompt needs with its answer, a multiple of 256."""
    most = 0
    planned = {(part.policy, one.name): one.prompts for part in parts for one in part.repetitions[0]}
    for prompts in planned.values():
        for prompt in prompts:
            asides = [len(writer.tokens(aside.messages)) + aside.max_tokens for aside in prompt.asides]
            most = max(most, len(prompt.tokens) + max_tokens, *asides)
    return -(-(most + _SPARE_TOKENS) // 256) * 256
