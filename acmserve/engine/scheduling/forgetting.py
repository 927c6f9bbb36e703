"""Forgetting: when text is redacted, the cached KV of its session goes, but for what the new prompt repeats.

    served   [0 ...... same as the new prompt )[ redacted, and whatever was computed with it in sight .... )
    blocks   |  stays  |  stays  |   goes   |   goes   |   goes   |   goes   | tail goes, and each state
                                  first block with a token that differs, or with moved KV

What stays is exact KV of text that the new prompt repeats: it depends on nothing behind it. Moved KV goes also where
its tokens are repeated, for it was computed with other text in sight.

Decision: exact KV stays, too, where a source or a live request of another session has the same key. A key is a hash of
all tokens up to there and of the salt, so that session was sent the very text itself. It finds its own KV, and learns
nothing. The redacted session cannot find the KV without sending the text again. Keys of moved KV hold the session's
name, so nobody else has them. A request without session is not known to have sent anything. What only such requests
share goes, and is computed again.

What one tenant can learn is whether a text was computed before: a prompt that is cached is answered sooner. That is so
with every prefix cache, and redaction ends it only where nobody else sent the text. A cache salt ends it always.

Decision: what goes is the way to the KV, its key in the prefix cache. The bytes are overwritten when the block is
handed out again. Many keys go over several steps (`key_evictions.py`). The redaction is answered when they are gone. A
request of the session that is still alive keeps its blocks and is answered as it was asked. From here on it caches
under keys that nobody can make again, and it does not become a source.

What goes is what sources and live requests name. So KV without a source stays in the cache. It is exact, for whoever
sends the same text under the same salt, and nothing of it is ever moved:

    a sequence that the source store dropped earlier, for its limits
    a finished request that became no source: media or an adapter that is refused, embeddings (`requests/admission.py`)
    all KV of an engine that keeps no sources: it can copy no KV (`copy_refusal`), or its scheduler is not ours

Such an engine evicts nothing, and acknowledges a redaction all the same. The session's later answers do not meet that
KV, for its prompts are without the text. And a request reaches one engine: every replica that served the session needs
one of its own (`server/exchange/redaction.py`).
"""

from __future__ import annotations

import secrets
from bisect import bisect_left, insort
from collections.abc import Container, Iterable, Sequence
from typing import TYPE_CHECKING

from acmserve.engine.requests.live_requests import LiveRequests
from acmserve.engine.requests.served_source import tokens_of
from acmserve.engine.requests.session_request import SessionRequest
from acmserve.engine.requests.source_store import SourceStore
from acmserve.engine.scheduling.key_evictions import KeyEvictions
from acmserve.engine.vllm import block_pool
from acmserve.engine.vllm.hidden_hasher import HiddenHasher
from acmserve.plan.lineage import LineageMark, order_of
from acmserve.plan.match import common_prefix
from acmserve.plan.owner import Owner
from acmserve.plan.source import ServedSequence, Tokens

if TYPE_CHECKING:
    from acmserve.engine.vllm.types import Request


def num_unaffected(served: Tokens, marks: Iterable[LineageMark], prompt: Tokens) -> int:
    """Tokens at the start of `served` (int32) that `prompt` (int32) repeats and whose KV was not moved."""
    return min(common_prefix(prompt, served), min((mark.position for mark in marks), default=len(served)))


def num_shared(hashes: Sequence[bytes], first: int, others: Iterable[Sequence[bytes]]) -> int:
    """How many of `hashes` one of `others` begins with, where it has at least the one at `first`, else 0.

    All are chain hashes: who has the same one at a place has the same ones in front of it.
    """
    num_blocks = 0
    for other in others:
        if first < min(len(hashes), len(other)) and other[first] == hashes[first]:
            places = range(first, min(len(hashes), len(other)))
            num_blocks = max(num_blocks, first + bisect_left(places, True, key=lambda i: other[i] != hashes[i]))
    return num_blocks


def keys_to_forget(
    source: ServedSequence, prompt: Tokens, others: Iterable[Sequence[bytes]], shared: Container[bytes] = ()
) -> tuple[bytes, ...]:
    """Cache keys of `source` from its first affected block on that none of `others` has.

    Those of its tail and its states go all, but for the `shared` ones.
    """
    first = num_unaffected(source.tokens, source.marks, prompt) // source.block_size
    first = max(first, num_shared(source.block_hashes, first, others))
    return source.block_hashes[first:] + tuple(key for key in source.kept_keys if key not in shared)


def forget_session(
    owner: Owner, prompt: Tokens, store: SourceStore, live: LiveRequests, evictions: KeyEvictions, block_size: int
) -> tuple[tuple[ServedSequence, ...], int]:
    """Forget what the session of `owner` was served, but for exact KV of what `prompt` (int32) repeats.

    That is what any adapter computed for it. Call between two steps.

    Returns the sources that were forgotten, newest first, and the ticket of their keys. When these are gone, nothing
    can be found under them any more, but for what another session was served, too.
    """
    sources = store.forget(owner)
    others: list[Sequence[bytes]] = [source.block_hashes for _, source in store.items()]
    others += [request.block_hashes for request in live.of_others(owner)]
    ticket = 0
    for source in sources:
        shared = {key for key in source.kept_keys if store.has_tail(key)}
        ticket = evictions.add(keys_to_forget(source, prompt, others, shared))
    for session, request in live.of_session(owner):
        ticket = evictions.add(state.key for state in session.states_left if not store.has_tail(state.key))
        block = num_unaffected(tokens_of(session, request), session.marks, prompt) // block_size
        if session.hidden_from is not None and session.hidden_from <= block:
            continue
        first = max(block, num_shared(request.block_hashes, block, others))
        ticket = evictions.add(request.block_hashes[first:])
        insort(session.marks, LineageMark(block * block_size, secrets.token_bytes(32)), key=order_of)
        block_pool.hide(request, HiddenHasher(block_size), block)
        session.hidden_from = block
    return sources, ticket


def withdraw(session: SessionRequest, request: Request, evictions: KeyEvictions) -> bool:
    """Whether the session was forgotten while `request` was alive. What it hid then goes with it."""
    if session.hidden_from is None:
        return False
    evictions.add(request.block_hashes[session.hidden_from :])
    return True
