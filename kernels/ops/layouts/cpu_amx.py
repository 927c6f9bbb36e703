"""`amx`, the layout of vLLM's CPU attention on machines with AMX: K and V in VNNI order.

    K    16 tokens by 2 dimensions side by side, two bf16 values to a 32-bit word
    V    16 dimensions by 2 tokens side by side, likewise

Source: vllm/v1/attention/backends/cpu_attn.py and its op `cpu_attn_reshape_and_cache`, with which
`tests/kernels/test_layout.py` compares where the machine has AMX.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from acmserve.kernels.layout import REFERENCE
from acmserve.kernels.layouts.cpu_vec import CpuVecLayout
from acmserve.kernels.rope import Rope


@dataclass(frozen=True, slots=True)
class CpuAmxLayout(CpuVecLayout):
    """K and V in the order in which AMX's tiles read them. Bfloat16 only."""

    name: ClassVar[str] = "amx"
    isas: ClassVar[tuple[str, ...]] = ("amx",)

    def __post_init__(self) -> None:
        CpuVecLayout.__post_init__(self)
        if self.block_size % 16 or self.head_size % 16:
            raise ValueError(f"{self}: amx needs block_size and head_size divisible by 16")

    def key_index(self, t: Tensor, d: Tensor) -> Tensor:
        """See `KVLayout`."""
        return t // 16 * 16 * self.head_size + d // 2 * 32 + t % 16 * 2 + d % 2

    def value_index(self, t: Tensor, d: Tensor) -> Tensor:
        """See `KVLayout`."""
        values = self.block_size * self.head_size
        return values + d // 16 * 16 * self.block_size + t // 2 * 32 + d % 16 * 2 + t % 2

    def check(self, kv: Tensor, rope: Rope | None) -> None:
        """Contiguous heads of bfloat16."""
        CpuVecLayout.check(self, kv, rope)
        if kv.dtype != torch.bfloat16:
            raise ValueError(f"KV cache of dtype {kv.dtype}: amx holds bfloat16 only")

    def mover(self, kv: Tensor, rope: Rope | None) -> str:
        """The C++ kernel, which turns words of two values: a NeoX half must hold whole words."""
        if rope is not None and rope.is_neox and rope.rot_dim % 4:
            return REFERENCE
        return CpuVecLayout.mover(self, kv, rope)
