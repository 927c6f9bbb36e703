"""What a finished request leaves for later contexts: its tokens, their block hashes, and a key for its partial block.

    computed   [ block )[ block )[ block )[ rest )
    source     | hash  | hash  | hash  | tail key |        the last token that was sampled went through no step

On a model with recurrent layers the tail is their state, too. Those that stand behind earlier turns come along.

Knows the request and its session. Does not know the cache, so it does not know whether the rest can be kept.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from acmserve.engine.requests.admission import num_served_tokens
from acmserve.engine.requests.session_request import SessionRequest
from acmserve.plan.lineage import digest, marks_in
from acmserve.plan.source import KeptState, ServedSequence, tail_digest

if TYPE_CHECKING:
    from acmserve.engine.vllm.types import Request

MAX_STATES = 64
"""States behind turns that a source remembers. Each is a block of every recurrent group, while nobody needs it."""


def plan_source(session: SessionRequest, request: Request, block_size: int, min_tokens: int) -> ServedSequence | None:
    """The tokens whose KV is computed, in blocks of `block_size`. None where they are fewer than `min_tokens`."""
    num_tokens = num_served_tokens(request)
    if num_tokens < min_tokens:
        return None
    tokens = session.tokens_with(request.output_token_ids[:])[:num_tokens]
    hashes = tuple(request.block_hashes[: num_tokens // block_size])
    marks = tuple(mark for mark in session.marks if mark.position < num_tokens)
    states = tuple(state for state in session.states_left if state.num_tokens <= num_tokens)
    return ServedSequence(tokens, block_size, hashes, marks=marks, states=states[-MAX_STATES:])


def with_tail(source: ServedSequence, key: bytes, *, has_state: bool) -> ServedSequence:
    """`source`, whose partial block was kept under `key`, and the states behind it where the model `has_state`."""
    states = (*source.states, KeptState(source.num_tokens, key)) if has_state else ()
    return replace(source, tail_key=key, states=states)


def is_state_at_end(request: Request, source: ServedSequence) -> bool:
    """Whether recurrent layers stand where `source` ends. A state in the midst of what was computed is overwritten.

    computed, processed  [ ............ source )
    in flight                                  [ one more )       the state is behind this one
    """
    return bool(request.num_computed_tokens == source.num_tokens)


def plan_tail_key(session: SessionRequest, source: ServedSequence) -> bytes:
    """The key under which the partial block of `source` can be kept. It has to have one."""
    hashes, start = source.block_hashes, len(source.block_hashes) * source.block_size
    front = hashes[-1] if hashes else digest(session.owner[1:])
    return tail_digest(front, source.tokens[start:], marks_in(source.marks, start, source.num_tokens))
