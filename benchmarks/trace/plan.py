"""From the recorded conversation to the prompts of every session, policy and repetition, before any server starts."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

from acmserve.bench.agent.plain_prompt import PromptWriter
from acmserve.bench.agent.recording import Recording, record, rotated
from acmserve.bench.agent.scripted_agent import Trace
from acmserve.bench.trace.compaction import SUMMARY_TOKENS
from acmserve.bench.trace.load import PlannedSession
from acmserve.bench.trace.prompts import NO_POLICY, Limits, plan_prompts, read_policy
from acmserve.context.transcript.tokenizer import Tokenizer
from acmserve.errors import AcmError

_SEED = 23
# Room for the answer and for what a server writes around a prompt.
_SPARE_TOKENS = 64
_BUDGET_SHARE, _LOW_SHARE = 0.5, 0.3
"""Of what a conversation grows by: what its own budget allows, and what an eviction leaves of it."""


@dataclass(frozen=True, slots=True)
class PolicyPart:
    """One policy: the sessions of each repetition."""

    policy: str
    repetitions: tuple[tuple[PlannedSession, ...], ...]


@dataclass(frozen=True, slots=True)
class Wanted:
    """What to replay. `limits` None: each conversation has its own. `skip`: turns in front of the opening.

    `num_turns`: those behind it, None for all.
    """

    policies: tuple[str, ...]
    num_repetitions: int
    limits: Limits | None
    skip: int = 0
    num_turns: int | None = None


def record_sessions(trace: Trace, num_sessions: int) -> list[Recording]:
    """As many sessions that have the same tasks, each another one first."""
    return [
        record(rotated(trace, number), f"tasks from {number + 1}", _SEED + number) for number in range(num_sessions)
    ]


def own_limits(recording: Recording, writer: PromptWriter, tokenizer: Tokenizer) -> Limits:
    """A budget that one conversation reaches half way, whatever its length and however long its first prompt is.

    It has room for the first prompt, a summary and the longest step.
    """
    whole = plan_prompts(recording, NO_POLICY, Limits(0, 0), writer, tokenizer)
    sizes = [len(prompt.tokens) for prompt in whole]
    growth = sizes[-1] - sizes[0]
    longest = max((after - before for before, after in pairwise(sizes)), default=0)
    room = max(int(_BUDGET_SHARE * growth), longest + SUMMARY_TOKENS + _SPARE_TOKENS)
    return Limits(sizes[0] + room, sizes[0] + int(_LOW_SHARE * growth))


def plan_parts(
    wanted: Wanted, recordings: Sequence[Recording], writer: PromptWriter, tokenizer: Tokenizer
) -> list[PolicyPart]:
    """One part for each policy, with a session for each recording."""
    end = None if wanted.num_turns is None else wanted.skip + wanted.num_turns + 1
    for found in recordings:
        if len(found.steps) <= wanted.skip + 1:
            raise AcmError(f"{found.name} has {len(found.steps)} turns: give less --skip")
    cut = [replace(found, steps=found.steps[:end]) for found in recordings]
    limits = [wanted.limits or own_limits(one, writer, tokenizer) for one in cut]
    parts = []
    for cell, text in enumerate(wanted.policies):
        sessions = [_plan_session(one, text, limits[number], writer, tokenizer) for number, one in enumerate(cut)]
        repetitions = tuple(
            tuple(
                replace(one, tag=f"{cell:03d}{repetition:02d}{number:03d}", prompts=one.prompts[wanted.skip :])
                for number, one in enumerate(sessions)
            )
            for repetition in range(wanted.num_repetitions)
        )
        parts.append(PolicyPart(text, repetitions))
    return parts


def _plan_session(
    recording: Recording, text: str, limits: Limits, writer: PromptWriter, tokenizer: Tokenizer
) -> PlannedSession:
    """All its prompts, without a tag."""
    policy, own = read_policy(text, limits)
    prompts = tuple(plan_prompts(recording, policy, own, writer, tokenizer))
    return PlannedSession(recording.name, "", prompts, 0 if policy == NO_POLICY else own.max_tokens)


def needed_window(parts: Iterable[PolicyPart], max_tokens: int) -> int:
    """Tokens that the longest prompt needs with its answer, a multiple of 256. `max_tokens` 0: the recorded answers."""
    prompts = [prompt for part in parts for session in part.repetitions[0] for prompt in session.prompts]
    most = max(len(prompt.tokens) + (max_tokens or prompt.num_answered) for prompt in prompts)
    return -(-(most + _SPARE_TOKENS) // 256) * 256


def digest(parts: Sequence[PolicyPart]) -> str:
    """Equal for equal prompts."""
    found = hashlib.sha256()
    for part in parts:
        for session in part.repetitions[0]:
            for prompt in session.prompts:
                found.update(repr((session.name, prompt.tokens)).encode())
    return found.hexdigest()[:16]
