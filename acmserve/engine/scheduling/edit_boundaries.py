"""Has vLLM keep what the next edit will need: one boundary in front of each piece that a request calls foldable.

    on_lookup     a waiting request was looked up: plan its boundaries, name the first one behind what was found
    begin_step    a running request stands at a chunk: name the next one
    cap_chunk     the chunk ends before a second boundary would need keeping
    count         once prefilled: how many are there, for the receipt

vLLM keeps one boundary for each chunk, `Request.shared_prefix_boundary`, and sets it itself where it sees that two
requests share a prefix. That one stays: it is a boundary like the others. Nothing is pinned or copied. What is kept
waits in vLLM's prefix cache like everything else, and goes when room is needed.

It knows positions and requests. What a boundary costs is in `engine/vllm/sparse_groups.py`. On a model of full
attention alone there are no rules, and nothing is done.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING

from acmserve.engine.requests.receipt import EditBoundaries
from acmserve.engine.requests.session_request import SessionRequest
from acmserve.errors import IntegrityError
from acmserve.plan.rules.boundaries import (
    BoundaryPlan,
    BoundaryRules,
    next_boundary,
    next_stop,
    plan_boundaries,
    weigh_boundaries,
)

if TYPE_CHECKING:
    from acmserve.engine.vllm.types import Request

MAX_POOL_SHARE = 0.25
"""The tails of one prompt hold at most this part of the blocks, whatever the budget in bytes."""

IsKept = Callable[["Request", int], bool]


@dataclass(slots=True)
class _Keeping:
    """One request: the weights of its boundaries, the plan made behind `num_found` tokens, and what it is to meet."""

    request: Request
    weights: dict[int, int]
    num_found: int = -1
    plan: BoundaryPlan = field(default_factory=BoundaryPlan)
    ahead: tuple[int, ...] = ()


class EditBoundaryKeeper:
    """The boundaries of one scheduler's requests. `rules` None: every group keeps everything, so nothing is done."""

    def __init__(self, rules: BoundaryRules | None, max_bytes: int, num_pool_blocks: int, is_kept: IsKept) -> None:
        self._rules = rules if max_bytes > 0 else None
        self._is_kept = is_kept
        self._keepings: dict[str, _Keeping] = {}
        self._max_blocks = 0
        if rules is not None:
            self._max_blocks = min(max_bytes // rules.block_bytes, int(num_pool_blocks * MAX_POOL_SHARE))

    def add(self, session: SessionRequest, request: Request) -> None:
        """A session request arrived."""
        if self._rules is None or not session.foldable:
            return
        weights = weigh_boundaries(session.foldable, request.num_prompt_tokens, self._rules)
        self._keepings[request.request_id] = _Keeping(request, weights)
        session.count_boundaries = partial(self.count, request.request_id)

    def remove(self, request_id: str) -> None:
        """The request finished or was aborted."""
        self._keepings.pop(request_id, None)

    def on_lookup(self, request_id: str, num_found: int) -> None:
        """vLLM looked up a waiting request. `num_found` tokens are there, with those that will be copied."""
        keeping = self._keepings.get(request_id)
        if keeping is None or self._rules is None:
            return
        request = keeping.request
        if keeping.num_found != num_found:
            kept = [place for place in keeping.weights if place <= num_found and self._is_kept(request, place)]
            keeping.num_found = num_found
            keeping.plan = plan_boundaries(keeping.weights, num_found, kept, self._rules, self._max_blocks)
        seen_by_vllm = request.shared_prefix_boundary
        own = (seen_by_vllm,) if seen_by_vllm > num_found else ()
        keeping.ahead = tuple(sorted({*(place for place in keeping.plan.chosen if place > num_found), *own}))
        self._name_next(keeping, num_found)

    def begin_step(self) -> None:
        """Name the boundary that each running request meets next. Call when the computed positions are final."""
        for keeping in self._keepings.values():
            if keeping.ahead and keeping.request.num_computed_tokens:
                self._name_next(keeping, keeping.request.num_computed_tokens)

    def _name_next(self, keeping: _Keeping, position: int) -> None:
        assert self._rules is not None
        place = next_boundary(keeping.ahead, position, self._rules)
        if place is not None:
            keeping.request.shared_prefix_boundary = place

    def cap_chunk(self, request_id: str, num_computed: int, num_new: int) -> int:
        """The chunk `[num_computed, +num_new)`, shortened where a second boundary lies in it.

        With recurrent groups vLLM has ended it at the first one.
        """
        keeping = self._keepings.get(request_id)
        if keeping is None or self._rules is None or self._rules.stops_itself:
            return num_new
        stop = next_stop(keeping.ahead, num_computed, self._rules)
        return num_new if stop is None else min(num_new, stop - num_computed)

    def count(self, request_id: str) -> EditBoundaries | None:
        """What is kept of a prefilled request. None where all groups keep everything, or no piece was named."""
        keeping = self._keepings.get(request_id)
        if keeping is None or self._rules is None:
            return None
        num_kept = sum(self._is_kept(keeping.request, place) for place in keeping.plan.chosen)
        num_bytes = keeping.plan.num_blocks * self._rules.block_bytes
        return EditBoundaries(num_kept, len(keeping.plan.wanted), num_bytes)

    def num_left(self, request_id: str) -> int:
        """Blocks that the boundaries of a request leave of what one prompt may hold. 0 where no piece was named."""
        keeping = self._keepings.get(request_id)
        return 0 if keeping is None else self._max_blocks - keeping.plan.num_blocks

    def check_integrity(self) -> None:
        """Raise `IntegrityError` for a request that has finished, or boundaries out of order or beyond the room."""
        for request_id, keeping in self._keepings.items():
            if keeping.request.is_finished():
                raise IntegrityError(f"edit boundaries: {request_id} has finished and is still here")
            if list(keeping.ahead) != sorted(set(keeping.ahead)):
                raise IntegrityError(f"edit boundaries: those of {request_id} are not in order: {keeping.ahead[:3]}")
            if keeping.plan.num_blocks > self._max_blocks:
                raise IntegrityError(
                    f"edit boundaries: {keeping.plan.num_blocks} blocks for {request_id}, {self._max_blocks} allowed"
                )
