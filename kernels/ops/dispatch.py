"""Chooses the mover of each layer and runs `move`. The one entry that the engine uses.

    mover        by                         for
    cpu          movers/cpu.py, C++         the layouts of vLLM's CPU attention
    triton       movers/triton.py           row caches on a GPU
    reference    movers/reference.py        any layout, anywhere; right, not fast

A layout names the mover that is the fastest for it. Where that mover cannot run here, the reference moves instead.
Checks the slots once for all of them. It does not know requests, the owners of blocks, or any layout.
"""

from __future__ import annotations

import importlib
import importlib.util
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from acmserve.kernels.layout import REFERENCE, KVLayer
from acmserve.kernels.movers import reference
from acmserve.kernels.slots import SlotRun, check_segments, check_slots

MoveFunction = Callable[[Tensor, Tensor, Sequence[SlotRun]], None]


class LayerMover:
    """Moves KV in the layers of one KV cache group. Build once, call every step.

    `implementations` counts the layers by implementation, for logs and `acmserve doctor`.
    """

    def __init__(self, layers: Sequence[KVLayer], num_threads: int = 1, cpus: Sequence[int] | None = None) -> None:
        """Choose implementations and build their tables.

        Args:
            layers: KV caches that share slots: same number of blocks and block size.
            num_threads: bound for the CPU kernel, the calling thread included.
            cpus: cores for its helper threads; None: those that this process' threads may use.

        """
        if not layers:
            raise ValueError("a mover needs at least one layer")
        if num_threads < 1:
            raise ValueError(f"num_threads {num_threads} must be at least 1")
        sizes = {(layer.kv.shape[0], layer.layout.block_size) for layer in layers}
        if len(sizes) != 1:
            raise ValueError(f"layers of one mover share slots, but have (num_blocks, block_size) {sorted(sizes)}")
        self._num_blocks, self._block_size = next(iter(sizes))
        chosen: dict[str, list[KVLayer]] = {}
        for layer in layers:
            chosen.setdefault(choose(layer), []).append(layer)
        self.implementations = {name: len(members) for name, members in chosen.items()}
        self._functions = [MOVERS[name].build(members, num_threads, cpus) for name, members in chosen.items()]

    def move(self, src_slots: Tensor, dst_slots: Tensor, segments: Sequence[SlotRun]) -> None:
        """Copy K and V of all layers between slots, K turned by each segment's delta.

            src_slots   s0 s1 s2 | s3 s4 ...        segment 0: delta -1980 | segment 1: delta 0 ...
                         v  v  v |  v  v
            dst_slots   d0 d1 d2 | d3 d4 ...

        Args:
            src_slots: int64 `[num_slots]` on the CPU, `block_id * block_size + offset`.
            dst_slots: likewise; no block may be among the sources' blocks, no slot may occur twice.
            segments: tile `[0, num_slots)` in order.

        Raises:
            IntegrityError: the arguments break one of these rules; nothing was written.

        """
        check_segments(segments, src_slots.numel())
        check_slots(src_slots, dst_slots, self._num_blocks, self._block_size)
        if src_slots.numel() == 0:
            return
        for function in self._functions:
            function(src_slots, dst_slots, segments)


def move(
    layers: Sequence[KVLayer],
    src_slots: Tensor,
    dst_slots: Tensor,
    segments: Sequence[SlotRun],
    num_threads: int = 1,
) -> None:
    """One move without a kept `LayerMover`. Arguments and errors as there."""
    LayerMover(layers, num_threads).move(src_slots, dst_slots, segments)


def choose(layer: KVLayer) -> str:
    """Name of the mover that serves this layer."""
    name = layer.layout.mover(layer.kv, layer.rope)
    return name if MOVERS[name].why_not() is None else REFERENCE


class Availability(NamedTuple):
    """Whether a mover can run here. `detail` says with what, or why not."""

    usable: bool
    detail: str


def available() -> dict[str, Availability]:
    """Every mover and whether it can run on this machine, for `acmserve doctor`."""
    found = {}
    for name, mover in MOVERS.items():
        reason = mover.why_not()
        found[name] = Availability(reason is None, mover.describe() if reason is None else reason)
    return found


@dataclass(frozen=True, slots=True)
class Mover:
    """`why_not` says what keeps it from running here, `describe` with what it runs.

    `build` gets the layers, the bound of threads and the cores for them.
    """

    why_not: Callable[[], str | None]
    describe: Callable[[], str]
    build: Callable[[list[KVLayer], int, Sequence[int] | None], MoveFunction]


def _build_cpu(layers: list[KVLayer], num_threads: int, cpus: Sequence[int] | None) -> MoveFunction:
    from acmserve.kernels.movers.cpu import CpuMover

    return CpuMover(layers, num_threads, cpus).move


def _build_triton(layers: list[KVLayer], num_threads: int, cpus: Sequence[int] | None) -> MoveFunction:
    from acmserve.kernels.movers.triton import StridedMover

    return StridedMover(layers).move


def _build_reference(layers: list[KVLayer], num_threads: int, cpus: Sequence[int] | None) -> MoveFunction:
    return lambda src, dst, segments: reference.move(layers, src, dst, segments)


def _why_not_cpu() -> str | None:
    try:
        importlib.import_module("acmserve._native")
    except ImportError as error:
        return f"acmserve._native is not built ({error}); reinstall acmserve with a C++17 compiler"
    return None


def _why_not_triton() -> str | None:
    if not torch.cuda.is_available():
        return "no CUDA device"
    if importlib.util.find_spec("triton") is None:
        return "triton is not installed"
    return None


def _describe_cpu() -> str:
    import acmserve._native as _native

    info = _native.build_info()
    return f"{info['compiler']} {info['compiler_version']}, {info['instructions']}"


MOVERS = {
    "cpu": Mover(_why_not_cpu, _describe_cpu, _build_cpu),
    "triton": Mover(_why_not_triton, lambda: torch.version.cuda or "cuda", _build_triton),
    REFERENCE: Mover(lambda: None, lambda: f"torch {torch.__version__}", _build_reference),
}
