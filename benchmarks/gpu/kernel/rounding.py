"""The card's own conversions of 8-bit floats beside the integer arithmetic of other cards, over every number there is.

    narrow    all 2^32 float32, to e4m3 and to e5m2
    widen     all 256 bytes of each, to float32

The kernel takes the card's own where it has them. NaN is left out: its sign is nobody's. Needs torch and triton.
"""

from __future__ import annotations

import torch
import triton  # type: ignore[import-untyped]
import triton.language as tl  # type: ignore[import-untyped]

from acmserve.kernels.movers.triton import MANTISSA_BITS, narrow, widen

_TILE, _LAUNCHES = 4096, 8


@triton.jit
def narrow_both(  # type: ignore[no-untyped-def]
    first,
    num_other,
    MANTISSA: tl.constexpr,  # noqa: N803
    TILE: tl.constexpr,  # noqa: N803
):
    """Count the float32 of this tile, by their bits from `first` on, that the two round to other bytes."""
    bits = first + (tl.program_id(0) * TILE + tl.arange(0, TILE)).to(tl.int64)
    value = bits.to(tl.int32).to(tl.float32, bitcast=True)
    other = narrow(value, tl.uint8, MANTISSA, False) != narrow(value, tl.uint8, MANTISSA, True)
    tl.atomic_add(num_other, tl.sum((other & (value == value)).to(tl.int64)))


@triton.jit
def widen_both(num_other, MANTISSA: tl.constexpr):  # type: ignore[no-untyped-def]  # noqa: N803
    """Count the bytes that the two widen to other numbers."""
    code = tl.arange(0, 256).to(tl.uint8)
    value = widen(code, MANTISSA, False)
    other = value.to(tl.int32, bitcast=True) != widen(code, MANTISSA, True).to(tl.int32, bitcast=True)
    tl.atomic_add(num_other, tl.sum((other & (value == value)).to(tl.int64)))


def count_other(device: str) -> dict[str, int]:
    """By type: the numbers that the card converts otherwise. A fraction of a second for all."""
    found = {}
    for dtype, mantissa in MANTISSA_BITS.items():
        num_other = torch.zeros(1, dtype=torch.int64, device=device)
        per_launch = 2**32 // _LAUNCHES
        for launch in range(_LAUNCHES):
            first = launch * per_launch - 2**31
            narrow_both[(per_launch // _TILE,)](first, num_other, MANTISSA=mantissa, TILE=_TILE)
        widen_both[(1,)](num_other, MANTISSA=mantissa)
        found[str(dtype).removeprefix("torch.")] = int(num_other.item())
    return found
