"""Where one layer keeps the K and V of a token, as index functions over its KV cache tensor.

Every vLLM KV cache here is logically `[num_blocks, num_kv_heads, block_size, row_size]`. How the elements of one head
of one block are used is the layout's matter. Each layout is one file in `layouts/`, and `layouts/registry.py` is the
list of them.

It does not know positions, or what a move is.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any, ClassVar, Self

import torch
from torch import Tensor

from acmserve.errors import MoveRefused
from acmserve.kernels.rope import Rope

FLOAT_TYPES = frozenset({torch.float32, torch.bfloat16, torch.float16})
# vLLM stores the two 8-bit types in bytes, which are viewed as these (`stored_type.py`).
FP8_TYPES = frozenset({torch.float8_e4m3fn, torch.float8_e5m2})
TYPES = FLOAT_TYPES | FP8_TYPES
REFERENCE = "reference"


@dataclass(frozen=True, slots=True)
class KVLayout(ABC):
    """Geometry of one layer's KV cache. `key_index` and `value_index` define it, everything else follows.

    `head_size` is the width of a key. A layout says what it is called and which of vLLM's layers are its own. It also
    says what it cannot hold, and which mover is the fastest for it.
    """

    num_kv_heads: int
    block_size: int
    head_size: int

    name: ClassVar[str]

    def __post_init__(self) -> None:
        if min(self.num_kv_heads, self.block_size, self.head_size) <= 0:
            raise ValueError(f"{self} has an empty dimension")

    @classmethod
    @abstractmethod
    def probe(cls, attention: Any, kv: Tensor) -> tuple[Tensor, Self] | None:
        """The cache as `[num_blocks, num_kv_heads, block_size, row_size]`, and its geometry.

        None where this attention layer of vLLM keeps its cache otherwise. Raises `MoveRefused` where it is one of this
        layout, but of a shape that nobody knows.
        """

    @property
    def value_size(self) -> int:
        """Elements of one token's value in one head."""
        return self.head_size

    @property
    def row_size(self) -> int:
        """Elements of one token in one head, K and V."""
        return self.head_size + self.value_size

    @abstractmethod
    def key_index(self, t: Tensor, d: Tensor) -> Tensor:
        """Position of K(token t, dimension d) among the `block_size * row_size` elements of one head."""

    @abstractmethod
    def value_index(self, t: Tensor, d: Tensor) -> Tensor:
        """Position of V(token t, dimension d), counted as in `key_index`."""

    def check(self, kv: Tensor, rope: Rope | None) -> None:  # noqa: B027 -- a layout may hold everything
        """Raise `ValueError` for a cache of the right shape that this layout cannot hold."""

    def mover(self, kv: Tensor, rope: Rope | None) -> str:
        """The fastest mover for such a cache, by its name in `dispatch.MOVERS`."""
        return REFERENCE


@dataclass(frozen=True, slots=True, eq=False)
class KVLayer:
    """The KV cache of one attention layer and the rotation in its keys.

    Attributes:
        kv: `[num_blocks, num_kv_heads, block_size, row_size]`. A latent cache of vLLM is passed as `kv.unsqueeze(1)`.
            8-bit types keep `value / scale` with one scale for the tensor. A move need not know the scale: the rotation
            is linear, so turning the stored number turns the value.
        layout: how `kv` is used.
        rope: rotation of the cached keys. None for a layer whose keys carry no position (they are copied).

    """

    kv: Tensor
    layout: KVLayout
    rope: Rope | None

    def __post_init__(self) -> None:
        layout = self.layout
        inner = (layout.num_kv_heads, layout.block_size, layout.row_size)
        if self.kv.dim() != 4 or tuple(self.kv.shape[1:]) != inner:
            raise ValueError(f"KV cache of shape {tuple(self.kv.shape)} is not [num_blocks, {inner}] of {layout}")
        if self.kv.dtype not in TYPES:
            known = ", ".join(sorted(map(name_of_type, TYPES)))
            raise ValueError(f"KV cache of dtype {self.kv.dtype}: only {known} can be moved")
        if self.rope is not None and self.rope.rot_dim > layout.head_size:
            raise ValueError(f"rot_dim {self.rope.rot_dim} exceeds head_size {layout.head_size}")
        layout.check(self.kv, self.rope)


def name_of_type(dtype: torch.dtype) -> str:
    """`float8_e4m3fn` of `torch.float8_e4m3fn`."""
    return str(dtype).removeprefix("torch.")


def read_shape(attention: Any, kv: Tensor) -> tuple[int, int, int]:
    """`num_kv_heads`, `block_size` and `head_size` of a cache whose rows are K and V of one size.

    Raises `MoveRefused`.
    """
    if kv.dim() != 4:
        raise MoveRefused(f"kv cache: shape {tuple(kv.shape)} is not supported")
    _, num_kv_heads, block_size, width = kv.shape
    head_size = getattr(attention, "head_size", None)  # a cache that is no attention's has none
    if head_size is None or width != 2 * head_size:
        raise MoveRefused(f"kv cache: rows of {width} for head size {head_size} are not supported")
    return num_kv_heads, block_size, width // 2
