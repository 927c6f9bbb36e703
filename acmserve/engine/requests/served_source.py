"""What a finished request leaves for later contexts: its tokens, their block hashes, and a key for its partial block.

    computed   [ block )[ block )[ block )[ rest )
    source     | hash  | hash  | hash  | tail key |        the last token that was sampled went through no step

Knows the request and its session. Does not know the cache, so it does not know whether the rest can be kept.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from acmserve.engine.requests.admission import num_served_tokens
from acmserve.engine.requests.session_request import SessionRequest
from acmserve.plan.lineage import digest, marks_in
from acmserve.plan.source import ServedSequence, tail_digest

if TYPE_CHECKING:
    from acmserve.engine.vllm.types import Request


def plan_source(session: SessionRequest, request: Request, block_size: int, min_tokens: int) -> ServedSequence | None:
    """The tokens whose KV is computed, in blocks of `block_size`. None where they are fewer than `min_tokens`."""
    num_tokens = num_served_tokens(request)
    if num_tokens < min_tokens:
        return None
    tokens = session.tokens_with(request.output_token_ids[:])[:num_tokens]
    hashes = tuple(request.block_hashes[: num_tokens // block_size])
    marks = tuple(mark for mark in session.marks if mark.position < num_tokens)
    return ServedSequence(tokens, block_size, hashes, marks=marks)


def plan_tail_key(session: SessionRequest, source: ServedSequence) -> bytes:
    """The key under which the partial block of `source` can be kept. It has to have one."""
    hashes, start = source.block_hashes, len(source.block_hashes) * source.block_size
    front = hashes[-1] if hashes else digest(session.owner[1:])
    return tail_digest(front, source.tokens[start:], marks_in(source.marks, start, source.num_tokens))
