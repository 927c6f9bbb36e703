"""Where one layer keeps the K and V of a token, as index functions over its KV cache tensor.

Every vLLM KV cache here is logically `[num_blocks, num_kv_heads, block_size, row_size]`. How the elements of one head
of one block are used differs:

    strided   row t = K of token t, then V of token t             GPU backends; the four strides are free
    latent    row t = latent kv_c of token t, then its key k_pe   GPU backends of MLA; one head, the strides are free
    vec       K [head_size, block_size], then V [block_size, head_size]         CPU_ATTN, fp32 / bf16 / fp16
    vec16     as vec
    amx       K and V in VNNI order, two bf16 values to a 32-bit word           CPU_ATTN on machines with AMX

A latent cache fits the same words: `k_pe`, the one part of it that carries a position, is the key (`head_size` wide),
and `kv_c`, from which the model makes all its unrotated keys and its values, is the value (`latent_size` wide).

Sources: CPU rows, vllm/v1/attention/backends/cpu_attn.py and the op `cpu_attn_reshape_and_cache`, which
`tests/kernels/test_layout.py` compares against; strided, vllm/v1/kv_cache_layout.py (six orders of layer, block, head
and token, the row innermost in each); latent, vllm/model_executor/layers/attention/mla_attention.py. Does not know
positions or what a move is.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

import torch
from torch import Tensor

from acmserve.kernels.rope import Rope


class Isa(StrEnum):
    """Order of the elements inside one head of one block. CPU values are vLLM's own names (`Attention.isa`)."""

    VEC = "vec"
    VEC16 = "vec16"
    AMX = "amx"
    STRIDED = "strided"
    LATENT = "latent"


ROW_ISAS = frozenset({Isa.STRIDED, Isa.LATENT})
# vLLM stores the two 8-bit types in bytes; a worker views them as these.
FP8_TYPES = frozenset({torch.float8_e4m3fn, torch.float8_e5m2})
TYPES = frozenset({torch.float32, torch.bfloat16, torch.float16}) | FP8_TYPES


@dataclass(frozen=True, slots=True)
class KVLayout:
    """Geometry of one layer's KV cache; `key_index` and `value_index` define it, everything else follows.

    `head_size` is the width of a key. `latent_size` is that of `kv_c` in a latent cache (`kv_lora_rank`), else 0.
    """

    isa: Isa
    num_kv_heads: int
    block_size: int
    head_size: int
    latent_size: int = 0

    def __post_init__(self) -> None:
        if min(self.num_kv_heads, self.block_size, self.head_size) <= 0:
            raise ValueError(f"{self} has an empty dimension")
        if (self.isa is Isa.LATENT) != (self.latent_size > 0):
            raise ValueError(f"{self}: latent_size belongs to latent caches, and they need one")
        if self.isa is Isa.LATENT and self.num_kv_heads != 1:
            raise ValueError(f"{self}: a latent cache has one head")
        if self.isa is Isa.AMX and (self.block_size % 16 or self.head_size % 16):
            raise ValueError(f"{self}: amx needs block_size and head_size divisible by 16")

    @property
    def value_size(self) -> int:
        """Elements of one token's value in one head."""
        return self.latent_size or self.head_size

    @property
    def row_size(self) -> int:
        """Elements of one token in one head, K and V."""
        return self.head_size + self.value_size

    @property
    def key_start(self) -> int:
        """Where the key begins in a row of `strided` and `latent`."""
        return self.latent_size

    def key_index(self, t: Tensor, d: Tensor) -> Tensor:
        """Position of K(token t, dimension d) among the `block_size * row_size` elements of one head."""
        if self.isa in ROW_ISAS:
            return t * self.row_size + self.key_start + d
        if self.isa is Isa.AMX:
            return t // 16 * 16 * self.head_size + d // 2 * 32 + t % 16 * 2 + d % 2
        return d * self.block_size + t

    def value_index(self, t: Tensor, d: Tensor) -> Tensor:
        """Position of V(token t, dimension d), counted as in `key_index`."""
        if self.isa in ROW_ISAS:
            return t * self.row_size + (0 if self.isa is Isa.LATENT else self.head_size) + d
        values = self.block_size * self.head_size
        if self.isa is Isa.AMX:
            return values + d // 16 * 16 * self.block_size + t // 2 * 32 + d % 16 * 2 + t % 2
        return values + t * self.head_size + d


@dataclass(frozen=True, slots=True, eq=False)
class KVLayer:
    """The KV cache of one attention layer and the rotation in its keys.

    Attributes:
        kv: `[num_blocks, num_kv_heads, block_size, row_size]`, any strides for `strided` and `latent`; for the CPU
            layouts one head of one block is contiguous. A latent cache of vLLM, `[num_blocks, block_size, row_size]`,
            is passed as `kv.unsqueeze(1)`. 8-bit types keep `value / scale` with one scale for the tensor, which a move
            need not know: the rotation is linear, so turning the stored number turns the value.
        layout: how `kv` is used.
        rope: rotation of the cached keys; None for a layer whose keys carry no position (they are copied).

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
            known = ", ".join(sorted(str(dtype).removeprefix("torch.") for dtype in TYPES))
            raise ValueError(f"KV cache of dtype {self.kv.dtype}: only {known} can be moved")
        if layout.isa not in ROW_ISAS and self.kv.stride()[2:] != (2 * layout.head_size, 1):
            raise ValueError(f"KV cache with strides {self.kv.stride()}: {layout.isa} needs contiguous heads")
        if layout.isa is Isa.AMX and self.kv.dtype != torch.bfloat16:
            raise ValueError(f"KV cache of dtype {self.kv.dtype}: amx holds bfloat16 only")
        if self.rope is not None and self.rope.rot_dim > layout.head_size:
            raise ValueError(f"rot_dim {self.rope.rot_dim} exceeds head_size {layout.head_size}")
        if layout.isa is Isa.LATENT and self.rope is not None and self.rope.rot_dim != layout.head_size:
            raise ValueError(f"rot_dim {self.rope.rot_dim} is not the {layout.head_size} dimensions of k_pe")
