"""Chooses the mover of each layer and runs `move`. The one entry that the engine uses.

    mover        by                         for
    cpu          movers/cpu.py, C++         the layouts of vLLM's CPU attention
    triton       movers/triton.py           row caches on a GPU
    reference    movers/reference.py        any layout, anywhere; right, not fast

A layout names the mover that is the fastest for it. Where that mover cannot run here, the reference moves instead.
Checks the runs once for all of them. It does not know requests, the owners of blocks, or any layout.
"""

from __future__ import annotations

import importlib
import importlib.util
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch

from acmserve.kernels.layout import REFERENCE, KVLayer
from acmserve.kernels.movers import reference
from acmserve.kernels.runs import MoveRun, check_runs

MoveFunction = Callable[[Sequence[MoveRun]], None]


class LayerMover:
    """Moves KV in the layers of one KV cache group. Build once, call every step.

    `implementations` counts the layers by implementation, for logs and `acmserve doctor`.
    """

    def __init__(
        self,
        layers: Sequence[KVLayer],
        num_threads: int = 1,
        cpus: Sequence[int] | None = None,
        block_size: int | None = None,
    ) -> None:
        """Choose implementations and build their tables.

        Args:
            layers: KV caches that share slots: same number of blocks and block size.
            num_threads: bound for the CPU kernel, the calling thread included.
            cpus: cores for its helper threads; None: those that this process' threads may use.
            block_size: tokens of a block of the runs; None: as the layers have it. It may be a multiple of that.

        """
        if not layers:
            raise ValueError("a mover needs at least one layer")
        if num_threads < 1:
            raise ValueError(f"num_threads {num_threads} must be at least 1")
        sizes = {(layer.kv.shape[0], layer.layout.block_size) for layer in layers}
        if len(sizes) != 1:
            raise ValueError(f"layers of one mover share slots, but have (num_blocks, block_size) {sorted(sizes)}")
        num_rows, row_size = next(iter(sizes))
        self._block_size = block_size or row_size
        if num_rows * row_size % self._block_size or self._block_size % row_size:
            raise ValueError(f"block_size {block_size} does not cut {num_rows} blocks of {row_size} tokens evenly")
        self._num_blocks = num_rows * row_size // self._block_size
        chosen: dict[str, list[KVLayer]] = {}
        for layer in layers:
            chosen.setdefault(choose(layer), []).append(layer)
        self.implementations = {name: len(members) for name, members in chosen.items()}
        self._functions = [
            MOVERS[name].build(members, self._block_size, num_threads, cpus) for name, members in chosen.items()
        ]

    def move(self, runs: Sequence[MoveRun]) -> None:
        """Copy K and V of all layers from block to block, K turned by each run's delta.

        Raises:
            IntegrityError: a run leaves the cache, a block is read and written, or a slot is written twice. Nothing
                was written.

        """
        check_runs(runs, self._num_blocks, self._block_size)
        if runs:
            for function in self._functions:
                function(runs)

    def warm_up(self) -> None:
        """Let kernels that are compiled when they first run be compiled now.

        Slot 0 of block 0 is written over itself. That is vLLM's null block, whose KV nobody reads.
        """
        for function in self._functions:
            function([MoveRun([0], 0, [0], 0, 1, 0)])


def move(layers: Sequence[KVLayer], runs: Sequence[MoveRun], num_threads: int = 1) -> None:
    """One move without a kept `LayerMover`. Arguments and errors as there."""
    LayerMover(layers, num_threads).move(runs)


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

    `build` gets the layers, the tokens of a block of the runs, the bound of threads and the cores for them.
    """

    why_not: Callable[[], str | None]
    describe: Callable[[], str]
    build: Callable[[list[KVLayer], int, int, Sequence[int] | None], MoveFunction]


def _build_cpu(layers: list[KVLayer], block_size: int, num_threads: int, cpus: Sequence[int] | None) -> MoveFunction:
    from acmserve.kernels.movers.cpu import CpuMover

    return CpuMover(layers, block_size, num_threads, cpus).move


def _build_triton(layers: list[KVLayer], block_size: int, num_threads: int, cpus: Sequence[int] | None) -> MoveFunction:
    from acmserve.kernels.movers.triton import StridedMover

    return StridedMover(layers, block_size).move


def _build_reference(
    layers: list[KVLayer], block_size: int, num_threads: int, cpus: Sequence[int] | None
) -> MoveFunction:
    return lambda runs: reference.move(layers, runs, block_size)


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
