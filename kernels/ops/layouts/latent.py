"""`latent`, the layout of multi-head latent attention on a GPU: row t is `kv_c` of token t, then its key `k_pe`.

    block    |kv_c t0 ..............|k_pe t0|  |kv_c t1 ..............|k_pe t1|  ...        one head, free strides

`k_pe` is the one part that carries a position. So it is the key here, `head_size` wide. `kv_c`, from which the model
makes all its unrotated keys and its values, is the value, `latent_size` wide.

Source: vllm/model_executor/layers/attention/mla_attention.py. The engine refuses such models until it knows their
KV cache group. The layout and its kernel are ready for it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, Self

from torch import Tensor

from acmserve.errors import MoveRefused
from acmserve.kernels.layouts.strided import StridedLayout
from acmserve.kernels.rope import Rope


@dataclass(frozen=True, slots=True)
class LatentLayout(StridedLayout):
    """Rows of a latent and its rotary key. `latent_size` is `kv_lora_rank`."""

    latent_size: int

    name: ClassVar[str] = "latent"

    def __post_init__(self) -> None:
        StridedLayout.__post_init__(self)
        if self.latent_size <= 0:
            raise ValueError(f"{self}: a latent cache needs a latent")
        if self.num_kv_heads != 1:
            raise ValueError(f"{self}: a latent cache has one head")

    @classmethod
    def probe(cls, attention: Any, kv: Tensor) -> tuple[Tensor, Self] | None:
        """A layer of vLLM's `MLAAttention`, whose cache is `[num_blocks, block_size, row_size]`."""
        if hasattr(attention, "isa") or not hasattr(attention, "kv_lora_rank"):
            return None
        latent_size, head_size = attention.kv_lora_rank, attention.qk_rope_head_dim
        if kv.dim() != 3 or kv.shape[2] != latent_size + head_size:
            raise MoveRefused(f"kv cache: shape {tuple(kv.shape)} for a latent of {latent_size} is not supported")
        return kv.unsqueeze(1), cls(1, kv.shape[1], head_size, latent_size)

    @property
    def value_size(self) -> int:
        """Elements of `kv_c`."""
        return self.latent_size

    @property
    def key_start(self) -> int:
        """Where `k_pe` begins in a row."""
        return self.latent_size

    def value_index(self, t: Tensor, d: Tensor) -> Tensor:
        """See `KVLayout`."""
        return t * self.row_size + d

    def check(self, kv: Tensor, rope: Rope | None) -> None:
        """The whole of `k_pe` turns."""
        if rope is not None and rope.rot_dim != self.head_size:
            raise ValueError(f"rot_dim {rope.rot_dim} is not the {self.head_size} dimensions of k_pe")
