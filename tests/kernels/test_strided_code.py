"""The code that Triton makes for a GPU that need not be there: whole vectors to a load and to a store."""

from __future__ import annotations

import importlib
import re
from typing import Any

import pytest
import triton
import triton.language as tl
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

PAGED = {"RUN_BLOCK": 16, "BLOCK_SIZE": 16}
LLAMA = {**PAGED, "ROW_SIZE": 256, "KEY_START": 0, "HALF": 64, "IS_NEOX": True, "TILE_PAIRS": 64, "NUM_HEADS": 8}
GPTJ = {**LLAMA, "IS_NEOX": False}
DEEPSEEK = {
    **GPTJ,
    "NUM_HEADS": 1,
    "TILE_HEADS": 1,
    "ROW_SIZE": 576,
    "KEY_START": 512,
    "HALF": 32,
    "TILE_PAIRS": 32,
    "TILE_REST": 512,
}
BF16 = {"DTYPE": tl.bfloat16, "MANTISSA": 0, "IS_NATIVE": False, "ALIGNED": 8}
NATIVE = {"IS_NATIVE": True}
FP8 = {"DTYPE": tl.uint8, "MANTISSA": 3, "IS_NATIVE": False, "ALIGNED": 16}


def compile_for_hopper(constants: dict[str, Any], capability: int = 90) -> str:
    """PTX of the kernel with these compile-time constants."""
    from acmserve.kernels.movers import triton as strided

    kernel = importlib.reload(strided).move_kernel
    given = {"TILE_TOKENS": 16, "TILE_HEADS": 2, "IS_SPLIT": False, "TILE_REST": 128, "stride_dim": 1, **constants}
    runtime = {"layers": "*i64", "spans": "*i64", "table": "*i64", "turns": "*fp32", "num_runs": "i32"}
    signature = {**runtime, "num_tiles": "i32", "num_turns": "i32", **dict.fromkeys(given, "constexpr")}
    aligned = {(i,): [["tt.divisibility", 16]] for i in range(4)}
    source = ASTSource(kernel, signature, given, aligned)
    return str(triton.compile(source, target=GPUTarget("cuda", capability, 32)).asm["ptx"])


@pytest.mark.filterwarnings("ignore:TRITON_DEFAULT_FP_FUSION")
@pytest.mark.parametrize(
    ("geometry", "dtype"),
    [
        (LLAMA, BF16),
        (LLAMA | {"IS_SPLIT": True}, BF16),
        (GPTJ, BF16),
        (DEEPSEEK, BF16),
        (LLAMA, FP8),
        (LLAMA, FP8 | NATIVE),
    ],
    ids=["NeoX", "groups", "GPT-J", "MLA", "fp8", "fp8 of the device"],
)
def test_keys_and_values_travel_in_whole_vectors(geometry: dict[str, Any], dtype: dict[str, Any]) -> None:
    ptx = compile_for_hopper({**geometry, **dtype})
    stores = re.findall(r"st\.global\S*", ptx)
    assert stores
    assert all(re.search(r"v[24]\.b32$", store) for store in stores), stores
    assert not re.search(r"ld\.global\S*\.b(8|16)\b", ptx)


@pytest.mark.filterwarnings("ignore:TRITON_DEFAULT_FP_FUSION")
@pytest.mark.parametrize("capability", [89, 90, 100])
@pytest.mark.parametrize(("mantissa", "name"), [(3, "e4m3"), (2, "e5m2")])
def test_8_bit_floats_are_rounded_by_the_device_where_it_can(mantissa: int, name: str, capability: int) -> None:
    """Two numbers an instruction, from compute capability 8.9 on. Control: else no such instruction is asked for."""
    constants = {**LLAMA, **FP8, "MANTISSA": mantissa}
    rounding = f"cvt.rn.satfinite.{name}x2.f32"
    assert rounding in compile_for_hopper(constants | NATIVE, capability)
    assert rounding not in compile_for_hopper(constants, capability)


@pytest.mark.filterwarnings("ignore:TRITON_DEFAULT_FP_FUSION")
def test_without_alignment_it_compiles_to_narrow_loads() -> None:
    """Control: what the hint is worth, and a cache with odd strides is still served."""
    ptx = compile_for_hopper({**LLAMA, **BF16, "ALIGNED": 1})
    assert "st.global.b16" in ptx
