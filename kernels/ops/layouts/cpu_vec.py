"""`vec`, the layout of vLLM's CPU attention: K turned on its side, then V row by row.

    head of a block    |d0: t0 t1 t2 ...|d1: t0 t1 t2 ...| ...    |t0: V ....|t1: V ....| ...        contiguous
                        K [head_size, block_size]                  V [block_size, head_size]

vLLM calls it `vec` and `vec16`. The two differ in the attention kernel only.

Source: vllm/v1/attention/backends/cpu_attn.py and its op `cpu_attn_reshape_and_cache`, with which
`tests/kernels/test_layout.py` compares.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, Self

from torch import Tensor

from acmserve.kernels.layout import REFERENCE, KVLayout, read_shape
from acmserve.kernels.rope import Rope


@dataclass(frozen=True, slots=True)
class CpuVecLayout(KVLayout):
    """K `[head_size, block_size]`, then V `[block_size, head_size]`. `isas` are vLLM's words for it."""

    name: ClassVar[str] = "vec"
    isas: ClassVar[tuple[str, ...]] = ("vec", "vec16")

    @classmethod
    def probe(cls, attention: Any, kv: Tensor) -> tuple[Tensor, Self] | None:
        """A layer of `CPUAttentionBackendImpl` that names this instruction set."""
        if getattr(attention, "isa", None) not in cls.isas:
            return None
        return kv, cls(*read_shape(attention, kv))

    def key_index(self, t: Tensor, d: Tensor) -> Tensor:
        """See `KVLayout`."""
        return d * self.block_size + t

    def value_index(self, t: Tensor, d: Tensor) -> Tensor:
        """See `KVLayout`."""
        return self.block_size * self.head_size + t * self.head_size + d

    def check(self, kv: Tensor, rope: Rope | None) -> None:
        """One head of one block is contiguous."""
        if kv.stride()[2:] != (2 * self.head_size, 1):
            raise ValueError(f"KV cache with strides {kv.stride()}: {self.name} needs contiguous heads")

    def mover(self, kv: Tensor, rope: Rope | None) -> str:
        """The C++ kernel."""
        return "cpu" if kv.device.type == "cpu" else REFERENCE
