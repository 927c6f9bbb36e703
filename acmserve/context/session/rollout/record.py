"""The rollout record of a session: each completion with its token ids, each operation with its place in time.

    completion 0   prompt [ a b c d ]            sampled [ x y ]
    completion 1   prompt [ a b c d x y | e f ]  sampled [ z ]      parent 0, kept 6, tail [ e f ]
    completion 2   prompt [ a b M | e f z g ]    sampled [ w ]      parent 1, kept 2: a fold changed what follows

An immutable value that only grows. A prompt is kept as what it adds to that of its parent, so the record is linear in
tokens. The parent is the completion of its own family of threads with the longest common prefix, where there is one,
else of all. Among equal ones its own thread wins, then the latest. So a retaken turn, a fold and a branch need no case
of their own. By the same rule, what follows a branch goes on from the main conversation. A family is a thread and its
samples.

It knows neither sessions nor who samples. `lines.py` writes it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum
from typing import Any

from acmserve.errors import Conflict, IntegrityError

MAIN_THREAD = "main"
_SAMPLE = "#"
_AT_ONCE = 1024
"""Tokens that are compared at once. Of what differs early little is looked at, however long it is."""


class Initiator(Enum):
    """Who asked for an operation. `SUMMARY` is an eviction that had a model write a summary."""

    MODEL = "model"
    CALLER = "caller"
    POLICY = "policy"
    SUMMARY = "summary"


@dataclass(frozen=True, slots=True)
class RolloutHeader:
    """The model that was sampled, and the suite of tools that it was offered."""

    model: str
    suite: str | None = None


@dataclass(frozen=True, slots=True)
class CalledTool:
    """One tool call of a completion. `operation` is None for a tool that is not the session's."""

    name: str
    operation: str | None = None


@dataclass(frozen=True, slots=True)
class Sampled:
    """What the engine sampled for one prompt. `logprobs` is None where they were not asked for."""

    token_ids: tuple[int, ...]
    logprobs: tuple[float, ...] | None = None
    finish_reason: str = "stop"
    format_error: str | None = None
    tool_calls: tuple[CalledTool, ...] = ()


@dataclass(frozen=True, slots=True)
class RolloutCompletion:
    """`tail` is the served prompt behind its first `num_kept` tokens, which are those of the parent."""

    number: int
    thread: str
    parent: int | None
    sample: int
    num_kept: int
    tail: tuple[int, ...]
    sampled: Sampled


@dataclass(frozen=True, slots=True)
class RolloutOperation:
    """`after` is the number of the completion before it, -1 where there is none."""

    number: int
    after: int
    by: Initiator
    name: str
    arguments: Mapping[str, Any] = field(default_factory=dict)
    saved_tokens: int | None = None


RolloutEvent = RolloutCompletion | RolloutOperation


@dataclass(frozen=True, slots=True)
class RolloutRecord:
    """`header` is None while nothing was recorded."""

    header: RolloutHeader | None = None
    events: tuple[RolloutEvent, ...] = ()

    @property
    def completions(self) -> list[RolloutCompletion]:
        """In order of their numbers."""
        return [event for event in self.events if isinstance(event, RolloutCompletion)]

    def begun(self, model: str, suite: str | None) -> RolloutRecord:
        """The record of this model and suite. Raises `Conflict` where it is that of another one."""
        before = self.header
        if before is None:
            return replace(self, header=RolloutHeader(model, suite))
        if before.model != model:
            raise _other("model", before.model, model)
        if suite is None or before.suite == suite:
            return self
        if before.suite is not None:
            raise _other("suite", before.suite, suite)
        return replace(self, header=RolloutHeader(model, suite))

    def completed(self, prompt: Sequence[int], sampled: Sampled, thread: str, sample: int = 0) -> RolloutRecord:
        """The record with one more completion."""
        known = self.completions
        parent, num_kept = _parent_of(known, prompt, thread)
        made = RolloutCompletion(len(known), thread, parent, sample, num_kept, tuple(prompt[num_kept:]), sampled)
        return replace(self, events=(*self.events, made))

    def operated(
        self, by: Initiator, name: str, arguments: Mapping[str, Any], saved_tokens: int | None
    ) -> RolloutRecord:
        """The record with one more operation."""
        num_completions = len(self.completions)
        number = len(self.events) - num_completions
        made = RolloutOperation(number, num_completions - 1, by, name, arguments, saved_tokens)
        return replace(self, events=(*self.events, made))

    def emptied(self) -> RolloutRecord:
        """The record without its events: what was in them may not be kept."""
        return replace(self, events=())

    def prompt(self, number: int) -> list[int]:
        """The prompt of a completion as it was served."""
        completions = self.completions
        needed = [completions[number]]
        while (parent := needed[-1].parent) is not None:
            needed.append(completions[parent])
        tokens: list[int] = []
        for made in reversed(needed):
            prompt = [*tokens[: made.num_kept], *made.tail]
            tokens = [*prompt, *made.sampled.token_ids]
        return prompt

    def check_integrity(self) -> None:
        """Raise `IntegrityError` with the numbers when the order is broken, or a parent has fewer tokens than kept."""
        if self.events and self.header is None:
            raise IntegrityError(f"rollout: {len(self.events)} events without a header")
        lengths: list[int] = []
        num_operations = 0
        for event in self.events:
            if isinstance(event, RolloutOperation):
                if (event.number, event.after) != (num_operations, len(lengths) - 1):
                    raise IntegrityError(
                        f"rollout: operation {event.number} after completion {event.after} stands as number "
                        f"{num_operations} after {len(lengths) - 1}"
                    )
                num_operations += 1
                continue
            if event.number != len(lengths):
                raise IntegrityError(f"rollout: completion {event.number} stands as number {len(lengths)}")
            _check_completion(event, lengths)
            lengths.append(event.num_kept + len(event.tail) + len(event.sampled.token_ids))


