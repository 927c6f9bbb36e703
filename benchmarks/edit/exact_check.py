"""`exact` held against plain requests, once a run, for benchmarks that have no stock engine beside them.

One fold, in an engine or server that is there anyway: under `exact`, under `reuse`, and without a session. What is
sent without a session shares no KV with the others, and vLLM serves it as it serves everybody.

    exact / plain    32 tokens, and log-probabilities within 1e-3: the gate of `bench edit`
    reuse / plain    the control: moved KV, taken for exact, has to fail. Not where nothing moved, nor with one layer

`bench edit`, `scale`, `trace` and `memory` have engines of stock vLLM, and compare with these.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import httpx

from acmserve.bench.edit.gate import AnswerDistance, check_control, compare_answers, longer
from acmserve.bench.edit.kinds import EditSizes, Tokens, plan_edits
from acmserve.bench.harness.engine import Ask, EngineReply
from acmserve.bench.harness.options import as_gate
from acmserve.errors import AcmError

Answer = Callable[[Ask], EngineReply]
SIZES = EditSizes(prefix=200, folded=300, suffix=500)
_EXACT, _REUSE, _PLAIN = "exact", "reuse", "plain"
_SECONDS = 900.0
_TOKEN_ID = "token_id:"


@dataclass(frozen=True, slots=True)
class ExactCheck:
    """Distances of `exact` and `reuse` to plain requests, the tokens that `reuse` moved, and whether it may tell."""

    exact: AnswerDistance
    reuse: AnswerDistance
    num_moved: int
    has_layers: bool

    @property
    def failures(self) -> list[str]:
        """Why no number of the run may be reported."""
        if not self.exact.is_same:
            return [f"exact answers otherwise than a plain request: {self.exact}"]
        return check_control([self.reuse]) if self.num_moved and self.has_layers else []

    def as_dict(self) -> dict[str, Any]:
        """JSON-ready."""
        return {
            **{name: found.as_dict() for name, found in (("of_exact", self.exact), ("of_reuse", self.reuse))},
            "moved_tokens": self.num_moved,
        }


def check_exact(answer: Answer, text: Tokens, *, has_layers: bool = True) -> ExactCheck:
    """Fold in three ways. `text` has the tokens of the model. A model that `has_layers` has more than one."""
    fold = plan_edits(text, 0, SIZES, num_rounds=1)[0]["fold"]
    expected = answer(longer(Ask(fold.prompt, _PLAIN)))
    replies = {}
    for fidelity in (_EXACT, _REUSE):
        told = (f"check {fidelity}", f"check {fidelity}", fidelity)
        answer(Ask(fold.turns[0], *told))
        replies[fidelity] = answer(longer(Ask(fold.prompt, *told)))
    exact, reuse = (compare_answers(replies[fidelity], expected) for fidelity in (_EXACT, _REUSE))
    return ExactCheck(exact, reuse, (replies[_REUSE].receipt or {}).get("moved_tokens", 0), has_layers)


def with_check(report: dict[str, Any], check: ExactCheck) -> dict[str, Any]:
    """The report with this check in its gate. Red numbers stay in the file, and no page takes them."""
    failures = [*check.failures, *report["gate"]["failures"]]
    return report | {"gate": as_gate(failures), "exact_check": check.as_dict()}


def over_http(url: str, model: str) -> Answer:
    """Answers of a server. The function raises AcmError where it has none."""

    def answer(ask: Ask) -> EngineReply:
        body: dict[str, Any] = {"model": model, "prompt": list(ask.token_ids), "max_tokens": ask.max_tokens}
        body |= {"temperature": 0, "ignore_eos": ask.ignore_eos, "cache_salt": ask.salt}
        body |= {"logprobs": ask.num_logprobs or 1, "return_tokens_as_token_ids": True}
        if ask.session_id is not None:
            body |= {"session_id": ask.session_id, "acm": {"fidelity": ask.fidelity}}
        try:
            told = httpx.post(f"{url}/v1/completions", json=body, timeout=_SECONDS, trust_env=False)
            return read_completion(told.raise_for_status().json())
        except (httpx.HTTPError, ValueError, LookupError, TypeError) as error:
            raise AcmError(f"the check of exact got no answer: {error}") from error

    return answer


def read_completion(told: Mapping[str, Any]) -> EngineReply:
    """Tokens, log-probabilities and receipt of an answer of /v1/completions that tells token ids."""
    (choice,) = told["choices"]
    tokens = tuple(map(read_token_id, choice["logprobs"]["tokens"]))
    logprobs = tuple(
        {read_token_id(name): value for name, value in one.items()} for one in choice["logprobs"]["top_logprobs"]
    )
    return EngineReply(0.0, 0, tokens, choice["text"], (told.get("acm") or {}).get("receipt"), logprobs)


def read_token_id(name: str) -> int:
    """The token of a name such as `token_id:42`, as vLLM writes it with `return_tokens_as_token_ids`."""
    return int(name.removeprefix(_TOKEN_ID))
