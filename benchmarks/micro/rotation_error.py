"""What repeated moves cost in precision: `python -m benchmarks.micro.rotation_error`.

A key that was moved and is moved again is rounded again to the cache's type. Synthetic keys (normal, roped at random
positions) go through a chain of moves with random deltas by the reference kernel; printed is the root mean square error
against the exact key at the same position, relative to the key:

    chained    every move reads the copy that the last one wrote (what an engine without a memory does)
    original   every move reads the first copy, by the cumulative delta
    bounded    chained, but after so many moves as the engine allows its type the key is computed anew

beside `cached`, the error of a key that was never moved. Does not use vLLM; runs in seconds.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
from torch import Tensor

from acmserve.kernels.layout import name_of_type
from acmserve.kernels.movers import reference
from acmserve.kernels.rope import Rope
from acmserve.plan.rules.rotations import MAX_ROTATIONS_BY_TYPE

HEAD_SIZE = 128
TYPES = {
    "float32": torch.float32,
    "bfloat16": torch.bfloat16,
    "float16": torch.float16,
    "fp8 e4m3": torch.float8_e4m3fn,
    "fp8 e5m2": torch.float8_e5m2,
}
REPORTED = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 64)


@dataclass(frozen=True, slots=True)
class RotationRow:
    """Errors after `num_rotations` moves, relative to the key's norm."""

    kv: str
    num_rotations: int
    cached: float
    chained: float
    original: float
    bounded: float


def measure(kv: str, num_rotations: int, num_keys: int, bound: int | None = None, seed: int = 0) -> list[RotationRow]:
    """One row for each reported number of rotations up to `num_rotations`. Without `bound` it is the engine's."""
    dtype = TYPES[kv]
    bound = bound or MAX_ROTATIONS_BY_TYPE[name_of_type(dtype)]
    generator = torch.Generator().manual_seed(seed)
    rope = Rope(tuple(500_000.0 ** (-2 * i / HEAD_SIZE) for i in range(HEAD_SIZE // 2)), HEAD_SIZE, True)
    key = torch.randn(num_keys, HEAD_SIZE, generator=generator, dtype=torch.float64)
    first = reference.narrow(key, dtype)
    chained, bounded = first, first
    position, rows = 0, []
    for rotation in range(1, num_rotations + 1):
        delta = int(torch.randint(-4000, 4000, (1,), generator=generator)) or 1
        position += delta
        exact = reference.rotate(key, rope, position)
        chained = reference.narrow(reference.rotate(chained, rope, delta), dtype)
        original = reference.narrow(reference.rotate(first, rope, position), dtype)
        anew = rotation % (bound + 1) == 0
        bounded = reference.narrow(exact if anew else reference.rotate(bounded, rope, delta), dtype)
        if rotation in REPORTED:
            found = (relative_error(x, exact) for x in (reference.narrow(exact, dtype), chained, original, bounded))
            rows.append(RotationRow(kv, rotation, *(float(f"{error:.4g}") for error in found)))
    return rows


def relative_error(found: Tensor, exact: Tensor) -> float:
    """Root mean square error over the root mean square of the keys."""
    return float((found.double() - exact).norm() / exact.norm())


def main(argv: Sequence[str] | None = None) -> int:
    """Print the table; write JSON where asked."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.micro.rotation_error", description="Precision of repeated moves."
    )
    parser.add_argument("--rotations", type=int, default=64, help="moves of one key (default: 64)")
    parser.add_argument("--keys", type=int, default=512, help="keys per type (default: 512)")
    parser.add_argument("--bound", type=int, help="moves before a key is computed anew (default: the engine's bounds)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write the rows to FILE")
    options = parser.parse_args(argv)
    if min(options.rotations, options.keys, options.bound or 1) < 1 or options.bound == 0:
        parser.error("--rotations, --keys and --bound must be at least 1")
    print(f"{'KV cache':10}{'moves':>6}{'cached':>10}{'chained':>10}{'original':>10}{'bounded':>10}")
    rows = [row for kv in TYPES for row in measure(kv, options.rotations, options.keys, options.bound)]
    for row in rows:
        print(
            f"{row.kv:10}{row.num_rotations:6}"
            + "".join(f"{100 * error:9.2g}%" for error in (row.cached, row.chained, row.original, row.bounded))
        )
    if options.json is not None:
        bounds = {kv: options.bound or MAX_ROTATIONS_BY_TYPE[name_of_type(dtype)] for kv, dtype in TYPES.items()}
        report = {"torch": torch.__version__, "bounds": bounds, "rows": [asdict(row) for row in rows]}
        options.json.write_text(json.dumps(report, indent=2) + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
