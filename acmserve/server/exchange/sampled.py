"""What the engine was asked and what it sampled, in token ids, for each answer of one request.

    engine's outputs   {index 0, [x]} {index 1, [p q]} {index 0, [y], "stop"} ...      in deltas, or whole each time
    kept               0: [x y] "stop"    1: [p q ..] ..                               with log probabilities when asked

An answer in text does not give its tokens back, and what is trained has to be what was sampled. It knows vLLM's outputs
by their fields, neither sessions nor answers.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

LEAST_LOGPROB = -9999.0
"""Stands for minus infinity, which JSON cannot say, as in vLLM's answers."""


@dataclass(slots=True)
class SampledAnswer:
    """One answer so far. `text` is the model's own, tool calls included.

    `logprobs` are those of the sampled tokens, None where they were not asked for.
    """

    token_ids: list[int] = field(default_factory=list)
    text: str = ""
    logprobs: list[float] | None = None
    finish_reason: str | None = None


@dataclass(slots=True)
class SampledAnswers:
    """The prompt as it was served, and the answers by their index."""

    prompt: Sequence[int] = ()
    answers: dict[int, SampledAnswer] = field(default_factory=dict)

    def begin(self) -> None:
        """The request is sent, perhaps once more."""
        self.prompt, self.answers = (), {}

    def take(self, output: Any, *, in_deltas: bool) -> None:
        """Take in an output of the engine."""
        self.prompt = output.prompt_token_ids or self.prompt
        for completion in output.outputs:
            answer = self.answers.setdefault(completion.index, SampledAnswer())
            if not in_deltas:
                answer.token_ids, answer.text, answer.logprobs = [], "", None
            if completion.logprobs is not None:
                found = zip(completion.token_ids, completion.logprobs, strict=True)
                answer.logprobs = [*(answer.logprobs or ()), *(find_logprob(token, among) for token, among in found)]
            answer.token_ids.extend(completion.token_ids)
            answer.text += completion.text
            answer.finish_reason = completion.finish_reason or answer.finish_reason

    def answer(self, index: int = 0) -> SampledAnswer:
        """The answer of that index, empty where the engine gave none."""
        return self.answers.get(index, SampledAnswer())


def find_logprob(token: int, among: Mapping[int, Any] | None) -> float:
    """The log probability of a sampled token. The engine lists it beside the likeliest ones."""
    found = None if among is None else among.get(token)
    return LEAST_LOGPROB if found is None else max(float(found.logprob), LEAST_LOGPROB)
