"""Turns of a script as vLLM's requests."""

from __future__ import annotations

from vllm.lora.request import LoRARequest
from vllm.sampling_params import SamplingParams
from vllm.v1.request import Request

from tests.support.simulator.machine import BlockHasher
from tests.support.simulator.requests.media import features_of, fed
from tests.support.simulator.scripts import Turn


def as_request(turn: Turn, hasher: BlockHasher, arrival_time: float = 0.0) -> Request:
    """A turn that names no fidelity names its session the way vLLM does, else in `kv_transfer_params`."""
    flags = {"forget": turn.forget, "precompute": turn.precompute}
    acm = {"session_id": turn.session, "fidelity": turn.fidelity, "repair": turn.repair, **flags}
    acm |= {"account": turn.account} if turn.account else {}
    acm |= {"level": turn.level} if turn.level else {}
    acm |= {"foldable": [list(span) for span in turn.foldable]} if turn.foldable else {}
    in_acm = turn.fidelity is not None or any(flags.values()) or bool(turn.foldable)
    return Request(
        request_id=turn.request_id,
        prompt_token_ids=[fed(token) for token in turn.prompt],
        sampling_params=SamplingParams(
            temperature=0.0,
            max_tokens=turn.max_tokens,
            stop_token_ids=list(turn.stop_tokens),
            extra_args={"kv_transfer_params": {"acm": acm}} if in_acm else None,
        ),
        pooling_params=None,
        arrival_time=arrival_time,
        cache_salt=turn.salt,
        priority=turn.priority,
        session_id=None if in_acm else turn.session,
        mm_features=features_of(turn.prompt),
        lora_request=None if turn.adapter is None else _lora(turn.adapter),
        block_hasher=hasher,
    )


def _lora(number: int) -> LoRARequest:
    """Adapters 1 and 3 have one name and one path: the second is a later load."""
    name = "ab"[number % 2]
    return LoRARequest(name, number, f"/nowhere/{name}")
