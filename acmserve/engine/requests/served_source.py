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


def plan_source(session: SessionRequest, request: Request, block_size: int) -> ServedSequence:
    """The tokens whose KV is computed. `tail_key` is the key of the rest in a block of `block_size` tokens, if any."""
    num_tokens = num_served_tokens(request)
    num_blocks, num_rest = divmod(num_tokens, block_size)
    tokens = session.tokens_with(request.output_token_ids[:])[:num_tokens]
    hashes = tuple(request.block_hashes[:num_blocks])
    marks = tuple(mark for mark in session.marks if mark.position < num_tokens)
    tail_key = None
    if num_rest:
        front = hashes[-1] if hashes else digest(session.owner[1:])
        tail_key = tail_digest(front, tokens[-num_rest:], marks_in(marks, num_blocks * block_size, num_tokens))
    return ServedSequence(tokens, block_size, hashes, tail_key, marks)
