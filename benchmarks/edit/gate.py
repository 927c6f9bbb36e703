"""Whether `exact` answers as stock vLLM does: 32 greedy tokens, and the log-probabilities of the likeliest ones.

    exact / stock    every token is the same, and every log-probability is within 1e-3
    reuse / stock    the control: moved KV, taken for exact, has to fail in at least one kind of edit

One token says little: moved KV mostly gives the right one, too. Log-probabilities tell them apart. A restore moves
nothing that has changed, so its control may pass. Pure. Knows answers, and no engine.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import takewhile
from typing import Any

from acmserve.bench.harness.engine import Ask, EngineReply

NUM_TOKENS = 32
NUM_LISTED = 20
"""Log-probabilities that are asked for. vLLM tells no more by default."""
NUM_COMPARED = 10
TOLERANCE = 1e-3
MIN_REUSED_SHARE = 0.9


@dataclass(frozen=True, slots=True)
class AnswerDistance:
    """How far one answer is from another: `num_same` of `num_tokens` tokens agree, up to the first that does not.

    `largest_difference` is that of log-probabilities, in nats, up to and with that token. It is infinite where one of
    the likeliest tokens is not even listed by the other answer.
    """

    num_tokens: int
    num_same: int
    largest_difference: float

    @property
    def is_same(self) -> bool:
        """Whether the gate lets it pass."""
        return self.num_same == self.num_tokens and self.largest_difference <= TOLERANCE

    def __str__(self) -> str:
        return f"{self.num_same} of {self.num_tokens} tokens, log-probabilities {self.largest_difference:.2g} apart"

    def as_dict(self) -> dict[str, Any]:
        """JSON-ready. An infinite difference is null."""
        told = asdict(self)
        return told if math.isfinite(self.largest_difference) else told | {"largest_difference": None}


def compare_answers(one: EngineReply, stock: EngineReply) -> AnswerDistance:
    """How far an answer is from that of stock vLLM to the same prompt."""
    num_tokens = max(len(one.token_ids), len(stock.token_ids))
    differences = [abs(listed.get(token, -math.inf) - logprob) for listed, token, logprob in likeliest(one, stock)]
    return AnswerDistance(num_tokens, num_common(one.token_ids, stock.token_ids), max(differences, default=math.inf))


def likeliest(one: EngineReply, stock: EngineReply) -> Iterator[tuple[Mapping[int, float], int, float]]:
    """Each of the likeliest tokens of stock, with its log-probability, and what the other answer lists in its place.

    Behind the first other token, the two continue different texts.
    """
    num_same = num_common(one.token_ids, stock.token_ids)
    for listed, expected in list(zip(one.logprobs, stock.logprobs, strict=False))[: num_same + 1]:
        for token, logprob in sorted(expected.items(), key=lambda item: -item[1])[:NUM_COMPARED]:
            yield listed, token, logprob


def num_common(one: Sequence[int], other: Sequence[int]) -> int:
    """How many tokens two texts have in common, from their beginning."""
    return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(one, other, strict=False)))


def longer(ask: Ask) -> Ask:
    """The same request with an answer that can be compared."""
    return replace(ask, max_tokens=NUM_TOKENS, num_logprobs=NUM_LISTED, ignore_eos=True)


def why_not_reused(receipt: Mapping[str, Any], num_front: int, num_behind: int) -> list[str]:
    """A fast first token only counts when the text behind the edit really came along. What is repaired of it did."""
    served = receipt["kept_tokens"] + receipt["moved_tokens"] + receipt.get("repaired_tokens", 0)
    reused = served - num_front
    if reused >= MIN_REUSED_SHARE * num_behind:
        return []
    return [f"reused {reused} of the {num_behind} tokens behind the edit ({receipt['fallback_reason']})"]


def check_control(controls: Sequence[AnswerDistance]) -> list[str]:
    """Why the gate would prove nothing: it lets moved KV pass as exact, whatever the edit."""
    if controls and all(one.is_same for one in controls):
        return [f"moved KV passes as exact in all {len(controls)} kinds of edit, so the gate sees no move"]
    return []
