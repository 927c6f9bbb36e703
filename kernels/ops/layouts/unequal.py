"""`unequal`, the layout of heads whose values are of another size than their keys (MiMo V2: 192 and 128).

    head of a block    |K t0 ........|V t0 ....|  |K t1 ........|V t1 ....|  ...        the four strides are free

Rows are those of `strided` in all else, so every mover of `strided` moves them.

Source: vllm/v1/attention/backends/triton_attn_diffkv.py and flash_attn_diffkv.py.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, Self

from torch import Tensor

from acmserve.kernels.layouts.strided import StridedLayout


@dataclass(frozen=True, slots=True)
class UnequalLayout(StridedLayout):
    """Rows of K and V side by side. `value_width` is the size of a value, `head_size` that of a key."""

    value_width: int

    name: ClassVar[str] = "unequal"

    def __post_init__(self) -> None:
        StridedLayout.__post_init__(self)
        if self.value_width <= 0:
            raise ValueError(f"{self} has an empty dimension")

    @classmethod
    def probe(cls, attention: Any, kv: Tensor) -> tuple[Tensor, Self] | None:
        """A layer of vLLM that says how wide its values are, where keys have another width and rows hold both."""
        if hasattr(attention, "isa") or hasattr(attention, "kv_lora_rank") or kv.dim() != 4:
            return None
        key, value = getattr(attention, "head_size", None), getattr(attention, "head_size_v", None)
        if key is None or value is None or key == value or kv.shape[3] != key + value:
            return None
        return kv, cls(kv.shape[1], kv.shape[2], key, value)

    @property
    def value_size(self) -> int:
        """Elements of one token's value in one head."""
        return self.value_width
