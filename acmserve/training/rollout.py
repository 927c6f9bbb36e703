"""A rollout: what one session was served and sampled, as a tree of completions. Its memory is linear in its tokens.

    number 0   [prompt .......... | sampled]
    number 1   [kept from 0 ................][tail | sampled]        extends 0
    number 2   [kept ...][tail behind a fold ....... | sampled]      edits 1

A completion keeps only the tail of its prompt. The rest stands in its parent, or further up. Knows no file format.

Decision: a prompt is put together on demand, by a walk up the tree. Kept whole, prompts would take quadratic memory.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from acmserve.errors import IntegrityError

TokenIds = NDArray[np.int32]
MAIN = "main"
"""The thread of a session that is no branch. Further samples of its prompts are in `main#1` and so on."""


@dataclass(frozen=True, slots=True)
class SampledCall:
    """One tool call of a completion. `operation` is what it did to the context, None for a client's tool."""

    name: str
    operation: str | None


@dataclass(frozen=True, slots=True, eq=False)
class SampledCompletion:
    """One completion. Its prompt is the first `kept_tokens` of its parent's sequence, and `tail` behind them.

    A sequence is a prompt with the tokens sampled behind it. `logprobs` are those of the sampled tokens.
    """

    number: int
    thread: str
    parent: int | None
    sample: int
    kept_tokens: int
    tail: TokenIds
    token_ids: TokenIds
    logprobs: NDArray[np.float32] | None
    finish_reason: str
    format_error: str | None
    calls: tuple[SampledCall, ...]

    @property
    def prompt_tokens(self) -> int:
        return self.kept_tokens + len(self.tail)

    @property
    def num_tokens(self) -> int:
        """Tokens of the sequence."""
        return self.prompt_tokens + len(self.token_ids)


@dataclass(frozen=True, slots=True)
class ContextOperation:
    """One edit of the context. `after` is the completion before it, -1 in front of the first.

    `by` is `model`, `caller`, `policy` or `summary`.
    """

    number: int
    after: int
    by: str
    name: str
    arguments: Mapping[str, object]
    saved_tokens: int | None


def is_main(thread: str) -> bool:
    """Whether a thread is that of the session, and of no branch."""
    return thread.partition("#")[0] == MAIN


@dataclass(frozen=True)
class Rollout:
    """One session. Numbers of completions rise, and a parent has a lower number than its children."""

    session_id: str
    model: str
    suite: object
    completions: Mapping[int, SampledCompletion]
    operations: tuple[ContextOperation, ...] = ()
    _children: dict[int, list[int]] = field(init=False, repr=False, compare=False, default_factory=dict)

    def __post_init__(self) -> None:
        for completion in self.completions.values():
            if completion.parent is not None:
                self._children.setdefault(completion.parent, []).append(completion.number)

    def prompt_ids(self, number: int) -> TokenIds:
        """The prompt of a completion as it was served."""
        return self._first_ids(number, self.completions[number].prompt_tokens)

    def sequence_ids(self, number: int) -> TokenIds:
        """The prompt with what was sampled behind it."""
        return self._first_ids(number, self.completions[number].num_tokens)

    def children(self, number: int) -> Iterable[SampledCompletion]:
        """The completions whose prompts extend or edit the sequence of this one, in order."""
        return (self.completions[child] for child in self._children.get(number, ()))

    def part(self, numbers: Iterable[int]) -> Rollout:
        """The rollout of these completions alone, with those that their prompts go on from."""
        needed: set[int] = set()
        for number in numbers:
            above: int | None = number
            while above is not None and above not in needed:
                needed.add(above)
                above = self.completions[above].parent
        return replace(self, completions={number: self.completions[number] for number in sorted(needed)})

    def extends(self, child: SampledCompletion) -> bool:
        """Whether the prompt begins with the whole sequence of the parent."""
        return child.parent is not None and child.kept_tokens == self.completions[child.parent].num_tokens

    @cached_property
    def num_calls(self) -> int:
        """All tool calls of the model."""
        return sum(len(completion.calls) for completion in self.completions.values())

    @cached_property
    def longest_sequence(self) -> int:
        """Tokens of the longest prompt with its completion."""
        return max((completion.num_tokens for completion in self.completions.values()), default=0)

    @cached_property
    def has_format_error(self) -> bool:
        return any(completion.format_error is not None for completion in self.completions.values())

    @property
    def stored_tokens(self) -> int:
        """Tokens that are kept in memory."""
        return sum(len(completion.tail) + len(completion.token_ids) for completion in self.completions.values())

    def check_integrity(self) -> None:
        """Raise IntegrityError when a completion does not fit its parent, or has logprobs of another length."""
        for number, completion in self.completions.items():
            parent = None if completion.parent is None else self.completions.get(completion.parent)
            if completion.number != number or (completion.parent is not None and parent is None):
                raise IntegrityError(f"completion {number} has number {completion.number}, parent {completion.parent}")
            if parent is not None and parent.number >= number:
                raise IntegrityError(f"completion {number} has the later parent {parent.number}")
            bound = 0 if parent is None else parent.num_tokens
            if not 0 <= completion.kept_tokens <= bound:
                raise IntegrityError(f"completion {number} keeps {completion.kept_tokens} of {bound} tokens")
            if completion.logprobs is not None and len(completion.logprobs) != len(completion.token_ids):
                raise IntegrityError(
                    f"completion {number} has {len(completion.logprobs)} logprobs of {len(completion.token_ids)} tokens"
                )

    def _first_ids(self, number: int, num_tokens: int) -> TokenIds:
        """The first tokens of a sequence. Each completion on the way up fills in what it has beyond its kept ones."""
        ids = np.empty(num_tokens, dtype=np.int32)
        while num_tokens:
            completion = self.completions[number]
            kept, prompt = completion.kept_tokens, completion.prompt_tokens
            if num_tokens > prompt:
                ids[prompt:num_tokens] = completion.token_ids[: num_tokens - prompt]
            if num_tokens > kept:
                ids[kept : min(prompt, num_tokens)] = completion.tail[: num_tokens - kept]
            num_tokens = min(num_tokens, kept)
            if num_tokens:
                assert completion.parent is not None
                number = completion.parent
        return ids
