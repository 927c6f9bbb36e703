"""Drafts for the simulator's requests: the next tokens as the model will sample them, and then something else.

How many are right is drawn from the request and its length, so that a script has the same drafts each time.
"""

from __future__ import annotations

import random
from collections.abc import Iterable, Mapping

from vllm.v1.outputs import DraftTokenIds
from vllm.v1.request import Request

from tests.support.simulator.slots import Reader
from tests.support.simulator.truth import OUTPUT_TOKENS


def make_drafts(
    request_ids: Iterable[str], requests: Mapping[str, Request], readers: Mapping[str, Reader], num_drafts: int
) -> DraftTokenIds:
    """Up to `num_drafts` for each request that is still alive, behind all tokens that it has."""
    alive = [request_id for request_id in request_ids if request_id in requests]
    return DraftTokenIds(
        alive, [drafts_behind(requests[request_id].num_tokens, readers[request_id], num_drafts) for request_id in alive]
    )


def drafts_behind(num_tokens: int, reader: Reader, num_drafts: int) -> list[int]:
    """Up to `num_drafts` behind the first `num_tokens` tokens of a request."""
    rng = random.Random(f"{reader.request_id} {num_tokens}")
    num_made, num_right = rng.randint(0, num_drafts), rng.randint(0, num_drafts)
    tokens = [reader.sequence.token(num_tokens + index) for index in range(num_made)]
    return [token if index < num_right else _another(rng, token) for index, token in enumerate(tokens)]


def _another(rng: random.Random, token: int) -> int:
    return rng.choice([other for other in OUTPUT_TOKENS if other != token])
