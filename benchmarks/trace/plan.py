"""From the recorded conversation to the prompts of every session, policy and repetition, before any server starts."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from acmserve.bench.agent.plain_prompt import PromptWriter
from acmserve.bench.agent.recording import record, rotated
from acmserve.bench.agent.scripted_agent import Trace
from acmserve.bench.trace.load import PlannedSession
from acmserve.bench.trace.prompts import Limits, plan_prompts, read_policy
from acmserve.context.transcript.tokenizer import Tokenizer
from acmserve.errors import AcmError

_SEED = 23
# Room for the answer and for what a server writes around a prompt.
_SPARE_TOKENS = 64


@dataclass(frozen=True, slots=True)
class PolicyPart:
    """One policy: the sessions of each repetition."""

    policy: str
    repetitions: tuple[tuple[PlannedSession, ...], ...]


@dataclass(frozen=True, slots=True)
class Wanted:
    """What to replay. `skip`: turns in front of the opening. `num_turns`: those behind it, None for all."""

    policies: tuple[str, ...]
    num_sessions: int
    num_repetitions: int
    limits: Limits
    skip: int
    num_turns: int | None


def plan_parts(wanted: Wanted, trace: Trace, writer: PromptWriter, tokenizer: Tokenizer) -> list[PolicyPart]:
    """One part for each policy. Sessions have the same tasks, each another one first."""
    end = None if wanted.num_turns is None else wanted.skip + wanted.num_turns + 1
    recordings = []
    for number in range(wanted.num_sessions):
        found = record(rotated(trace, number), f"tasks from {number + 1}", _SEED + number)
        if len(found.steps) <= wanted.skip + 1:
            raise AcmError(f"the conversation has {len(found.steps)} turns: give less --skip, or more --tasks")
        recordings.append(replace(found, steps=found.steps[:end]))
    parts = []
    for cell, text in enumerate(wanted.policies):
        policy, limits = read_policy(text, wanted.limits)
        prompts = [plan_prompts(one, policy, limits, writer, tokenizer)[wanted.skip :] for one in recordings]
        repetitions = tuple(
            tuple(
                PlannedSession(one.name, f"{cell:03d}{repetition:02d}{number:03d}", tuple(prompts[number]))
                for number, one in enumerate(recordings)
            )
            for repetition in range(wanted.num_repetitions)
        )
        parts.append(PolicyPart(text, repetitions))
    return parts


def needed_window(parts: Iterable[PolicyPart], max_tokens: int) -> int:
    """Tokens that the longest prompt needs with its answer, a multiple of 256."""
    sessions = [session for part in parts for session in part.repetitions[0]]
    most = max(len(prompt.tokens) for session in sessions for prompt in session.prompts)
    return -(-(most + max_tokens + _SPARE_TOKENS) // 256) * 256


def digest(parts: Sequence[PolicyPart]) -> str:
    """Equal for equal prompts."""
    found = hashlib.sha256()
    for part in parts:
        for session in part.repetitions[0]:
            for prompt in session.prompts:
                found.update(repr((session.name, prompt.tokens)).encode())
    return found.hexdigest()[:16]
