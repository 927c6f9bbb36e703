"""Sources that only the tier holds: requests of ours bring their blocks back before the moves of a plan are made.

    source      [ in the pool ..)[ tier only ........)[ nowhere )[ tier only ..)
    read                         [ these ............)           [ and these ..)
    then        the request whose plan it is stands aside, until the last read of its own has ended

A read is a request to vLLM, whose prompt has the hashes of the missing blocks. vLLM finds them in the tier, takes free
blocks, loads them, and registers them. There the read ends: nothing of it is computed. Its blocks are free then, and
cached under the source's own hashes, so that the step that follows pins them as it pins any source.

Reads are made when the request is among the first in the queue, and when there are free blocks for both. What comes
back too early would leave the pool again. A read that finds nothing, or no free blocks, ends at once. What is still
missing then is computed, as ever.

Decision: only blocks that are missing are read, not the source from its start. A hash says all that stands in front of
a block, so nothing in front is needed to load it. So all that a plan misses is one read, or as many as keep each of
them no longer than the request itself. A plan of 256 pieces would make 256 reads otherwise, all in one step.

Decision: the blocks of a plan are looked up when its turn is near, and once more when the reads are made. Every step
in between would look up 8,000 keys of a context of 128K tokens.

Knows plans, hashes and requests. Does not know the tier but for what it holds.
"""

from __future__ import annotations

import secrets
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, islice
from typing import TYPE_CHECKING, Protocol

from acmserve.engine.requests.live_requests import LiveRequests
from acmserve.engine.requests.receipt import Span
from acmserve.engine.requests.session_request import SessionRequest
from acmserve.engine.vllm import block_pool
from acmserve.engine.vllm.tier.cpu_tier import read_request
from acmserve.errors import IntegrityError

if TYPE_CHECKING:
    from acmserve.engine.vllm.types import BlockPool, Request


_NUM_NEAR = 4
"""Requests nearest to the head of the queue, of those with a plan, whose reads are made in one step."""
_MAX_POSTPONED = 32
"""Steps that such a request waits for as many free blocks as it and its reads take. Others pass it meanwhile."""


class BlockTier(Protocol):
    """What is asked of a tier."""

    def holds(self, key: bytes) -> bool:
        """Whether a block hash is there."""

    def forget(self, keys: Sequence[bytes]) -> None:
        """Take block hashes out."""


@dataclass(slots=True)
class TierRead:
    """Blocks on their way back for the session request `waiter`. `spans` are the tokens that each of them serves."""

    waiter: str
    request: Request
    spans: Sequence[Sequence[Span]] = ()
    is_admitted: bool = False
    is_asked: bool = False


@dataclass(slots=True)
class DueReads:
    """A session request whose reads are to be made. `num_missing` is what it missed when it was looked at last."""

    num_missing: int = 0
    num_postponed: int = 0

    def postpone(self, num_spare: int, num_most: int) -> bool:
        """Whether it waits for the next step: `num_spare` blocks are too few for what it misses, `num_most` at most."""
        has_room = not self.num_missing or num_spare >= min(self.num_missing, num_most)
        if has_room or self.num_postponed >= _MAX_POSTPONED:
            return False
        self.num_postponed += 1
        return True


