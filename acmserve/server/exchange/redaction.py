"""A redaction on a server with several engines: each of them forgets, before the request itself is sent.

    forgetting request  --> engine 0: one token, forget --> receipt --.
                        --> engine 1: one token, forget --> receipt ----> all there: the request itself

vLLM sends a request to one engine of its choice. Another one would go on moving KV that has seen the redacted text. A
receipt is the acknowledgement: an engine makes it after it has forgotten. Without one the request fails, and the
session stays to be forgotten.

Decision: the small requests repeat nothing of the prompt, so an engine forgets the exact prefix of the session, too. To
repeat the prompt would be to compute it everywhere.

Decision: `on_send` is called behind them, right before the request itself. What was redacted while they were under way
other requests may have made the engines forget, and the prompt brings it there again.

It does not know which engine served the session before.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import aclosing
from dataclasses import dataclass
from typing import Any

from acmserve.errors import InvalidRequest, Unavailable
from acmserve.plan.request import SessionParams
from acmserve.server.vllm.handlers import SamplingParams
from acmserve.server.vllm.taps import Generate


@dataclass(frozen=True, slots=True)
class Engines:
    """The data-parallel engines of a deployment, and how many of them this server can send a request to."""

    num_engines: int = 1
    num_reached: int = 1

    @classmethod
    def of(cls, parallel_config: Any) -> Engines:
        """As vLLM's configuration has it. Behind a balancer of its own a server reaches local engines alone."""
        num_engines = parallel_config.data_parallel_size
        num_local = parallel_config.data_parallel_size_local
        return cls(num_engines, num_local if parallel_config.local_engines_only else num_engines)

    def check_reaches_all(self) -> None:
        """Raise `InvalidRequest` when an engine could not be told to forget."""
        if self.num_reached < self.num_engines:
            raise InvalidRequest(
                "kv_transfer_params.acm.forget",
                f"this server reaches {self.num_reached} of {self.num_engines} engines, so a redaction would leave KV "
                "of the redacted text in the others.",
                "Start one server in front of all engines, or restart the engines to redact.",
            )


async def forget_first(
    generate: Generate, engines: Engines, params: SessionParams, cache_salt: str | None, request_id: str
) -> None:
    """Have every engine forget the session. Raises `Unavailable` when one of them does not say that it has."""
    acm = SessionParams(params.session_id, "exact", forget=True, account=params.account).as_acm()

    async def forget(rank: int) -> bool:
        sampling = SamplingParams(max_tokens=1, detokenize=False, extra_args={"kv_transfer_params": {"acm": acm}})
        prompt: dict[str, Any] = {"type": "token", "prompt_token_ids": [0]}
        if cache_salt is not None:
            prompt["cache_salt"] = cache_salt
        has_receipt = False
        outputs = generate(prompt, sampling, f"{request_id}-forget-{rank}", data_parallel_rank=rank)
        async with aclosing(outputs):
            async for output in outputs:
                has_receipt = has_receipt or "acm" in (output.kv_transfer_params or {})
        return has_receipt

    forgot = await asyncio.gather(*(forget(rank) for rank in range(engines.num_engines)))
    if not all(forgot):
        raise Unavailable(
            f"{forgot.count(False)} of {engines.num_engines} engines did not acknowledge a redaction; send it again"
        )


async def generate_after_forgetting(
    generate: Generate,
    engines: Engines,
    params: SessionParams,
    on_send: Callable[[], None],
    prompt: Any,
    sampling_params: Any,
    request_id: str,
    **kwargs: Any,
) -> AsyncGenerator[Any, None]:
    """The outputs of a forgetting request, which is sent when every engine has forgotten."""
    salt = prompt.get("cache_salt") if isinstance(prompt, Mapping) else None
    await forget_first(generate, engines, params, salt, request_id)
    on_send()
    async with aclosing(generate(prompt, sampling_params, request_id, **kwargs)) as outputs:
        async for output in outputs:
            yield output
