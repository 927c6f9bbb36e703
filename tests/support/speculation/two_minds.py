"""An engine client whose exact answers and drafts are functions of the tokens, with vLLM's outputs.

    exact    the next token is a function of all tokens
    draft    the same, but for some positions, at which it says another token

It does with sampling parameters what the engine core does with them: it knows the stop token and the number of tokens.
It has neither text nor stop strings for requests that are tokens only. What stands in its cache has no rank.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from vllm.logprobs import Logprob
from vllm.outputs import CompletionOutput, RequestOutput

STOP = 7
VOCABULARY = 300


def exact_token(tokens: Sequence[int]) -> int:
    """The likeliest token behind these."""
    return (31 * tokens[-1] + 17 * tokens[-2] + 5 * len(tokens)) % VOCABULARY


@dataclass
class TwoMinds:
    """See the module. `differs` says at which length of the sequence a draft goes wrong. `names` are requests sent.

    A draft has `num_ahead` tokens when the exact request begins to answer. `moves` is what its receipt says was moved.
    An exact request that `is_prefilling` never begins to answer. `num_cached_drafts` are tokens of the draft that the
    request that verifies them finds in the cache. A draft may fail behind `fails_draft_at` tokens. The engine ends the
    request `aborts` by itself, without a token.
    """

    differs: Callable[[int], bool] = lambda num_tokens: False
    num_ahead: int = 20
    moves: int = 900
    num_cached_drafts: int = 0
    is_prefilling: bool = False
    fails_draft_at: int | None = None
    aborts: str = ""
    names: list[str] = field(default_factory=list)
    params: dict[str, Any] = field(default_factory=dict)
    open: set[str] = field(default_factory=set)
    _ahead: asyncio.Event = field(default_factory=asyncio.Event)

    async def generate(self, prompt: Any, sampling: Any, request_id: str, **_: Any) -> AsyncGenerator[Any, None]:
        """The outputs of one request, a token each."""
        name = request_id.partition("-")[2] or "exact"
        self.names.append(name)
        self.open.add(name)
        acm = sampling.extra_args["kv_transfer_params"]["acm"]
        self.params[name] = (acm, sampling)
        try:
            if name == "exact" and "draft" in self.open:
                await self._ahead.wait()
            if name == "exact" and self.is_prefilling:
                await asyncio.Event().wait()
            tokens, sent = list(prompt["prompt_token_ids"]), 0
            ranked = self._ranked(tokens, acm) if sampling.prompt_logprobs is not None else None
            finish = None
            if name == self.aborts:
                yield self._output(prompt, None, request_id, [], "abort", acm)
                return
            while finish is None:
                if name == "draft" and sent == self.fails_draft_at:
                    self._ahead.set()
                    raise RuntimeError("the draft failed")
                token = exact_token(tokens)
                if name == "draft" and self.differs(len(tokens)):
                    token = (token + 1) % VOCABULARY
                tokens.append(token)
                sent += 1
                finish = "stop" if token == STOP else "length" if sent == sampling.max_tokens else None
                yield self._output(prompt, ranked, request_id, [token], finish, acm)
                if name == "draft" and (sent == self.num_ahead or finish):
                    self._ahead.set()
                    await asyncio.Event().wait()
                await asyncio.sleep(0)
        finally:
            self.open.discard(name)

    def _ranked(self, tokens: list[int], acm: Any) -> list[Any]:
        """An entry for each token of the prompt. What stands in the cache has a rank that means nothing."""
        return [None] + [
            {token: Logprob(-1.0, 1 if exact_token(tokens[:at]) == token else 2, None)} if at > 1 else {token: None}
            for at, token in enumerate(tokens)
            if at
        ]

    def _output(
        self, prompt: Any, ranked: Any, request_id: str, tokens: list[int], finish: str | None, acm: Any
    ) -> Any:
        num = len(prompt["prompt_token_ids"])
        moved = self.moves if acm.get("draft") else 0
        kept = 200 + self.num_cached_drafts if ranked is not None else 0
        receipt = {
            "prompt_tokens": num,
            "kept_tokens": kept,
            "moved_tokens": moved,
            "computed_tokens": num - kept - moved,
        }
        completion = CompletionOutput(0, "", tokens, None, None, finish_reason=finish)
        transfer = {"acm": {"session_id": acm["session_id"], "receipt": receipt}}
        made = RequestOutput(request_id, None, prompt["prompt_token_ids"], ranked, [completion], finish is not None)
        made.kv_transfer_params = transfer
        return made
