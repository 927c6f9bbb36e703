"""What repeated moves cost in precision: `python -m benchmarks.micro.rotation_error`.

A key that was moved and is moved again is rounded again to the cache's type. Synthetic keys (normal, roped at random
positions) go through a chain of moves with random deltas by the reference kernel. Printed is the root mean square error
against the exact key at the same position, relative to the key:

    chained    every move reads the copy that the last one wrote (what an engine without a memory does)
    bounded    chained, but after so many moves as the engine allows its type the key is computed anew

beside `cached`, the error of a key that was never moved. Does not use vLLM, and runs in seconds.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
from torch import Tensor

from acmserve.bench.agent.result_table import Report, ResultTable
from acmserve.bench.agent.text_table import text_table
from acmserve.bench.harness.machine import describe_machine
from acmserve.bench.harness.options import as_json
from acmserve.bench.provenance.kept_file import write_whole
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
SHOWN = (1, 2, 4, 8, 16, 64)
NUM_ROTATIONS, NUM_KEYS = 64, 512


@dataclass(frozen=True, slots=True)
class RotationRow:
    """Errors after `num_rotations` moves, relative to the key's norm."""

    kv: str
    num_rotations: int
    cached: float
    chained: float
    bounded: float


def measure(kv: str, num_rotations: int, num_keys: int) -> list[RotationRow]:
    """One row for each reported number of rotations up to `num_rotations`."""
    dtype, bound = TYPES[kv], bound_of(kv)
    generator = torch.Generator().manual_seed(0)
    rope = Rope(tuple(500_000.0 ** (-2 * i / HEAD_SIZE) for i in range(HEAD_SIZE // 2)), HEAD_SIZE, True)
    key = torch.randn(num_keys, HEAD_SIZE, generator=generator, dtype=torch.float64)
    chained = bounded = reference.narrow(key, dtype)
    position, rows = 0, []
    for rotation in range(1, num_rotations + 1):
        delta = int(torch.randint(-4000, 4000, (1,), generator=generator)) or 1
        position += delta
        exact = reference.rotate(key, rope, position)
        chained = reference.narrow(reference.rotate(chained, rope, delta), dtype)
        anew = rotation % (bound + 1) == 0
        bounded = reference.narrow(exact if anew else reference.rotate(bounded, rope, delta), dtype)
        if rotation in REPORTED:
            found = (relative_error(x, exact) for x in (reference.narrow(exact, dtype), chained, bounded))
            rows.append(RotationRow(kv, rotation, *(float(f"{error:.4g}") for error in found)))
    return rows


def relative_error(found: Tensor, exact: Tensor) -> float:
    """Root mean square error over the root mean square of the keys."""
    return float((found.double() - exact).norm() / exact.norm())


def bound_of(kv: str) -> int:
    """How often the engine moves a key of this type before it is computed anew."""
    return MAX_ROTATIONS_BY_TYPE[name_of_type(TYPES[kv])]


def main(argv: Sequence[str] | None = None) -> int:
    """Print the table, and write JSON where asked."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.micro.rotation_error", description="Precision of repeated moves."
    )
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write the rows to FILE")
    options = parser.parse_args(argv)
    machine = describe_machine()
    rows = [row for kv in TYPES for row in measure(kv, NUM_ROTATIONS, NUM_KEYS)]
    report = {
        "machine": machine,
        "torch": torch.__version__,
        "bounds": {kv: bound_of(kv) for kv in TYPES},
        "rows": list(map(asdict, rows)),
    }
    print("\n".join(text_table(ROTATIONS.heads, list(ROTATIONS.rows(report)))))
    if options.json is not None:
        write_whole(options.json, as_json(report))
    return 0


def _rotations(report: Report) -> Iterator[list[str]]:
    rows = {(row["kv"], row["num_rotations"]): row for row in report["rows"]}
    for kind in dict.fromkeys(row["kv"] for row in report["rows"]):
        yield [kind, *(f"{100 * rows[kind, number]['chained']:.2g} %" for number in SHOWN)]


ROTATIONS = ResultTable(("type", *(f"{number} moves" if number > 1 else "1 move" for number in SHOWN)), _rotations)


if __name__ == "__main__":
    sys.exit(main())
