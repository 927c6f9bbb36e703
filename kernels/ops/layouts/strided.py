"""`strided`, the layout of vLLM's GPU backends: row t is K of token t, then V of token t.

    head of a block    |K t0 ....|V t0 ....|  |K t1 ....|V t1 ....|  ...        the four strides are free

Source: vllm/v1/kv_cache_layout.py, six orders of layer, block, head and token, the row innermost in each.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, Self

from torch import Tensor

from acmserve.kernels.layout import REFERENCE, KVLayout, read_shape
from acmserve.kernels.rope import Rope


@dataclass(frozen=True, slots=True)
class StridedLayout(KVLayout):
    """Rows of K and V side by side."""

    name: ClassVar[str] = "strided"

    @classmethod
    def probe(cls, attention: Any, kv: Tensor) -> tuple[Tensor, Self] | None:
        """A layer whose backend names no layout of its own, and whose rows belong to heads."""
        if hasattr(attention, "isa") or hasattr(attention, "kv_lora_rank"):
            return None
        return kv, cls(*read_shape(attention, kv))

    @property
    def key_start(self) -> int:
        """Where the key begins in a row."""
        return 0

    def key_index(self, t: Tensor, d: Tensor) -> Tensor:
        """See `KVLayout`."""
        return t * self.row_size + self.key_start + d

    def value_index(self, t: Tensor, d: Tensor) -> Tensor:
        """See `KVLayout`."""
        return t * self.row_size + self.head_size + d

    def mover(self, kv: Tensor, rope: Rope | None) -> str:
        """Triton on a GPU."""
        return "triton" if kv.device.type == "cuda" else REFERENCE
