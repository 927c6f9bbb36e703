"""What the scheduler knows of background chunks that their worker may leave before their last layer.

    request arrives   raises a flag, while a chunk is computed: the server's first, then the engine's
    worker            sees it in front of the next layer's attention, leaves the forward pass, and says so
    scheduler         takes the chunk's blocks out of the prefix cache, and the request back to where the chunk began,
                      before anything else is scheduled: vLLM registered the blocks when it scheduled the chunk, and
                      their KV was never computed

The engine's flag is lowered where a request of the foreground reaches the scheduler. Until then no chunk begins. A
request that raised it and was refused on its way would hold work up for ever. So it is lowered after some steps all the
same. The server's is lowered by the server, also where the request is refused or its client leaves. Who sends a body
for longer than some seconds holds no work up any more. A client whose requests are all refused would have each chunk
left. So behind some chunks that were left for nobody the server's flag counts no more, until somebody comes.

Decision: blocks go by their ids, not by the request. A client may end a background request while its chunk is in
flight, and vLLM frees those blocks with their hashes. Steps are not scheduled ahead where chunks are left
(`engine/worker/exit_rule.py`). So nobody was given one of these blocks or found it under its hash.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from acmserve.errors import IntegrityError
from acmserve.plan.pacing.arrival_flag import ArrivalFlag, find_flag

if TYPE_CHECKING:
    from acmserve.engine.vllm.types import BlockPool, Request

_MAX_RAISED_STEPS = 32
"""Steps that wait for who raised the engine's flag. The engine turns about once a millisecond."""
_MAX_SERVER_SECONDS = 5.0
"""How long the server's flag holds work up without a request that reaches the engine."""
MAX_IN_VAIN = 3
"""Chunks that are left one after the other without a request that reaches the engine."""


@dataclass(frozen=True, slots=True)
class ChunkInFlight:
    """Tokens `[start, start + num_tokens)` of a request. `block_ids` hold them, and perhaps a few in front of them."""

    request: Request
    start: int
    num_tokens: int
    block_ids: tuple[int, ...]


class ChunkExits:
    """The exits of one scheduler. `refusal` says why there are none, None where chunks may be left."""

    takes_back = True
    """Negative control of the simulator: else a chunk that was left counts as computed."""
    unregisters = True
    """Negative control of the simulator: else the blocks of a request that ended in such a chunk stay registered."""

    def __init__(self, pool: BlockPool, block_size: int, refusal: str | None) -> None:
        self.refusal = refusal
        self.clock: Callable[[], float] = time.monotonic
        self._pool = pool
        self._block_size = block_size
        self._flag: ArrivalFlag | None = None
        self._server_name: str | None = None
        self._server_flag: ArrivalFlag | None = None
        self._server_since: float | None = None
        self._is_overdue = False
        self._chunk: ChunkInFlight | None = None
        self._is_told = False
        self._num_raised_steps = 0
        self._num_in_vain = 0
        self._has_run = False

    def watch_server(self, name: str) -> None:
        """A server may raise a flag of this name. It is looked for when the first chunk begins."""
        self._server_name = name

    @property
    def is_watching(self) -> bool:
        """Whether arrivals are of interest: there was a chunk that could be left."""
        return self._flag is not None

    def on_queued(self) -> None:
        """Somebody of the foreground arrived, in the thread that reads what arrives."""
        flag = self._flag
        if flag is not None:
            flag.raise_it()

    def on_known(self) -> None:
        """A request of the foreground reached the scheduler."""
        self._num_in_vain = 0
        self._wait_no_more()

    def _wait_no_more(self) -> None:
        """Nobody is on the way to the scheduler, as far as is known."""
        self._num_raised_steps = 0
        self._server_since = None
        if self._flag is not None:
            self._flag.lower()

    def may_begin(self) -> bool:
        """Whether a background chunk may begin in this step: not while somebody is on the way."""
        if self._waits_for_server():
            return False
        if self._flag is None or not self._flag.is_raised:
            return True
        self._num_raised_steps += 1
        if self._num_raised_steps > _MAX_RAISED_STEPS:
            self._wait_no_more()
            return True
        return False

    def _waits_for_server(self) -> bool:
        """Whether the server handles somebody who may be in the engine soon."""
        flag = self._server_flag
        if flag is None or not flag.is_raised or self._num_in_vain >= MAX_IN_VAIN:
            self._server_since, self._is_overdue = None, False
            return False
        now = self.clock()
        if self._server_since is None:
            self._server_since = now
        self._is_overdue = now - self._server_since > _MAX_SERVER_SECONDS
        return not self._is_overdue

    def may_leave(self, request: Request) -> bool:
        """Whether chunks of a request may be left.

        Those whose log probabilities are wanted are computed to their end: vLLM's runner gathers them chunk by chunk.
        Neither is the first step of all left, from which the worker learns what a pass answers.
        """
        params = request.sampling_params
        return self.refusal is None and self._has_run and (params is None or params.prompt_logprobs is None)

    def begin(self, request: Request, start: int, num_tokens: int, table: Sequence[int]) -> None:
        """The step is built, and computes this chunk alone. `table` are the blocks of the request."""
        if not self.may_leave(request):
            return
        if self._flag is None:
            self._flag = ArrivalFlag()
            self._server_flag = None if self._server_name is None else find_flag(self._server_name)
        end = start + num_tokens
        block_ids = table[start // self._block_size : -(-end // self._block_size)]
        self._chunk = ChunkInFlight(request, start, num_tokens, tuple(block_ids))
        self._is_told = False

    def take_names(self) -> tuple[str, ...]:
        """The names of the flags at which this step's chunk may be left, for the workers. Empty where it may not."""
        if self._flag is None or self._chunk is None or self._is_told:
            return ()
        self._is_told = True
        if self._server_flag is None or self._is_overdue or self._num_in_vain >= MAX_IN_VAIN:
            return (self._flag.name,)
        return (self._flag.name, self._server_flag.name)

    def end(self, *, is_left: bool, has_tokens: bool = True) -> ChunkInFlight | None:
        """The step is through, and computed any tokens or none. Returns its chunk where it was left.

        Nobody finds the blocks of that one any more. Raises `IntegrityError` where no chunk could be left.
        """
        chunk, self._chunk = self._chunk, None
        if chunk is not None and self._is_told and self._flag is not None:
            self._flag.hide()  # its worker has it open since this step, and there is one
        self._has_run = self._has_run or has_tokens
        if not is_left or not self.takes_back:
            return None
        if chunk is None:
            raise IntegrityError("precompute: a worker left a chunk that no step computes")
        self._num_in_vain += 1
        if self.unregisters:
            self._pool.evict_blocks(set(chunk.block_ids))
        return chunk

    def close(self) -> None:
        """The scheduler ends."""
        flags, self._flag, self._server_flag = (self._flag, self._server_flag), None, None
        for flag in flags:
            if flag is not None:
                flag.close()

    def check_integrity(self) -> None:
        """Raise `IntegrityError` when a chunk in flight has no blocks for its tokens."""
        chunk = self._chunk
        if chunk is not None and not chunk.block_ids:
            raise IntegrityError(f"precompute: a chunk of {chunk.num_tokens} tokens in flight has no blocks")