NO_ROLLOUT = RolloutRecord()


def _check_completion(made: RolloutCompletion, lengths: Sequence[int]) -> None:
    known = 0
    if made.parent is not None:
        if not 0 <= made.parent < made.number:
            raise IntegrityError(f"rollout: completion {made.number} has the parent {made.parent}")
        known = lengths[made.parent]
    if not 0 <= made.num_kept <= known:
        raise IntegrityError(f"rollout: completion {made.number} keeps {made.num_kept} of {known} tokens")
    logprobs = made.sampled.logprobs
    if logprobs is not None and len(logprobs) != len(made.sampled.token_ids):
        raise IntegrityError(
            f"rollout: completion {made.number} has {len(made.sampled.token_ids)} tokens and {len(logprobs)} logprobs"
        )


def _parent_of(known: Sequence[RolloutCompletion], prompt: Sequence[int], thread: str) -> tuple[int | None, int]:
    """The completion that a prompt goes on from or edits, and how many tokens the two have in common.

    A completion that differs from the prompt before its own first token shares with it what its parent shares.
    """
    shared: list[int] = []
    family = {made.number for made in known if family_of(made.thread) == family_of(thread)}
    best: tuple[int, bool, int] = (0, False, -1)
    for made in known:
        num = 0 if made.parent is None else shared[made.parent]
        if num >= made.num_kept:
            num = made.num_kept + num_common(made.tail, prompt, made.num_kept)
            if num == made.num_kept + len(made.tail):
                num += num_common(made.sampled.token_ids, prompt, num)
        shared.append(num)
        if not family or made.number in family:
            best = max(best, (num, made.thread == thread, made.number))
    num_kept, _, number = best
    return (number, num_kept) if num_kept else (None, 0)


def sample_thread(thread: str, sample: int) -> str:
    """The thread of one of several answers to a prompt. The first one stays in the thread of the prompt."""
    return f"{thread}{_SAMPLE}{sample}" if sample else thread


def family_of(thread: str) -> str:
    """The thread to which samples belong."""
    return thread.partition(_SAMPLE)[0]


def num_common(one: Sequence[int], other: Sequence[int], start: int = 0) -> int:
    """How many tokens a sequence, and another one from `start` on, begin with in common."""
    end = min(len(one), len(other) - start)
    for first in range(0, end, _AT_ONCE):
        last = min(first + _AT_ONCE, end)
        mine, theirs = tuple(one[first:last]), tuple(other[start + first : start + last])
        if mine != theirs:
            return first + next(n for n, (left, right) in enumerate(zip(mine, theirs, strict=True)) if left != right)
    return end


def _other(what: str, before: str, now: str) -> Conflict:
    return Conflict(
        "acm.rollout",
        f"the record of this session is of the {what} {before!a}, this request has {now!a}.",
        "Begin a new session, or send acm.rollout: false.",
    )
