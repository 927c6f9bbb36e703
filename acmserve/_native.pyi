from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

def build_info() -> dict[str, str | int]: ...
def limit_vectors(bits: int) -> int: ...
def common_prefix(prompt: NDArray[np.int32], source: NDArray[np.int32]) -> int: ...
def find_matches(
    prompt: NDArray[np.int32],
    sources: Sequence[NDArray[np.int32]],
    start: int,
    stop: int,
    min_tokens: int,
    base: int,
    mix: int,
) -> list[tuple[int, int, int, int]]: ...
def num_probes(sources: Sequence[NDArray[np.int32]], k: int, base: int, mix: int) -> int: ...

class Layer:
    def __init__(
        self,
        *,
        base: int,
        dtype: str,
        isa: str,
        num_blocks: int,
        num_kv_heads: int,
        block_size: int,
        head_size: int,
        value_size: int,
        block_stride: int,
        head_stride: int,
        rope: int,
    ) -> None: ...

class Mover:
    def __init__(self, layers: Sequence[Layer], ropes: Sequence[tuple[int, bool]]) -> None: ...
    def move(
        self,
        src_slots: NDArray[np.int64],
        dst_slots: NDArray[np.int64],
        segment_ends: NDArray[np.int64],
        deltas: NDArray[np.int64],
        cos: Sequence[NDArray[np.float32]],
        sin: Sequence[NDArray[np.float32]],
        num_threads: int,
        cpus: Sequence[int],
    ) -> None: ...
