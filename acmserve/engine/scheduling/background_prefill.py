"""Precompute in the engine: background requests, admitted by the step, and what becomes of them.

A background request is a session request whose prompt is a context that may be asked for later. It is computed exactly,
by ordinary prefill. Its session then has one more source: full blocks that anybody finds under their exact hashes, and
a partial tail. Until then:

    nobody else is alive     one background request runs, in chunks that end at block boundaries and take a fraction
                             of a second each. It begins after a moment of quiet, for clients that send one request
                             after the other leave short gaps. The pacer says how large the next chunk may be, or none:
                             who is expected when, and what background work may still cost (`plan/pacing/pacer.py`)
    somebody is              none runs: the one that did is preempted, all are kept out of vLLM's queues for the step.
                             The preempted one's full blocks stay in the prefix cache, so it goes on behind them later
    somebody arrives         a chunk in flight is left in front of its next layer, where the engine can do that, and its
                             tokens are lost (`exits/chunk_exits.py`)

Everybody else is in the foreground, whether waiting, prefilling or decoding.

Decision: between two steps background requests stand in vLLM's queues like all others. So vLLM's counts hold, and its
engine loop goes on when the foreground is gone. That loop turns each millisecond while anything waits. So a background
request that cannot go on at all, for want of blocks that it may take, is *ended* with what it has. With async
scheduling a chunk is scheduled only when the last one is through: a request that arrives waits for one chunk, never for
two.

Order of calls in one step (`step.py`): `to_preempt`, `to_hold`, `cap_chunk`, `on_admitted`, `finish_step`. Later
`take_left`, `on_processed` and `take_ended`.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

from acmserve.engine.config import EngineConfig
from acmserve.engine.requests.chunk_end import chunk_end
from acmserve.engine.requests.receipt import Span
from acmserve.engine.requests.request_plan import FORGOTTEN
from acmserve.engine.requests.session_request import SessionRequest
from acmserve.engine.scheduling.background_blocks import BackgroundBlocks, BackgroundCounts
from acmserve.engine.scheduling.exits.chunk_exits import ChunkExits
from acmserve.engine.vllm import block_pool
from acmserve.errors import IntegrityError
from acmserve.plan.owner import Owner
from acmserve.plan.pacing.pacer import Pacer

if TYPE_CHECKING:
    from acmserve.engine.vllm.types import KVCacheBlock, KVCacheManager, Request

NO_PROGRESS = "precompute_kv_cache_full"
"""Why a background request ended early: vLLM did not schedule it although nobody else was there."""

_MAX_IDLE_STEPS = 8
"""Steps that a background request may stand still alone: its copies are prepared in one, stale output drains in two."""


class BackgroundPrefill:
    """The background requests of one scheduler, in order of arrival."""

    yields = True
    """Negative control of the simulator: else a background request runs beside everybody."""

    def __init__(
        self, kv_cache_manager: KVCacheManager, block_size: int, config: EngineConfig, exit_refusal: str | None
    ) -> None:
        pool = kv_cache_manager.block_pool
        self.exits = ChunkExits(pool, block_size, exit_refusal)
        self.blocks = BackgroundBlocks(pool, block_size, config.precompute_max_pool_share, config.precompute_min_age_s)
        self._manager = kv_cache_manager
        self._block_size = block_size
        self.pacer = Pacer(
            config.precompute_delay_share,
            block_size,
            config.precompute_chunk_tokens,
            config.precompute_chunk_s,
            self._now,
        )
        self._allowed_tokens = 0
        self._before_first_token: dict[str, Request] = {}
        self._quiet_s = config.precompute_quiet_s
        self._requests: dict[str, tuple[SessionRequest, Request]] = {}
        self._ended: dict[str, str] = {}
        self._let_in: str | None = None
        self._disturbed_at = 0.0
        self._num_idle_steps = 0
        self._started: deque[tuple[str, float, int]] = deque()
        self._busy_until = 0.0
        self._is_left = False

    @property
    def num_alive(self) -> int:
        return len(self._requests)

    def _now(self) -> float:
        return self.blocks.clock()

    def on_arrival(self, request: Request, session: SessionRequest | None, ready: float | None) -> None:
        """Any request arrived, and could have begun at `ready`. Noted from the first background request on."""
        if self.blocks.watching and request.request_id not in self._requests:
            self.exits.on_known()
            self.pacer.on_ready(request.request_id, None if session is None else session.owner.session, ready)
            self._before_first_token[request.request_id] = request

    def on_finished(self, request_id: str, block_ids: Sequence[int]) -> None:
        """Any request was answered or aborted, and its blocks are about to be freed."""
        if self.blocks.watching:
            self.blocks.on_freed(block_ids)
            self.pacer.on_gone(request_id)
            self._before_first_token.pop(request_id, None)

    def add(self, session: SessionRequest, request: Request, refusal: str | None) -> None:
        """A background request arrived. With a `refusal` it ends before it begins."""
        if not self._requests:
            self._disturbed_at = self.blocks.clock()
        session.precompute = True
        session.fallback_reason = refusal
        self._requests[session.request_id] = (session, request)
        if refusal is None:
            self.blocks.watch()
        else:
            self.end(session.request_id, refusal)

    def remove(self, request_id: str) -> None:
        """A request finished or was aborted."""
        self._requests.pop(request_id, None)
        self._ended.pop(request_id, None)

    def end(self, request_id: str, reason: str) -> None:
        """The request goes no further, if it is a background request. It is finished after this step."""
        if request_id in self._requests:
            self._ended.setdefault(request_id, reason)

    def forget(self, owner: Owner, repeated: Iterable[bytes]) -> None:
        """Let go of what was precomputed for the session of `owner`, but for blocks under the keys `repeated`."""
        for session, _ in self._requests.values():
            if session.owner.session == owner.session:
                self.end(session.request_id, FORGOTTEN)
        if len(self.blocks):
            found = (block_pool.cached_block(self.blocks.pool, key) for key in repeated)
            self.blocks.forget(owner, {block.block_id for block in found if block is not None})

    def to_preempt(self, num_others: int) -> list[Request]:
        """Running background requests that give way to `num_others` requests of the foreground.

        Not the one whose last chunk is in flight: it asks for nothing any more.
        """
        if not num_others or not self.yields:
            return []
        return [r for _, r in self._requests.values() if block_pool.is_running(r) and _is_prefilling(r)]

    def to_hold(self, num_others: int) -> list[Request]:
        """Waiting background requests that this step must not see: all, but for one when nobody else is there."""
        requests = [request for _, request in self._requests.values()]
        running = [request for request in requests if block_pool.is_running(request)]
        waiting = [request for request in requests if not block_pool.is_running(request)]
        now = self.blocks.clock()
        if num_others:
            self._disturbed_at = now
        is_quiet = not num_others and now - self._disturbed_at >= self._quiet_s
        chosen = next((r for r in running or waiting if r.request_id not in self._ended), None)
        may_leave = chosen is not None and self.exits.may_leave(chosen)
        may_begin = (is_quiet and self.exits.may_begin()) or not self.yields
        self._allowed_tokens = self.pacer.allowed_tokens(may_leave=may_leave) if may_begin else 0
        if self.yields and not self._allowed_tokens:
            chosen = None
        if chosen is None or chosen.request_id != self._let_in:
            self._num_idle_steps = 0
        self._let_in = chosen.request_id if chosen is not None else None
        return [request for request in waiting if request is not chosen]

    def cap_chunk(self, request: Request, num_computed: int, num_new: int, num_behind: int) -> int:
        """Shorten the chunk `[num_computed, +num_new)` of a background request. 0 when it may not run now.

        Blocks for `num_behind` tokens behind the chunk come on top of it. They count until the next chunk, or the end.
        """
        entry = self._requests.get(request.request_id)
        if entry is None:
            return num_new
        session = entry[0]
        if request.request_id in self._ended or request.num_in_flight_tokens or not self._allowed_tokens:
            return 0
        bs = self._block_size
        end = num_computed + num_new
        if self._allowed_tokens < num_new:
            end = chunk_end(num_computed, num_computed + self._allowed_tokens, bs)
        hit: set[int] = set()
        if block_pool.is_running(request):
            num_held = self._num_counted(request.request_id, session.num_hit // bs)
        else:
            num_held = session.num_hit // bs
            cached = (block_pool.cached_block(self.blocks.pool, key) for key in request.block_hashes[:num_held])
            hit = {block.block_id for block in cached if block is not None}
        num_wanted = max(-(-(end + num_behind) // bs) - num_held, 0)
        num_blocks, reason = self.blocks.make_room(num_wanted, hit)
        if num_blocks < num_wanted:
            end = chunk_end(num_computed, (num_held + num_blocks) * bs - num_behind, bs)
        if end <= num_computed:
            self.end(request.request_id, reason)
            return 0
        return end - num_computed

    def _num_counted(self, request_id: str, first: int) -> int:
        """Blocks of a running request, but for those at their end that were for drafts.

        table    [ hit )[ computed ..... )[ behind the last chunk )
                        ^ first           ^ num_counted
        """
        table = self._manager.get_block_ids(request_id)[0]
        num = len(table)
        while num > first and table[num - 1] not in self.blocks:
            num -= 1
        return num

    def on_admitted(self, request_id: str, blocks: Sequence[KVCacheBlock]) -> list[Span]:
        """vLLM gave a waiting request these blocks. Returns what of its prefix hit was precomputed, and is used now."""
        if request_id in self._requests:
            self.blocks.hold(blocks)
            return []
        return self.blocks.use_prefix(blocks) if len(self.blocks) else []

    def finish_step(self, scheduled: Mapping[str, int], is_paused: bool) -> None:
        """The step is built: `scheduled` tokens by request."""
        entry = self._requests.get(self._let_in) if self._let_in is not None else None
        if entry is None:
            return
        session, request = entry
        num_tokens = scheduled.get(session.request_id, 0)
        if num_tokens:
            start = request.num_computed_tokens
            # What drafts may fill is nothing that anybody finds.
            num_tokens = min(num_tokens, request.num_tokens - start)
            inherited = start if session.inherited_from is None else session.inherited_from
            session.inherited_from = None
            table = self._manager.get_block_ids(session.request_id)[0]
            first = session.num_hit // self._block_size
            self.blocks.add(session.owner, table, first, start, start + num_tokens, inherited)
            if len(scheduled) == 1:
                self.exits.begin(request, start, num_tokens, table)
            self.pacer.begin_chunk()
            self._started.append((session.request_id, self.blocks.clock(), num_tokens))
            self._num_idle_steps = 0
        elif not request.num_in_flight_tokens and not is_paused and self._allowed_tokens:
            self._num_idle_steps += 1
            if self._num_idle_steps > _MAX_IDLE_STEPS:
                self.end(session.request_id, NO_PROGRESS)

    def take_left(self, scheduled: Mapping[str, int], is_left: bool) -> Request | None:
        """A step is through, and `is_left` says whether its worker left it. Returns the request to preempt then.

        It stands where the chunk began, and nobody finds what the chunk did not compute. None where it has ended.
        """
        chunk = self.exits.end(is_left=is_left, has_tokens=bool(scheduled))
        self._is_left = chunk is not None
        if chunk is None:
            return None
        self.blocks.counts.left_tokens += chunk.num_tokens
        if not block_pool.is_running(chunk.request):
            return None
        chunk.request.num_computed_tokens = chunk.start
        return chunk.request

    def on_processed(self, scheduled: Mapping[str, int]) -> None:
        """A step is through. Count the time that background work took of it, and note whose first token is there."""
        for request_id, request in list(self._before_first_token.items()):
            if request_id in scheduled and not _is_prefilling(request):
                del self._before_first_token[request_id]
                self.pacer.on_first_token(request_id)
        if self._started and self._started[0][0] in scheduled:
            _, started, num_tokens = self._started.popleft()
            now = self.blocks.clock()
            seconds = now - max(started, self._busy_until)
            self.blocks.counts.seconds += seconds
            self._busy_until = now
            self.pacer.end_chunk(num_tokens, seconds, is_left=self._is_left)

    def take_counts(self) -> BackgroundCounts:
        """What was counted since the last call, what others waited for it among it."""
        self.blocks.counts.delay_seconds = self.pacer.account.delayed
        return self.blocks.take_counts()

    def take_ended(self) -> list[SessionRequest]:
        """The background requests to finish now. Their receipts are about the part that is ready."""
        sessions = []
        for request_id, reason in self._ended.items():
            session, request = self._requests[request_id]
            session.end_early(request.num_computed_tokens, reason)
            sessions.append(session)
        self._ended.clear()
        return sessions

    def check_integrity(self) -> None:
        """Raise `IntegrityError` when two background requests run, a finished one is tracked, or blocks are off."""
        running = [r.request_id for _, r in self._requests.values() if block_pool.is_running(r) and _is_prefilling(r)]
        if len(running) > 1:
            raise IntegrityError(f"precompute: {len(running)} background requests run: {running[:3]}")
        dead = [request_id for request_id, (_, request) in self._requests.items() if request.is_finished()]
        dead += [request_id for request_id in self._ended if request_id not in self._requests]
        if dead:
            raise IntegrityError(f"precompute: {len(dead)} finished requests still tracked: {dead[:3]}")
        self.blocks.check_integrity()
        self.exits.check_integrity()
        self.pacer.check_integrity()


def _is_prefilling(request: Request) -> bool:
    return bool(request.num_computed_tokens < request.num_prompt_tokens)
