"""Log probabilities of an answer's tokens: as they were sampled, and again behind a prompt that is given.

    AnswerScores   logprobs=0          that of each sampled token, as the answer comes
    PromptScores   prompt_logprobs=0   that of the last tokens of a prompt: an answer, put behind what it answered

A client sees nothing of it: what it did not ask for is taken out of the engine's outputs. It knows no sessions.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from acmserve.server.exchange.sampled import find_logprob
from acmserve.server.vllm.prompt_scores import score_last_tokens

MAX_SCORED = 256
"""Tokens of an answer that are judged, its first ones. Later ones say less of the context, and cost as much."""
MILD_PENALTY = 1.2
"""A repetition penalty that models come with. Their answers are judged all the same."""


@dataclass(frozen=True, slots=True)
class ScoredAnswer:
    """The first tokens of an answer, with the log probability that each was sampled with."""

    token_ids: tuple[int, ...]
    logprobs: tuple[float, ...]

    @property
    def num_bytes(self) -> int:
        """Host memory, about."""
        return 64 * len(self.token_ids)


class TokenScores(Protocol):
    """What one exchange asks of the engine beside its answer. `prompt` takes the place of what was rendered."""

    @property
    def prompt(self) -> Sequence[int] | None:
        """Token ids, None for those that were rendered."""

    def ask(self, sampling_params: Any) -> None:
        """The request is sent, perhaps once more."""

    def take(self, output: Any, *, in_deltas: bool) -> None:
        """Take them out of an output of the engine."""

    def scored(self) -> ScoredAnswer | None:
        """The answer's own, None where it has none."""


def is_own_choice(sampling: Any) -> bool:
    """Whether the tokens are drawn as the model weighs them, or closer to its likeliest ones.

    What a grammar, a bias, a bound or a penalty forces on it is unlikely whatever it has read. So is what it says
    when it is hot. Such tokens show a difference where there is no harm.
    """
    forced = (
        sampling.structured_outputs,
        sampling.logit_bias,
        sampling.allowed_token_ids,
        sampling.bad_words,
        sampling.min_tokens,
        sampling.trace_decode_token_ids,
        sampling.thinking_token_budget is not None,
        sampling.temperature > 1,
        sampling.presence_penalty,
        sampling.frequency_penalty,
        sampling.repetition_penalty > MILD_PENALTY,
    )
    return not any(forced)


@dataclass(slots=True)
class AnswerScores:
    """Those of the session's own answer, the first of several. None of one that was not its own choice."""

    prompt: Sequence[int] | None = None
    _hides: bool = False
    _is_own_choice: bool = True
    _token_ids: list[int] = field(default_factory=list)
    _logprobs: list[float] = field(default_factory=list)

    def ask(self, sampling_params: Any) -> None:
        """Have the engine tell the sampled tokens' own, and none besides, unless the client asks for more.

        Those of tokens that the client names come beside the sampled one's. vLLM takes no other number there.
        """
        self._token_ids, self._logprobs = [], []
        self._is_own_choice = is_own_choice(sampling_params)
        if not self._is_own_choice:
            return
        if sampling_params.logprobs is None and not sampling_params.logprob_token_ids:
            sampling_params.logprobs, self._hides = 0, True

    def take(self, output: Any, *, in_deltas: bool) -> None:
        """Take in what is new, and hide it where the client did not ask."""
        for completion in output.outputs:
            if completion.index == 0 and self._is_own_choice:
                self._add(completion, in_deltas)
            if self._hides:
                completion.logprobs = completion.cumulative_logprob = None

    def _add(self, completion: Any, in_deltas: bool) -> None:
        if not in_deltas:
            self._token_ids, self._logprobs = [], []
        num_wanted = MAX_SCORED - len(self._token_ids)
        if completion.logprobs is None or num_wanted <= 0:
            return
        for token, among in list(zip(completion.token_ids, completion.logprobs, strict=False))[:num_wanted]:
            self._token_ids.append(token)
            self._logprobs.append(find_logprob(token, among))

    def scored(self) -> ScoredAnswer | None:
        """The answer as far as it is judged."""
        return ScoredAnswer(tuple(self._token_ids), tuple(self._logprobs)) if self._token_ids else None


@dataclass(slots=True)
class PromptScores:
    """Those of the last `num_scored` tokens of `prompt`. `logprobs` is empty until the engine has told them."""

    prompt: Sequence[int]
    num_scored: int = 0
    logprobs: list[float] = field(default_factory=list)

    def ask(self, sampling_params: Any) -> None:
        """Have the engine tell them, and read the prefix cache all the same. No text is made of tokens."""
        sampling_params.detokenize = False
        if self.num_scored:
            score_last_tokens(sampling_params, self.num_scored)

    def take(self, output: Any, *, in_deltas: bool) -> None:
        """Take in the last rows. A request that ended early has none."""
        rows = output.prompt_logprobs
        output.prompt_logprobs = None
        if not rows or not self.num_scored or len(rows) < self.num_scored:
            return
        tokens = self.prompt[-self.num_scored :]
        found: Sequence[Mapping[int, Any] | None] = [rows[place] for place in range(-self.num_scored, 0)]
        self.logprobs = [find_logprob(token, among) for token, among in zip(tokens, found, strict=True)]

    def covered(self, receipt: Mapping[str, Any]) -> list[float]:
        """The log probabilities of the last tokens that were computed.

        prompt     [ kept ........ ][ computed ..... ]     the row of a token is that of the one before it:
        tokens                  [ not ][ covered .... ]    the first computed one tells of the second
        """
        first = len(self.prompt) - self.num_scored
        return self.logprobs[max(0, receipt["kept_tokens"] + 1 - first) :]

    def scored(self) -> ScoredAnswer | None:
        """A background request has no answer."""
        return None
