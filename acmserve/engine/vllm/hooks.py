"""What vLLM's side calls: protocols that the layers above implement.

`scheduler.py` and `install.py` know these protocols and nothing of moves, plans or sessions. So the engine's private
seams depend on nobody, and a scheduler whose connector has no `attach` is left alone.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

if TYPE_CHECKING:
    from vllm.v1.core.kv_cache_utils import KVCacheBlock
    from vllm.v1.request import Request


READY_AT = "acm_ready_at"
"""Attribute of a request: when it could have begun, in seconds of the monotonic clock. A step may be running then."""
Padding = tuple[int, ...]
"""Null blocks that a block table got in front of what was allocated in this step, by KV cache group."""


@dataclass(frozen=True, slots=True)
class HolePass:
    """What one request computes in a step: tokens `[start, end)` each, in order, with copied ones between them.

    vLLM counts these tokens as one chunk that ends where the last span does.
    """

    request_id: str
    spans: tuple[tuple[int, int], ...]


@runtime_checkable
class StepLeft(Protocol):
    """A worker's word that it left the forward pass of a step, in front of `left_layer`."""

    left_layer: str


@dataclass(frozen=True, slots=True)
class StepOutcome:
    """What a step leaves for vLLM: running requests that leapt, pinned blocks, and whether anything is copied."""

    leapt: Mapping[str, Padding]
    pins: Sequence[KVCacheBlock]
    has_copies: bool


class StepHooks(Protocol):
    """One scheduler's steps, in the order of the calls."""

    @property
    def is_idle(self) -> bool:
        """Whether this step has nothing of ours: then vLLM's own `schedule` runs alone."""

    def is_aside(self, request_id: str) -> bool:
        """Whether this step passes over a waiting request. It keeps its place in the queue."""

    def begin_reads(self, waiting: Iterable[Request]) -> tuple[Sequence[str], Sequence[Request]]:
        """Before a step: requests of the hooks' own to finish, and to add. `waiting` are those in the queues."""

    def is_through(self, request_id: str) -> bool:
        """Whether a request that vLLM may go on with was only to be loaded. It goes no further."""

    @property
    def num_background(self) -> int:
        """Background requests alive."""

    def to_preempt(self, num_others: int) -> Sequence[Request]:
        """Running background requests that give way to `num_others` requests of the foreground."""

    def to_hold(self, num_others: int) -> Sequence[Request]:
        """Waiting background requests that this step must not see."""

    def begin_step(self, running: Sequence[Request], waiting: Iterable[Request] | None, num_held: int) -> bool:
        """Before anything is allocated. Returns whether prefill chunks have to be capped in this step.

        `waiting` is None where no waiting request can be admitted in this step.
        """

    def cap_chunk(self, request: Request, num_computed: int, num_new: int, num_behind: int) -> int:
        """The chunk `[num_computed, +num_new)`, shortened to where the next move begins.

        With a chunk, vLLM allocates blocks for `num_behind` tokens behind it, which drafts may fill.
        """

    def on_preempted(self, request: Request) -> Sequence[int]:
        """A request is about to lose its blocks. Returns how many of them hold KV that was computed, by group."""

    def on_freed(self, block_ids: Sequence[int]) -> None:
        """These blocks are about to be freed."""

    def finish_step(self, num_scheduled: Mapping[str, int], is_paused: bool) -> StepOutcome:
        """The step is built: `num_scheduled` tokens by request."""

    def take_left(self, num_scheduled: Mapping[str, int], is_left: bool) -> Request | None:
        """The workers are through with a step, and left its forward pass or not. A request to be preempted, if any."""

    def on_processed(self, num_scheduled: Mapping[str, int]) -> None:
        """The workers are through with a step."""

    def answer(self, request_id: str) -> dict[str, Any] | None:
        """The receipt so far as `kv_transfer_params`. None for a request without session."""

    def take_ended(self) -> Iterable[tuple[str, dict[str, Any]]]:
        """Background requests to finish now, with their receipts."""

    def on_cache_reset(self) -> None:
        """The prefix cache was reset: nothing that was served can be found any more."""


@runtime_checkable
class ConnectorHooks(Protocol):
    """A KV connector whose scheduler carries out moves. `abilities.move_refusal` is why it does not, or None."""

    abilities: Any

    def attach(self) -> StepHooks:
        """The scheduler's side is there. Called once, when the scheduler has been built."""

    def inspect(self, model: Any, drafter: Any) -> None:
        """The worker's side: the model is loaded, and that of the drafter, where speculative decoding has one."""

    def on_queued(self, request: Any) -> None:
        """The scheduler's side: a vLLM `EngineCoreRequest` arrived. Called by the thread that reads what arrives."""

    def on_adapter_load(self, lora: Any) -> None:
        """The scheduler's side: an adapter is about to be loaded, a vLLM `LoRARequest`."""
