"""Which background chunk may begin now: the pacer of one server. It watches the foreground and is asked before a chunk.

    foreground   ...answer ]           pause            [ ready  .... first token .... answer ]     pause
    background               [ chunk ][ chunk ] . . . [ chun|k ]
                                      ^ held: somebody is expected   '-' the delay: from ready to the chunk's end

A chunk begins where one of these holds, the largest size first, and one block at the least:

    safe        somebody comes before its end with a chance of at most `SAFE_CHANCE`, and the debt has room for it
    affordable  the chance times its seconds is no more than the account allows

A chunk that may be left ends soon after somebody comes. Its delay is what leaving took of late, however long it is.

A delay is charged where a chunk was in flight after a request was ready, for that time and no more. What a request does
before it is ready (its prompt is tokenized) is nobody's delay. It earns when its first token is there.

The clock is the caller's. It knows keys of clients, ids of requests and numbers of tokens, and no engine.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Hashable
from dataclasses import dataclass, field

from acmserve.errors import IntegrityError
from acmserve.plan.pacing.delay_account import MAX_DEBT, DelayAccount
from acmserve.plan.pacing.rhythm import Rhythm
from acmserve.plan.pacing.step_time import StepTime

SAFE_CHANCE = 0.03
MAX_CLIENTS = 1024
MAX_EXPECTED = 64
"""Clients that are looked at before a chunk: those that were heard last."""
EXIT_SECONDS = 0.01
"""What leaving a chunk takes, where nobody has measured it."""
EXIT_WEIGHT = 0.2
"""What the last measurement counts for."""
RETRY_SECONDS = 0.01
"""How long a refusal holds. The engine asks once a millisecond."""


@dataclass(slots=True)
class _Client:
    rhythm: Rhythm = field(default_factory=Rhythm)
    alive: set[str] = field(default_factory=set)
    heard: float | None = None


@dataclass(slots=True)
class _Waiting:
    """A request of the foreground before its first token."""

    ready: float
    delayed: float = 0.0


class Pacer:
    """See the module. `block_tokens` is the least that a chunk has, `chunk_seconds` the longest that one may take."""

    def __init__(
        self, share: float, block_tokens: int, chunk_tokens: int, chunk_seconds: float, clock: Callable[[], float]
    ) -> None:
        self.account = DelayAccount(share)
        self.clock = clock
        self._block_tokens = block_tokens
        self._chunk_tokens = chunk_tokens
        self._chunk_seconds = chunk_seconds
        self._step_time = StepTime(min(block_tokens, chunk_tokens))
        self._clients: OrderedDict[Hashable, _Client] = OrderedDict()
        self._owners: dict[str, Hashable] = {}
        self._waiting: dict[str, _Waiting] = {}
        self._silent_since: float | None = None
        self._chunk: tuple[float, float | None] | None = None
        self._is_left = False
        self._exit_seconds = EXIT_SECONDS
        self._refused_until = 0.0

    @property
    def waiting(self) -> tuple[str, ...]:
        """Requests of the foreground without their first token."""
        return tuple(self._waiting)

    def silence(self) -> float:
        """Seconds without anybody in the foreground."""
        now = self.clock()
        if self._silent_since is None:
            self._silent_since = now
        return 0.0 if self._owners else now - self._silent_since

    def on_ready(self, request_id: str, client: Hashable, ready: float | None = None) -> None:
        """A request of the foreground could have begun at `ready`. The caller may hear of it later."""
        now = self.clock()
        ready = now if ready is None else min(ready, now)
        if not self._owners:
            self.account.end_silence(self.silence() - (now - ready))
        known = self._clients.setdefault(client, _Client())
        self._clients.move_to_end(client)
        if known.heard is not None and not known.alive:
            known.rhythm.note(ready - known.heard)
        known.alive.add(request_id)
        self._owners[request_id] = client
        self._waiting[request_id] = waiting = _Waiting(ready)
        if self._chunk is not None and self._chunk[1] is not None:
            self._charge(waiting, *self._chunk)
        self._forget_oldest()

    def on_first_token(self, request_id: str) -> None:
        """It has its first token: what it took is its own time."""
        waiting = self._waiting.pop(request_id, None)
        if waiting is not None:
            self.account.earn(self.clock() - waiting.ready - waiting.delayed)

    def on_gone(self, request_id: str) -> None:
        """It was answered or aborted."""
        self._waiting.pop(request_id, None)
        if request_id not in self._owners:
            return
        client = self._clients[self._owners.pop(request_id)]
        client.alive.discard(request_id)
        client.heard = self.clock()
        if not self._owners:
            self._silent_since = client.heard

    def begin_chunk(self) -> None:
        """A background chunk goes off."""
        self._chunk = (self.clock(), None)
        self._is_left = False

    def end_chunk(self, num_tokens: int, seconds: float, *, is_left: bool = False) -> None:
        """It is through, and took so long. Where it was left, that says nothing of so many tokens."""
        self._is_left = is_left
        if not is_left:
            self._step_time.note(num_tokens, seconds)
        if self._chunk is not None:
            self._chunk = (self._chunk[0], self.clock())
            for waiting in self._waiting.values():
                self._charge(waiting, *self._chunk)

    def allowed_tokens(self, *, may_leave: bool = False) -> int:
        """Tokens of the chunk that may begin now, and be left or not. 0: none."""
        now = self.clock()
        if self.account.is_open:
            return self._sizes()[0]
        if now < self._refused_until:
            return 0
        silence = self.silence()
        allowance = self.account.allowance(silence)
        room = self.account.balance + MAX_DEBT
        for size in self._sizes():
            seconds = self._step_time.predict(size)
            chance = self.chance(seconds)
            delay = min(seconds, self._exit_seconds) if may_leave else seconds
            if (chance <= SAFE_CHANCE and delay <= room) or chance * delay <= allowance:
                return size
        self._refused_until = now + RETRY_SECONDS
        return 0

    def chance(self, seconds: float) -> float:
        """How likely anybody comes in the next `seconds`, of those who are not here."""
        now, nobody = self.clock(), 1.0
        for _, client in zip(range(MAX_EXPECTED), reversed(self._clients.values()), strict=False):
            if client.heard is not None and not client.alive:
                nobody *= 1 - client.rhythm.chance(max(now - client.heard, 0.0), seconds)
        return 1 - nobody

    def check_integrity(self) -> None:
        """Raise `IntegrityError` when a request is waited for that is not alive, or a client's counts are off."""
        self.account.check_integrity()
        strange = [request_id for request_id in self._waiting if request_id not in self._owners]
        num_alive = sum(len(client.alive) for client in self._clients.values())
        if strange or num_alive != len(self._owners):
            raise IntegrityError(
                f"pacing: {len(strange)} requests are waited for that are gone: {strange[:3]}; "
                f"{num_alive} alive by client, {len(self._owners)} in all"
            )
        for client in self._clients.values():
            client.rhythm.check_integrity()

    def _charge(self, waiting: _Waiting, began: float, ended: float | None) -> None:
        """Charge the overlap of a chunk that is through with a request that was ready."""
        overlap = 0.0 if ended is None else max(ended - max(began, waiting.ready), 0.0)
        if self._is_left and overlap:
            self._exit_seconds += EXIT_WEIGHT * (overlap - self._exit_seconds)
        waiting.delayed += overlap
        self.account.pay(overlap)

    def _sizes(self) -> list[int]:
        """What a chunk may have, the largest first: halves, down to one block."""
        least = min(self._block_tokens, self._chunk_tokens)
        sizes, size = [], self._chunk_tokens
        while size > least:
            if self._step_time.predict(size) <= self._chunk_seconds > 0:
                sizes.append(size)
            size //= 2
        return [*sizes, least]

    def _forget_oldest(self) -> None:
        if len(self._clients) > MAX_CLIENTS:
            oldest = next((key for key, client in self._clients.items() if not client.alive), None)
            if oldest is not None:
                del self._clients[oldest]
