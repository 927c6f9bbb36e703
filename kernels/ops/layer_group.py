"""The layers whose KV the same runs move: those of one of vLLM's KV cache groups.

A run names blocks by number. In all layers of a group a block of that number holds KV of the same tokens. The layers of
another group have block tables of their own.

It does not know what a group keeps, or of which requests.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from acmserve.kernels.layout import KVLayer
from acmserve.kernels.runs import MoveRun

LayerGroups = Mapping[int, "LayerGroup"]
"""The groups of an engine by their numbers. Those without KV of tokens are missing."""
GroupRuns = Mapping[int, Sequence[MoveRun]]
"""What is moved in each group in one step."""


@dataclass(frozen=True, slots=True)
class LayerGroup:
    """KV caches that share slots: same number of blocks and block size.

    `block_size` is that of the runs' blocks, in tokens. It may be a multiple of what the layers have.
    """

    layers: Sequence[KVLayer]
    block_size: int

    def __post_init__(self) -> None:
        if not self.layers:
            raise ValueError("a mover needs at least one layer")
        sizes = {(layer.kv.shape[0], layer.layout.block_size) for layer in self.layers}
        if len(sizes) != 1:
            raise ValueError(f"layers of one mover share slots, but have (num_blocks, block_size) {sorted(sizes)}")
        num_rows, row_size = next(iter(sizes))
        if num_rows * row_size % self.block_size or self.block_size % row_size:
            raise ValueError(f"block_size {self.block_size} does not cut {num_rows} blocks of {row_size} tokens evenly")

    @classmethod
    def of(cls, layers: Sequence[KVLayer], block_size: int | None = None) -> LayerGroup:
        """A group of these layers. Without `block_size` the runs count in the layers' own blocks."""
        own = layers[0].layout.block_size if layers else 1
        return cls(layers, own if block_size is None else block_size)

    @property
    def num_blocks(self) -> int:
        """Blocks of the runs."""
        first = self.layers[0]
        return first.kv.shape[0] * first.layout.block_size // self.block_size
