"""What a finished request leaves for later contexts: its tokens, their block hashes, and a key for its partial block.

    computed   [ block )[ block )[ block )[ rest )
    source     | hash  | hash  | hash  | tail key |        the last token that was sampled went through no step

On a model with recurrent layers the tail is their state, too. Those of earlier turns come along, and that in front of
the answer.

Knows the request and its session. Does not know the cache, so it does not know whether the rest can be kept.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from acmserve.engine.requests.admission import num_served_tokens
from acmserve.engine.requests.session_request import SessionRequest
from acmserve.plan.lineage import digest, marks_in
from acmserve.plan.source import KeptState, ServedSequence, Tokens, tail_digest

if TYPE_CHECKING:
    from acmserve.engine.vllm.types import Request

MAX_STATES = 128
"""States that a source remembers: of 64 turns. Each is a block of every recurrent group, while nobody needs it."""


def plan_source(session: SessionRequest, request: Request, block_size: int, min_tokens: int) -> ServedSequence | None:
    """The tokens whose KV is computed, in blocks of `block_size`. None where they are fewer than `min_tokens`."""
    num_tokens = num_served_tokens(request)
    if num_tokens < min_tokens:
        return None
    tokens = tokens_of(session, request)[:num_tokens]
    hashes = tuple(request.block_hashes[: num_tokens // block_size])
    marks = tuple(mark for mark in session.marks if mark.position < num_tokens)
    states = [state for state in session.states_left if state.num_tokens <= num_tokens]
    if states and states[-1] == session.answer_state and not _is_own(session, states[-1], hashes, block_size):
        states.pop()
    return ServedSequence(tokens, block_size, hashes, marks=marks, states=tuple(states[-MAX_STATES:]))


def tokens_of(session: SessionRequest, request: Request) -> Tokens:
    """The tokens whose KV a request has, int32.

    arrived     [ prompt ][ answer ]
    streaming   [ prompt ][ answer ][ more input ][ answer ]     vLLM makes all but the last answer the prompt
    """
    if request.resumable:
        return np.array(request.all_token_ids[:], dtype=np.int32)
    return session.tokens_with(request.output_token_ids[:])


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
    return _key_of(session, source.tokens, source.block_hashes, source.block_size)


def plan_answer_key(session: SessionRequest, block_hashes: Sequence[bytes], block_size: int) -> bytes:
    """The key for the states behind the whole prompt, which ends in the midst of a block.

    `block_hashes` are those of its whole blocks.
    """
    return _key_of(session, session.prompt, block_hashes, block_size)


def _is_own(session: SessionRequest, state: KeptState, block_hashes: Sequence[bytes], block_size: int) -> bool:
    """Whether the state in front of the answer is of the prompt's lineage. A preempted request may have got another."""
    return state.key == plan_answer_key(session, block_hashes[: state.num_tokens // block_size], block_size)


def _key_of(session: SessionRequest, tokens: Tokens, block_hashes: Sequence[bytes], block_size: int) -> bytes:
    """Of all `tokens`: the hash of their whole blocks, and the rest with its lineage."""
    start = len(block_hashes) * block_size
    front = block_hashes[-1] if block_hashes else digest(session.owner[1:])
    return tail_digest(front, tokens[start:], marks_in(session.marks, start, len(tokens)))
