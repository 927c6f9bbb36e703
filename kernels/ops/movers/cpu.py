"""`move` on vLLM's CPU layouts through the C++ kernel (csrc/mover.hpp).

The table of layers is built once: KV caches do not move while an engine lives. A call costs the kernel plus about
20 microseconds. Does not check slots (`runs.py` does) beyond what keeps addresses inside of the cache.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

import numpy as np

import acmserve._native as _native
from acmserve.kernels.layout import KVLayer, name_of_type
from acmserve.kernels.rope import Rope, angles
from acmserve.kernels.runs import MoveRun


class CpuMover:
    """Moves KV in a fixed set of layers, all of one block size."""

    def __init__(
        self, layers: Sequence[KVLayer], block_size: int, num_threads: int, cpus: Sequence[int] | None = None
    ) -> None:
        """Keep the layers' memory alive and build the table.

        Args:
            layers: of layouts and types that csrc/layout.hpp knows.
            block_size: tokens of a block of the runs, a multiple of the layers' own.
            num_threads: upper bound of threads, the caller's included.
            cpus: cores for the helper threads. None: every core that some thread of this process may use at the time
                of construction. Inheriting would not do: an OpenMP runtime pins the main thread to one core.

        """
        self._layers = tuple(layers)
        self._ropes: tuple[Rope, ...] = tuple(dict.fromkeys(layer.rope for layer in layers if layer.rope is not None))
        self._block_size = block_size
        self._num_threads = num_threads
        self._cpus = list(process_cpus() if cpus is None else cpus)
        self._native = _native.Mover(
            [self._describe(layer) for layer in self._layers], [(rope.rot_dim, rope.is_neox) for rope in self._ropes]
        )

    def move(self, runs: Sequence[MoveRun]) -> None:
        """Move all layers. Arguments as `dispatch.LayerMover.move`."""
        deltas = [run.delta for run in runs]
        tables = [angles(rope, deltas) for rope in self._ropes]
        self._native.move(
            np.concatenate([run.source.slots(self._block_size) for run in runs]),
            np.concatenate([run.destination.slots(self._block_size) for run in runs]),
            np.cumsum([run.num_tokens for run in runs], dtype=np.int64),
            np.array(deltas, dtype=np.int64),
            [cos.astype(np.float32) for cos, _ in tables],
            [sin.astype(np.float32) for _, sin in tables],
            self._num_threads,
            self._cpus,
        )

    def _describe(self, layer: KVLayer) -> _native.Layer:
        return _native.Layer(
            base=layer.kv.data_ptr(),
            dtype=name_of_type(layer.kv.dtype),
            isa=layer.layout.name,
            num_blocks=layer.kv.shape[0],
            num_kv_heads=layer.layout.num_kv_heads,
            block_size=layer.layout.block_size,
            head_size=layer.layout.head_size,
            value_size=layer.layout.value_size,
            block_stride=layer.kv.stride(0),
            head_stride=layer.kv.stride(1),
            rope=-1 if layer.rope is None else self._ropes.index(layer.rope),
        )


def process_cpus() -> list[int]:
    """Cores that at least one thread of this process may run on, in order."""
    cpus = set(os.sched_getaffinity(0))
    for task in Path("/proc/self/task").iterdir():
        try:
            cpus |= os.sched_getaffinity(int(task.name))
        except ProcessLookupError:  # the thread ended meanwhile
            continue
    return sorted(cpus)
