"""Which data-parallel rank a session goes to: the one that holds its KV, whatever else the ranks do.

    session "agent-7"   rank 0: 0x41..   rank 1: 0xd3..   rank 2: 0x7a..      the largest hash wins: rank 1

Rendezvous hashing keeps no table, so several API servers agree without a word. Where a rank is added, only the sessions
that it wins move, one of n. vLLM's own balancer looks at load alone, and rotates ties.

It knows no load. A rank that the caller named counts before this one.
"""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING

from acmserve.engine.requests.admission import read_params
from acmserve.errors import InvalidRequest

if TYPE_CHECKING:
    from acmserve.engine.vllm.types import PoolingParams, SamplingParams


def rank_of(session_id: str, num_ranks: int) -> int:
    """The rank of a session, by the name that the engine knows."""
    return max(range(num_ranks), key=lambda rank: _weight(session_id, rank))


def place_request(
    params: SamplingParams | PoolingParams | None, session_id: str | None, num_ranks: int, is_piece: bool = False
) -> int | None:
    """The rank of a request's session, None where any will do. Raises `InvalidRequest` for a malformed session.

    `is_piece` is set for a piece of streaming input. Of those behind the first the engine never reads the session.
    """
    session = read_params(params, session_id)
    if is_piece and session is not None and session.forget:
        raise InvalidRequest("acm.forget", "cannot go with streaming input; send a request of its own before it")
    return None if session is None or num_ranks < 2 else rank_of(session.session_id, num_ranks)


def _weight(session_id: str, rank: int) -> bytes:
    return hashlib.blake2b(f"{rank}\n{session_id}".encode("utf-8", "surrogatepass"), digest_size=8).digest()
