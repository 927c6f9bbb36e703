"""`latent`, the layout of multi-head latent attention: row t is `kv_c` of token t, then its key `k_pe`.

    block    |kv_c t0 ..............|k_pe t0|  |kv_c t1 ..............|k_pe t1|  ...        one head, free strides

`k_pe` is the one part that carries a position. So it is the key here, `head_size` wide. `kv_c`, from which the model
makes all its unrotated keys and its values, is the value, `latent_size` wide.

    fp8_ds_mla      512 bytes kv_c in fp8  |  4 float32 scales  |  64 bfloat16 k_pe          656 bytes
    as bfloat16     256 numbers            |  8 numbers         |  64 numbers                328 numbers

There latent and scales are copied bit for bit as bfloat16 numbers, which they are not. `k_pe` is turned in its own
type, so a move rounds less than in any other cache of 8 bits.

Source: vllm/model_executor/layers/attention/mla_attention.py, vllm/v1/attention/backends/mla/flashmla_sparse.py.
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
    """Rows of a latent and its rotary key. `latent_size` is what is copied: `kv_lora_rank` numbers, or packed bytes."""

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
        """A layer of vLLM's `MLAAttention`: `[num_blocks, block_size, row_size]`, with an axis for its head or not."""
        if hasattr(attention, "isa") or not hasattr(attention, "kv_lora_rank"):
            return None
        latent_size, head_size = int(attention.kv_lora_rank), int(attention.qk_rope_head_dim)
        packed = getattr(attention, "kv_cache_dtype", "auto") == "fp8_ds_mla"
        num_copied = packed_size(latent_size) if packed else latent_size
        rows = kv.unsqueeze(1) if kv.dim() == 3 else kv
        if rows.dim() != 4 or rows.shape[1] != 1 or rows.shape[3] != num_copied + head_size:
            raise MoveRefused(f"kv cache: shape {tuple(kv.shape)} for a latent of {latent_size} is not supported")
        return rows, cls(1, rows.shape[2], head_size, num_copied)

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

    def mover(self, kv: Tensor, rope: Rope | None) -> str:
        """The C++ kernel for rows that lie one behind the other, which is so in vLLM's CPU caches."""
        in_rows = kv.device.type == "cpu" and kv.stride()[2:] == (self.row_size, 1)
        return "cpu" if in_rows else StridedLayout.mover(self, kv, rope)


def packed_size(latent_size: int) -> int:
    """Bfloat16 numbers that a latent in `fp8_ds_mla` takes with its scales: a byte for each number, 4 for each 128."""
    return (latent_size + latent_size // 128 * 4) // 2
