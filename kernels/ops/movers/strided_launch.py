"""Layers of row caches that one launch of the Triton kernel serves, as tables on the device.

It knows addresses, strides and rotations. It does not know runs, or how the kernel reads the tables.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from acmserve.kernels.layer_group import LayerGroup
from acmserve.kernels.layout import KVLayer
from acmserve.kernels.rope import Rope

ALIGNMENT = 16  # bytes of the widest load


@dataclass(frozen=True, slots=True)
class StridedLaunch:
    """Layers of one geometry, by group, that one launch serves.

    `table` is int64 `[num_layers, 5]`, `spans` `[num_groups, 2]`, both on the device (see `triton.py`). `ropes` are
    the rows of the angle table. `aligned` is the number of elements that every address and stride is a multiple of, or
    1. `is_native`: the device converts 8-bit floats itself. `block_size` is that of the runs' blocks, in tokens.
    """

    table: Tensor
    spans: Tensor
    num_layers: dict[int, int]
    ropes: tuple[Rope, ...]
    first: KVLayer
    aligned: int
    is_native: bool
    block_size: int

    @classmethod
    def of(cls, groups: Mapping[int, Sequence[KVLayer]], places: Mapping[int, int], block_size: int) -> StridedLaunch:
        layers = [layer for members in groups.values() for layer in members]
        ropes = tuple(dict.fromkeys(layer.rope for layer in layers if layer.rope is not None))
        rows = [
            [layer.kv.data_ptr(), *layer.kv.stride()[:3], -1 if layer.rope is None else ropes.index(layer.rope)]
            for layer in layers
        ]
        size = layers[0].kv.element_size()
        aligned = all(row[0] % ALIGNMENT == 0 and all(s * size % ALIGNMENT == 0 for s in row[1:4]) for row in rows)
        spans, at = [[0, 0] for _ in places], 0
        for group, members in groups.items():
            spans[places[group]] = [at, len(members)]
            at += len(members)
        device = layers[0].kv.device
        table, span_table = (torch.tensor(values, dtype=torch.int64).to(device) for values in (rows, spans))
        num_layers = {group: len(members) for group, members in groups.items()}
        step = ALIGNMENT // size if aligned else 1
        return cls(table, span_table, num_layers, ropes, layers[0], step, converts_fp8(device), block_size)


def converts_fp8(device: torch.device) -> bool:
    """Whether the device has instructions that round to 8-bit floats: NVIDIA's since compute capability 8.9."""
    return device.type == "cuda" and not torch.version.hip and torch.cuda.get_device_capability(device) >= (8, 9)


def geometry_of(layer: KVLayer, group: LayerGroup) -> tuple[object, ...]:
    """What layers must have in common to share a launch."""
    return layer.layout, layer.kv.dtype, layer.kv.stride(3), layer.kv.device, group.block_size


def pairing_of(rope: Rope | None) -> tuple[int, bool]:
    """Numbers of a row that turn, and whether first and second half are paired."""
    return (0, True) if rope is None else (rope.rot_dim, rope.is_neox)