class TierReads:
    """The reads of one scheduler. `num_blocks` counts what came back, `num_made` the reads."""

    def __init__(self, pool: BlockPool, live: LiveRequests, tier: BlockTier) -> None:
        self._pool = pool
        self._live = live
        self._due: dict[str, DueReads] = {}
        self._tier = tier
        self._reads: dict[str, TierRead] = {}
        self._num_awaited: Counter[str] = Counter()
        self._new: list[Request] = []
        self._ended: dict[str, None] = {}
        self.num_made = 0
        self.num_blocks = 0

    def __len__(self) -> int:
        return len(self._reads)

    def add(self, session: SessionRequest) -> None:
        """`session` has its plan. A background request is passed over later, for it takes what is in the pool."""
        if session.segments:
            self._due[session.request_id] = DueReads()

    def is_awaited_by(self, request_id: str) -> bool:
        """Whether a session request waits for a read, or for its turn to ask for some."""
        return request_id in self._due or self._num_awaited[request_id] > 0

    def _ask_for_due(self, waiting: Iterable[Request]) -> None:
        """Make the reads of session requests whose turn is near. What is read too early leaves the pool again."""
        num_free = self._pool.get_num_free_blocks()
        # A request that waits for a grammar, too, is due: vLLM looks at neither before the other is there.
        due = (r for r in waiting if r.request_id in self._due and not r.num_computed_tokens)
        for request in islice(due, _NUM_NEAR):
            entry = self._live.entry(request.request_id)
            if entry is None or entry[0].precompute:
                del self._due[request.request_id]
                continue
            num_own = -(-request.num_tokens // self._pool.hash_block_size)
            num_most = max(self._pool.num_gpu_blocks - 1 - num_own, 0)
            wait, num_spare = self._due[request.request_id], num_free - num_own
            if wait.postpone(num_spare, num_most):
                return
            missing = self._missing(entry[0])
            wait.num_missing = len(missing)
            if wait.postpone(num_spare, num_most):
                return
            del self._due[request.request_id]
            self._make(request, dict(islice(missing.items(), min(num_most, max(num_spare, 0)))))
            num_free -= num_own + len(missing)

    def _make(self, request: Request, missing: Mapping[bytes, Sequence[Span]]) -> None:
        size = self._pool.hash_block_size
        num_keys = max(request.num_tokens // size, 1)
        keys, spans = list(missing), list(missing.values())
        for first in range(0, len(keys), num_keys):
            read_id = f"{request.request_id}-tier-{self.num_made}"
            self.num_made += 1
            made = read_request(read_id, keys[first : first + num_keys], size, request)
            self._reads[read_id] = TierRead(request.request_id, made, spans[first : first + num_keys])
            self._num_awaited[request.request_id] += 1
            self._new.append(made)

    def _missing(self, session: SessionRequest) -> Mapping[bytes, Sequence[Span]]:
        """The blocks that the plan reads, that the tier holds, and that the pool does not, with what each serves."""
        found: dict[bytes, list[Span]] = {}
        for segment in session.segments:
            size, shift = segment.source.block_size, segment.dst_start - segment.src_start
            first, end = segment.src_start // size, -(-segment.src_at(segment.dst_end) // size)
            for index, key in enumerate(segment.source.block_hashes[first:end], first):
                if key in found or self._is_only_below(key):
                    start = index * size + shift
                    span = max(start, segment.dst_start), min(start + size, segment.dst_end)
                    found.setdefault(key, []).append(span)
        return found

    def _is_only_below(self, key: bytes) -> bool:
        return block_pool.cached_block(self._pool, key) is None and self._tier.holds(key)

    def is_read(self, request_id: str) -> bool:
        """Whether this request is one of ours."""
        return request_id in self._reads

    def begin(self, waiting: Iterable[Request]) -> tuple[Sequence[str], Sequence[Request]]:
        """Before a step: the reads to finish now, and those to add. `waiting` are the requests in vLLM's queues."""
        if self._due:
            self._ask_for_due(waiting)
        for read_id, read in self._reads.items():
            if read.is_asked and not read.is_admitted:
                self.end(read_id)
        ended, made, self._new = tuple(self._ended), self._new, []
        for request in made:
            if request.request_id in ended:
                self.on_finished(request.request_id)
        return ended, [request for request in made if request.request_id not in ended]

    def on_asked(self, request_id: str) -> None:
        """vLLM is about to take free blocks for a read. It may find none."""
        self._reads[request_id].is_asked = True

    def on_admitted(self, request_id: str) -> None:
        """A read has its blocks."""
        self._reads[request_id].is_admitted = True

    def on_ready(self, request_id: str) -> bool:
        """vLLM may go on with a request. Whether it is a read whose blocks are there: it goes no further."""
        read = self._reads.get(request_id)
        if read is None or not read.is_admitted:
            return False
        num_loaded = read.request.num_computed_tokens // self._pool.hash_block_size
        self.num_blocks += num_loaded
        session = self._live.get(read.waiter)
        if session is not None:
            session.receipt_builder.add_loaded(chain.from_iterable(read.spans[:num_loaded]))
        self.end(request_id)
        return True

    def end(self, request_id: str) -> None:
        """A read goes no further. It is finished before the next step."""
        self._ended[request_id] = None

    def is_over(self, request_id: str) -> bool:
        """Whether a read only waits to be finished."""
        return request_id in self._ended

    def on_finished(self, request_id: str) -> None:
        """A request has finished, or was aborted."""
        read = self._reads.pop(request_id, None)
        if read is not None:
            self._num_awaited[read.waiter] -= 1
            self._num_awaited += Counter()
        self._ended.pop(request_id, None)
        self._due.pop(request_id, None)

    def forget(self, keys: Sequence[bytes]) -> None:
        """A redaction takes these hashes. A read under way is cached under hashes that nobody can make."""
        gone = set(keys)
        for read_id, read in self._reads.items():
            hashes = read.request.block_hashes
            if gone.intersection(hashes):
                hashes[:] = [type(key)(secrets.token_bytes(32)) for key in hashes]
                if not read.is_admitted:
                    self.end(read_id)
        self._tier.forget(keys)

    def check_integrity(self) -> None:
        """Raise `IntegrityError` when a read has finished and is still here, or is waited for by nobody."""
        dead = [read_id for read_id, read in self._reads.items() if read.request.is_finished()]
        if dead:
            raise IntegrityError(f"tier: {len(dead)} finished reads still tracked: {dead[:3]}")
        if self._num_awaited != Counter(read.waiter for read in self._reads.values()):
            raise IntegrityError(f"tier: {self._num_awaited.total()} of {len(self._reads)} reads are waited for")
