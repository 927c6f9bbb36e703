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
    """K and V in the order in which AMX's tiles read bfloat16. Numbers of 8 bits stand in the same order."""

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
        """Contiguous heads of bfloat16, or of 8 bits."""
        CpuVecLayout.check(self, kv, rope)
        if kv.dtype not in (torch.bfloat16, torch.float8_e4m3fn, torch.float8_e5m2):
            raise ValueError(f"KV cache of dtype {kv.dtype}: amx holds bfloat16 and fp8 only")

    def mover(self, kv: Tensor, rope: Rope | None) -> str:
        """The C++ kernel, which turns words of two bf16 values: a NeoX half must hold whole words."""
        if kv.dtype != torch.bfloat16 or (rope is not None and rope.is_neox and rope.rot_dim % 4):
            return REFERENCE
        return CpuVecLayout.mover(self, kv, rope)
