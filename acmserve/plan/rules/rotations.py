"""How often keys may be turned, by the type that the KV cache keeps them in.

Each move rounds a key once more, and roundings add up like random steps. After *h* moves the error is `sqrt(h + 1)`
times that of a cached key. What is left to a type decides how many are worth it. Relative errors of a key, root mean
square (`python -m benchmarks.micro.rotation_error`, docs/benchmarks.md):

    type             cached   at its bound
    bfloat16         0.17 %   0.5 %   8 moves     float16 and float32 lose less
    float8_e4m3fn    2.7 %    4.2 %   2 moves     below what float8_e5m2 loses without any
    float8_e5m2      5.3 %    7.1 %   1 move

A token that was turned that often is computed anew. A move to the same place rounds nothing and does not count.

Does not know tensors: types are names, as torch has them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

MAX_ROTATIONS = 8
"""The bound of types that are not listed below: a key of 16 bits is then three times as far off as any cached one."""
MAX_ROTATIONS_BY_TYPE: Mapping[str, int] = {
    "float32": MAX_ROTATIONS,
    "bfloat16": MAX_ROTATIONS,
    "float16": MAX_ROTATIONS,
    "float8_e4m3fn": 2,
    "float8_e5m2": 1,
}


def bound_of(types: Iterable[str]) -> int:
    """The bound for keys that are kept in several types: that of the coarsest."""
    return min((MAX_ROTATIONS_BY_TYPE[name] for name in types), default=MAX_ROTATIONS)
