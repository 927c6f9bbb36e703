"""Keys that a redaction takes out of the prefix cache, a bounded number in each step.

    add     keys   [ gone at once .......)[ wait .............................)
                    what is left of this step's `MAX_KEYS`
    begin_step                            [ gone ..)[ wait ...................)

A session may have served eight sequences of 128K tokens. Their 65,000 keys would hold up everybody for a fifth of a
second. So the redaction's own request waits for its keys (`is_done`): when it is answered, they are gone.

What else is known by such a key goes with it (`on_gone`). Does not know whose keys these are. `forgetting.py` chooses
them.

Decision: a redaction that is aborted leaves its keys here. They go with the steps that follow, whoever asked for those.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING

from acmserve.engine.vllm import block_pool
from acmserve.errors import IntegrityError

if TYPE_CHECKING:
    from acmserve.engine.vllm.types import BlockPool

MAX_KEYS = 1024
"""Keys that one step takes out: a few milliseconds."""


class KeyEvictions:
    """The keys that are still to go, first come first gone. Tickets count keys, from the first one on.

    `on_gone` is called with the keys that go.
    """

    def __init__(self, pool: BlockPool, num_groups: int, on_gone: Callable[[Sequence[bytes]], object]) -> None:
        self._pool = pool
        self._num_groups = num_groups
        self._on_gone = [on_gone]
        self._keys: deque[bytes] = deque()
        self._num_added = 0
        self._num_done = 0
        self._num_left = MAX_KEYS

    def __len__(self) -> int:
        return len(self._keys)

    def tell(self, on_gone: Callable[[Sequence[bytes]], object]) -> None:
        """Call `on_gone`, too, with the keys that go."""
        self._on_gone.append(on_gone)

    def add(self, keys: Iterable[bytes]) -> int:
        """Take these keys out, now or in the next steps. Returns the ticket that `is_done` wants."""
        before = len(self._keys)
        self._keys.extend(keys)
        self._num_added += len(self._keys) - before
        self._evict()
        return self._num_added

    def is_done(self, ticket: int) -> bool:
        """Whether all keys are gone that had been added when `add` returned `ticket`."""
        return self._num_done >= ticket

    def begin_step(self) -> None:
        """Take the next keys out."""
        self._num_left = MAX_KEYS
        self._evict()

    def check_integrity(self) -> None:
        """Raise `IntegrityError` when the counts do not add up."""
        if self._num_added - self._num_done != len(self._keys):
            counts = f"{self._num_added} added, {self._num_done} gone"
            raise IntegrityError(f"key evictions: {len(self._keys)} keys wait, {counts}")

    def _evict(self) -> None:
        keys = [self._keys.popleft() for _ in range(min(self._num_left, len(self._keys)))]
        block_pool.evict_keys(self._pool, keys, self._num_groups)
        for on_gone in self._on_gone:
            on_gone(keys)
        self._num_left -= len(keys)
        self._num_done += len(keys)
