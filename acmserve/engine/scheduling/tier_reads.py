"""Sources that only the tier holds: requests of ours bring their blocks back before the moves of a plan are made.

    source      [ in the pool ..)[ tier only ........)[ nowhere )[ tier only ..)
    reads                        [ read 0 ...........)           [ read 1 .....)
    then        the request whose plan it is stands aside, until the last read of its own has ended

A read is a request to vLLM, whose prompt has the hashes of the missing blocks. vLLM finds them in the tier, takes free
blocks, loads them, and registers them. There the read ends: nothing of it is computed. Its blocks are free then, and
cached under the source's own hashes, so that the step that follows pins them as it pins any source.

A read that finds nothing, or no free blocks, ends at once. What is still missing then is computed, as ever.

Decision: only blocks that are missing are read, not the source from its start. A hash says all that stands in front of
a block, so nothing in front is needed to load it.

Knows plans, hashes and requests. Does not know the tier but for what it holds.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import TYPE_CHECKING, Protocol

from acmserve.engine.requests.session_request import SessionRequest
from acmserve.engine.vllm import block_pool
from acmserve.engine.vllm.tier.cpu_tier import read_request
from acmserve.errors import IntegrityError

if TYPE_CHECKING:
    from acmserve.engine.vllm.types import BlockPool, Request


class BlockTier(Protocol):
    """What is asked of a tier."""

    def holds(self, key: bytes) -> bool:
        """Whether a block hash is there."""

    def forget(self, keys: Sequence[bytes]) -> None:
        """Take block hashes out."""


@dataclass(slots=True)
class TierRead:
    """Blocks on their way back for the session request `waiter`."""

    waiter: str
    request: Request
    is_admitted: bool = False
    is_asked: bool = False


class TierReads:
    """The reads of one scheduler. `num_blocks` counts what came back."""

    def __init__(self, pool: BlockPool, tier: BlockTier) -> None:
        self._pool = pool
        self._tier = tier
        self._reads: dict[str, TierRead] = {}
        self._new: list[Request] = []
        self._ended: dict[str, None] = {}
        self._num_made = 0
        self.num_blocks = 0

    def __len__(self) -> int:
        return len(self._reads)

    def add(self, session: SessionRequest, request: Request) -> None:
        """`session` has its plan. Background requests take what is in the pool."""
        if session.precompute:
            return
        num_left = self._pool.get_num_free_blocks()
        for missing in self._missing(session):
            keys = missing[:num_left]
            if not keys:
                break
            num_left -= len(keys)
            read_id = f"{session.request_id}-tier-{self._num_made}"
            self._num_made += 1
            made = read_request(read_id, keys, self._pool.hash_block_size, request)
            self._reads[read_id] = TierRead(session.request_id, made)
            self._new.append(made)

    def _missing(self, session: SessionRequest) -> Iterator[tuple[bytes, ...]]:
        """The runs of blocks that the plan reads, that the tier holds, and that the pool does not."""
        seen: set[bytes] = set()
        for segment in session.segments:
            size = segment.source.block_size
            end = -(-segment.src_at(segment.dst_end) // size)
            keys = segment.source.block_hashes[segment.src_start // size : end]
            for is_wanted, run in groupby(keys, lambda key: key not in seen and self._is_only_below(key)):
                found = tuple(run)
                if is_wanted:
                    yield found
                    seen.update(found)

    def _is_only_below(self, key: bytes) -> bool:
        return block_pool.cached_block(self._pool, key) is None and self._tier.holds(key)

    def is_awaited_by(self, request_id: str) -> bool:
        """Whether a session request waits for a read."""
        return any(read.waiter == request_id for read in self._reads.values())

    def is_read(self, request_id: str) -> bool:
        """Whether this request is one of ours."""
        return request_id in self._reads

    def begin(self) -> tuple[Sequence[str], Sequence[Request]]:
        """Before a step: the reads to finish now, and those to add."""
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
        self.num_blocks += len(read.request.block_hashes)
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
        self._reads.pop(request_id, None)
        self._ended.pop(request_id, None)

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
        """Raise `IntegrityError` when a read has finished and is still here."""
        dead = [read_id for read_id, read in self._reads.items() if read.request.is_finished()]
        if dead:
            raise IntegrityError(f"tier: {len(dead)} finished reads still tracked: {dead[:3]}")
