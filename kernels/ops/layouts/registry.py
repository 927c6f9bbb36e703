"""The list of KV layouts, and which of them a layer of vLLM has."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from acmserve.errors import MoveRefused
from acmserve.kernels.layout import KVLayer, KVLayout
from acmserve.kernels.layouts.cpu_amx import CpuAmxLayout
from acmserve.kernels.layouts.cpu_vec import CpuVecLayout
from acmserve.kernels.layouts.latent import LatentLayout
from acmserve.kernels.layouts.strided import StridedLayout
from acmserve.kernels.layouts.unequal import UnequalLayout
from acmserve.kernels.stored_type import check_scales, view_stored

LAYOUTS: list[type[KVLayout]] = [
    UnequalLayout,
    StridedLayout,
    LatentLayout,
    CpuVecLayout,
    CpuAmxLayout,
]


def find_layer(name: str, attention: Any, kv: Any) -> KVLayer:
    """The layer of this name as one that carries no positions, which is all that a copy needs.

    `attention` is vLLM's attention layer, `kv` its cache. Raises `MoveRefused` where no layout fits, `ValueError` where
    one fits whose rules the cache breaks.
    """
    if not isinstance(kv, Tensor):
        raise MoveRefused(f"kv cache: {name} keeps a {type(kv).__name__} instead of one tensor")
    numbers = view_stored(attention, kv)
    for layout in LAYOUTS:
        found = layout.probe(attention, numbers)
        if found is not None:
            check_scales(attention, found[1].num_kv_heads)
            return KVLayer(*found, None)
    raise MoveRefused(f"kv cache: CPU layout {getattr(attention, 'isa', None)!r} is not supported")
