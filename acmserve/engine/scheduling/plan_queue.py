"""Plans that take long: made in a thread of their own, while the scheduler goes on.

    scheduler's thread    add ......................... take_done       the request stands aside in vLLM's queue
    planning thread             [ plan ][ plan ][ plan ]                one at a time

A search over 128K tokens and eight sources takes as long as several decoding steps, and so do the block hashes of its
prompt. A plan that reads fewer than `MAX_INLINE_TOKENS` is made at once (`AcmConnector.on_new_request`).

Knows accounts and inputs. Does not know sessions, blocks or steps.

Decision: accounts take turns. One client that sends many long edits waits for itself, and another one's plan is next.

Decision: an error of a plan is raised in the scheduler's thread, where it would be raised without this module.
"""

from __future__ import annotations

import threading
from collections import OrderedDict, deque
from collections.abc import Callable
from concurrent.futures import Executor, Future, ThreadPoolExecutor

from acmserve.engine.requests.request_plan import PlanInputs, RequestPlan
from acmserve.errors import IntegrityError

MAX_INLINE_TOKENS = 16_384
"""Tokens that a plan may search or hash in the scheduler's thread: a few milliseconds."""


class PlanQueue:
    """Requests that wait for their plan. `make` is called in the planning thread, and must change nothing."""

    max_inline_tokens = MAX_INLINE_TOKENS
    """The simulator sets less, so that its short prompts are planned beside the scheduler, too."""

    def __init__(self, make: Callable[[PlanInputs], RequestPlan], thread: Executor | None = None) -> None:
        self._make = make
        self._thread = thread or ThreadPoolExecutor(max_workers=1, thread_name_prefix="acmserve-plans")
        self._lock = threading.Lock()
        self._wanted: dict[str, PlanInputs] = {}
        self._waiting: OrderedDict[str, deque[PlanInputs]] = OrderedDict()
        self._begun: list[PlanInputs] = []
        self._futures: deque[Future[tuple[PlanInputs, RequestPlan]]] = deque()

    def __len__(self) -> int:
        """Requests whose plan was not taken yet."""
        return len(self._wanted)

    def is_long(self, inputs: PlanInputs) -> bool:
        """Whether the plan of `inputs` belongs here."""
        return inputs.num_tokens_to_read > self.max_inline_tokens

    def add(self, account: str, inputs: PlanInputs) -> None:
        """Have a plan made. Each other account has one made before this one, at most."""
        with self._lock:
            self._wanted[inputs.request.request_id] = inputs
            self._waiting.setdefault(account, deque()).append(inputs)
        self._futures.append(self._thread.submit(self._make_next))

    def cancel(self, request_id: str) -> bool:
        """Nobody wants this plan any more. Returns whether it was wanted."""
        with self._lock:
            inputs = self._wanted.pop(request_id, None)
        return inputs is not None

    def take_done(self) -> list[tuple[str, RequestPlan]]:
        """The plans that are ready and wanted, once: (request id, plan). Raises what a plan raised."""
        plans: list[tuple[str, RequestPlan]] = []
        while self._futures and self._futures[0].done():
            inputs, plan = self._futures.popleft().result()
            request_id = inputs.request.request_id
            with self._lock:
                self._begun = [begun for begun in self._begun if begun is not inputs]
                if self._wanted.get(request_id) is inputs:
                    del self._wanted[request_id]
                    plans.append((request_id, plan))
        return plans

    def stop(self) -> None:
        """Make no more plans. Waits for the one in the making."""
        self._thread.shutdown(cancel_futures=True)

    def check_integrity(self) -> None:
        """Raise `IntegrityError` when a request waits for a plan that nobody makes."""
        with self._lock:
            held = [inputs for queue in self._waiting.values() for inputs in queue] + self._begun
            lost = [request_id for request_id, inputs in self._wanted.items() if all(inputs is not h for h in held)]
        if lost or len(held) != len(self._futures):
            raise IntegrityError(f"plan queue: nobody plans {lost[:3]}, {len(self._futures)} calls for {len(held)}")

    def _make_next(self) -> tuple[PlanInputs, RequestPlan]:
        """The plan of the account whose turn it is. An empty one where nobody wants it any more."""
        with self._lock:
            account, queue = self._waiting.popitem(last=False)
            inputs = queue.popleft()
            if queue:
                self._waiting[account] = queue
            self._begun.append(inputs)
            is_wanted = self._wanted.get(inputs.request.request_id) is inputs
        return inputs, self._make(inputs) if is_wanted else RequestPlan()
