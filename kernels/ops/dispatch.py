"""Chooses the mover of each layer and runs `move`. The one entry that the engine uses.

    mover        by                         for
    cpu          movers/cpu.py, C++         the layouts of vLLM's CPU attention
    triton       movers/triton.py           row caches on a GPU
    reference    movers/reference.py        any layout, anywhere: right, not fast

A layout names the mover that is the fastest for it. Where that mover cannot run here, the reference moves instead.
Checks the runs once for all of them. It does not know requests, the owners of blocks, or any layout.
"""

from __future__ import annotations

import importlib
import importlib.util
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import NamedTuple

import torch

from acmserve.kernels.layer_group import GroupRuns, LayerGroup, LayerGroups
from acmserve.kernels.layout import REFERENCE, KVLayer
from acmserve.kernels.movers import reference
from acmserve.kernels.runs import MoveRun, check_groups

MoveFunction = Callable[[GroupRuns], None]


class GroupMover:
    """Moves KV in the layers of all KV cache groups of an engine. Build once, call every step.

    `implementations` counts the layers by implementation, for logs and `acmserve doctor`.
    """

    def __init__(self, groups: LayerGroups, num_threads: int = 1, cpus: Sequence[int] | None = None) -> None:
        """Choose implementations and build their tables.

        Args:
            groups: the layers of each group.
            num_threads: bound for the CPU kernel, the calling thread included.
            cpus: cores for its helper threads. None: those that this process' threads may use.

        """
        if num_threads < 1:
            raise ValueError(f"num_threads {num_threads} must be at least 1")
        self._sizes = {number: (group.num_blocks, group.block_size) for number, group in groups.items()}
        chosen: dict[str, dict[int, LayerGroup]] = {}
        for number, group in groups.items():
            for name in dict.fromkeys(map(choose, group.layers)):
                members = [layer for layer in group.layers if choose(layer) == name]
                chosen.setdefault(name, {})[number] = replace(group, layers=members)
        self.implementations = {
            name: sum(len(group.layers) for group in found.values()) for name, found in chosen.items()
        }
        self._functions = [MOVERS[name].build(found, num_threads, cpus) for name, found in chosen.items()]

    def move(self, runs: GroupRuns) -> None:
        """Copy K and V of all layers of each group from block to block, K turned by each run's delta.

        Raises:
            IntegrityError: a run leaves the cache, a block is read and written, or a slot is written twice. Nothing
                was written, in no group.

        """
        runs = {number: found for number, found in runs.items() if found}
        check_groups(runs, self._sizes)
        if runs:
            for function in self._functions:
                function(runs)

    def warm_up(self) -> None:
        """Let kernels that are compiled when they first run be compiled now.

        Slot 0 of block 0 is written over itself. That is vLLM's null block, whose KV nobody reads.
        """
        for function in self._functions:
            function({number: [MoveRun([0], 0, [0], 0, 1, 0)] for number in self._sizes})


class LayerMover:
    """A `GroupMover` of one group, with the runs of that group. `block_size` is as in `LayerGroup.of`."""

    def __init__(
        self,
        layers: Sequence[KVLayer],
        num_threads: int = 1,
        cpus: Sequence[int] | None = None,
        block_size: int | None = None,
    ) -> None:
        self._mover = GroupMover({0: LayerGroup.of(layers, block_size)}, num_threads, cpus)
        self.implementations = self._mover.implementations

    def move(self, runs: Sequence[MoveRun]) -> None:
        """See `GroupMover.move`."""
        self._mover.move({0: runs})

    def warm_up(self) -> None:
        """See `GroupMover.warm_up`."""
        self._mover.warm_up()


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

    `build` gets the layers of each group, the bound of threads and the cores for them.
    """

    why_not: Callable[[], str | None]
    describe: Callable[[], str]
    build: Callable[[LayerGroups, int, Sequence[int] | None], MoveFunction]


def _build_cpu(groups: LayerGroups, num_threads: int, cpus: Sequence[int] | None) -> MoveFunction:
    from acmserve.kernels.movers.cpu import CpuMover

    return _one_by_one(
        {number: CpuMover(group.layers, group.block_size, num_threads, cpus).move for number, group in groups.items()}
    )


def _build_triton(groups: LayerGroups, num_threads: int, cpus: Sequence[int] | None) -> MoveFunction:
    from acmserve.kernels.movers.triton import StridedMover

    return StridedMover(groups).move


def _build_reference(groups: LayerGroups, num_threads: int, cpus: Sequence[int] | None) -> MoveFunction:
    return _one_by_one(
        {number: partial(reference.move, group.layers, block_size=group.block_size) for number, group in groups.items()}
    )


def _one_by_one(functions: Mapping[int, Callable[[Sequence[MoveRun]], None]]) -> MoveFunction:
    """A call for each group: on a CPU it costs what an ordinary call costs, and no launch."""

    def move_groups(runs: GroupRuns) -> None:
        for number, function in functions.items():
            if number in runs:
                function(runs[number])

    return move_groups


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
