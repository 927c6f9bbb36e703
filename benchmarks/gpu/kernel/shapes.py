"""Shapes of the models that `gpu/kernel/main.py` measures: as much of them as a KV cache needs.

Figures from the models' published configurations (meta-llama/Meta-Llama-3-8B, Qwen/Qwen3-8B, deepseek-ai/DeepSeek-V3).
Needs torch only. Does not know how anything is measured.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from acmserve.kernels.layout import KVLayer
from acmserve.kernels.layouts.latent import LatentLayout
from acmserve.kernels.layouts.strided import StridedLayout
from acmserve.kernels.rope import Rope

BLOCK_SIZE = 16


@dataclass(frozen=True, slots=True)
class Latent:
    """Multi-head latent attention: a token's cache is `rank + rope_size` numbers for all heads together."""

    rank: int
    rope_size: int


@dataclass(frozen=True, slots=True)
class ModelShape:
    """One model. `latent` is set for MLA: `num_kv_heads` and `head_size` then describe nothing that is cached.

    `kv_type` is what a cache keeps its numbers in: bfloat16, or float8_e4m3fn.
    """

    name: str
    num_layers: int
    num_kv_heads: int
    head_size: int
    theta: float
    latent: Latent | None = None
    kv_type: torch.dtype = torch.bfloat16

    @property
    def layout(self) -> StridedLayout:
        if self.latent is not None:
            return LatentLayout(1, BLOCK_SIZE, self.latent.rope_size, self.latent.rank)
        return StridedLayout(self.num_kv_heads, BLOCK_SIZE, self.head_size)

    @property
    def rope(self) -> Rope:
        """Unscaled frequencies: a scaling changes numbers, not time."""
        size = self.layout.head_size
        inv_freq = (self.theta ** (-(2 * i) / size) for i in range(size // 2))
        return Rope(tuple(inv_freq), size, is_neox=self.latent is None)

    @property
    def bytes_per_token(self) -> int:
        """KV of one token in all layers."""
        return self.kv_type.itemsize * self.num_layers * self.layout.num_kv_heads * self.layout.row_size

    def layers(self, pool: Tensor) -> list[KVLayer]:
        """Cut `pool`, of one dimension and `kv_type`, into the layers' caches: vLLM's `LBNHC`, by tokens."""
        layout = self.layout
        per_block = layout.block_size * layout.num_kv_heads * layout.row_size
        num_blocks = pool.numel() // (self.num_layers * per_block)
        used = pool[: self.num_layers * num_blocks * per_block]
        caches = used.view(self.num_layers, num_blocks, layout.block_size, layout.num_kv_heads, layout.row_size)
        return [KVLayer(kv.transpose(1, 2), layout, self.rope) for kv in caches]

    def tiny(self) -> ModelShape:
        """The same structure, small enough for Triton's interpreter."""
        latent = self.latent and Latent(rank=32, rope_size=8)
        return replace(self, num_layers=2, num_kv_heads=2, head_size=16, latent=latent)


MODELS = (
    ModelShape("Llama-3-8B", 32, 8, 128, 500_000.0),
    ModelShape("Qwen3-8B", 36, 8, 128, 1_000_000.0),
    ModelShape("DeepSeek-V3", 61, 128, 128, 10_000.0, Latent(512, 64)),
)


def make_pool(num_elements: int, device: str, kv_type: torch.dtype = torch.bfloat16) -> Tensor:
    """Random numbers. They are drawn in pieces, because the whole would need twice the memory in between."""
    pool = torch.empty(num_elements, dtype=kv_type, device=device)
    for piece in pool.split(1 << 26):
        piece.copy_(torch.randn(len(piece), dtype=torch.bfloat16, device=device))
    return pool
