"""Speed of the move on a GPU: `python -m benchmarks.gpu.kernel.main`, in a checkout, with torch and triton alone.

Every layer's KV is moved by one call and compared with the float64 reference. This is done for each model, type of its
KV cache and number of tokens. Then attention over the moved KV is compared, by xformers where it is installed
(`attention.py`). Only then are timed, in turns and as medians:

    move      `StridedMover.move`: tables to the device, the launches
    copy      one device-to-device copy of as many bytes, the floor (bytes are counted once, not read and written)

    wall      from the call to the device's last write, on an idle device: what the host prepares is in it
    device    the same on a device that is busy until the host has prepared all, as in an engine that runs ahead

A wrong result is reported, not timed, and makes the exit code 1. So do 8-bit floats that the card rounds otherwise than
the reference (`rounding.py`). A move of an 8B model may reach less than `MIN_RATIO` of the copy's bandwidth on the
device. Such a move is reported with its time, and makes the exit code 1, too. What does not fit into the device's
memory is left out and shows as such. `--cpu-check` runs everything at tiny sizes in Triton's interpreter: it proves the
program, its times mean nothing.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import torch

from acmserve.bench.gpu.kernel.attention import MAX_ERROR, attention_error, library_on
from acmserve.bench.gpu.kernel.clock import Times, device_seconds_of, seconds_of, take_turns
from acmserve.bench.gpu.kernel.shapes import BLOCK_SIZE, MODELS, ModelShape, make_pool
from acmserve.bench.harness.machine import describe_machine
from acmserve.bench.harness.options import as_json
from acmserve.bench.provenance.kept_file import write_whole
from acmserve.kernels.layer_group import LayerGroup
from acmserve.kernels.layout import KVLayer
from acmserve.kernels.movers import reference
from acmserve.kernels.movers.strided_launch import converts_fp8
from acmserve.kernels.runs import MoveRun, check_runs

DELTA = -1980
TOKENS = tuple(1024 << i for i in range(8))
CHUNK = 8192  # tokens compared at once
TYPES = {"bf16": torch.bfloat16, "fp8": torch.float8_e4m3fn}
HALF_ULP = {torch.bfloat16: 2.0**-8, torch.float8_e4m3fn: 2.0**-4}
HALF_STEP = {torch.bfloat16: 0.0, torch.float8_e4m3fn: 2.0**-10}
"""Half of the smallest number, which rounding costs below the normal numbers. That of bf16 is out of reach."""
MIN_RATIO = 0.8
"""Of the bandwidth of a copy. A bar of the models without latents."""


@dataclass(frozen=True, slots=True)
class GpuRow:
    """One measurement. Times are medians in milliseconds, bandwidths in 10^9 bytes per second.

    Bandwidths and `ratio` are those on the device. Where there is none, those of the wall.
    """

    model: str
    kv_type: str
    num_tokens: int
    num_bytes: int
    num_launches: int
    wall_move_ms: float
    wall_copy_ms: float
    move_ms: float
    copy_ms: float
    move_gb_s: float
    copy_gb_s: float
    ratio: float
    attention_error: float | None


class GpuBench:
    """One model on one device. Its KV pool holds the source and the destination of one move."""

    def __init__(self, shape: ModelShape, device: str, repetitions: int) -> None:
        self._shape, self._device, self._repetitions = shape, device, repetitions

    def num_bytes_needed(self, num_tokens: int) -> int:
        """Device memory for the pool and the comparison."""
        return 2 * self._shape.bytes_per_token * (num_tokens + 64) + (2 << 30 if self._device == "cuda" else 0)

    def run(self, num_tokens: int) -> GpuRow | None:
        """Check, then measure. None where the result is wrong."""
        wall, device, num_launches, error = self._move(num_tokens)
        if not wall:
            return None
        move_s, copy_s = device
        num_bytes = num_tokens * self._shape.bytes_per_token
        return GpuRow(
            model=self._shape.name,
            kv_type=name_of(self._shape.kv_type),
            num_tokens=num_tokens,
            num_bytes=num_bytes,
            num_launches=num_launches,
            wall_move_ms=round(1e3 * wall[0], 4),
            wall_copy_ms=round(1e3 * wall[1], 4),
            move_ms=round(1e3 * move_s, 4),
            copy_ms=round(1e3 * copy_s, 4),
            move_gb_s=round(num_bytes / move_s / 1e9, 1),
            copy_gb_s=round(num_bytes / copy_s / 1e9, 1),
            ratio=round(copy_s / move_s, 3),
            attention_error=None if error is None else round(error, 5),
        )

    def _move(self, num_tokens: int) -> tuple[Times, Times, int, float | None]:
        """Seconds of the move and of the copy, on the wall and on the device, the launches, and attention's error.

        There are no seconds where the move is wrong.

        pool   |source blocks ............|destination blocks .......|     the copy moves half of it to the other
                    [offset 5 ... +num_tokens)  [offset 11 ... +num_tokens)
        """
        # Not above: Triton decides while it decorates the kernel whether it is interpreted.
        from acmserve.kernels.movers.triton import StridedMover

        num_blocks = num_tokens // BLOCK_SIZE + 2
        kv_type = self._shape.kv_type
        num_elements = num_blocks * BLOCK_SIZE * self._shape.bytes_per_token * 2 // kv_type.itemsize
        pool = make_pool(num_elements, self._device, kv_type)
        layers = self._shape.layers(pool)
        half = num_blocks // 2
        runs = [
            MoveRun(range(half), 5, range(2 * half, 3 * half), 11, num_tokens // 2, DELTA),
            MoveRun(range(half, 2 * half), 5, range(3 * half, 4 * half), 11, num_tokens // 2, DELTA + 640),
        ]
        check_runs(runs, 2 * num_blocks, BLOCK_SIZE)
        mover = StridedMover({0: LayerGroup(layers, BLOCK_SIZE)})
        mover.move({0: runs})
        for layer in (layers[0], layers[len(layers) // 2], layers[-1]):
            if not is_right(layer, runs):
                return (), (), mover.num_launches, None
        error = None
        if self._shape.latent is None:
            error = attention_error(layers[-1], runs, library_on(self._device))
            if not error <= MAX_ERROR:
                return (), (), mover.num_launches, error
        num_elements = num_tokens * self._shape.bytes_per_token // kv_type.itemsize
        source, destination = pool[:num_elements], pool[-num_elements:]
        functions = [lambda: mover.move({0: runs}), lambda: destination.copy_(source)]
        wall = take_turns(functions, self._repetitions, lambda function: seconds_of(function, self._wait))
        if self._device != "cuda":
            return wall, wall, mover.num_launches, error
        return wall, take_turns(functions, self._repetitions, device_seconds_of), mover.num_launches, error

    def _wait(self) -> None:
        if self._device == "cuda":
            torch.cuda.synchronize()


def is_right(layer: KVLayer, runs: Sequence[MoveRun]) -> bool:
    """The gate: V bit for bit, K as the reference turns it, to a rounding of its type (two where Triton interprets)."""
    assert layer.rope is not None
    half_ulp = HALF_ULP[layer.kv.dtype] * (2 if os.environ.get("TRITON_INTERPRET") == "1" else 1)
    bits = reference.STORED_AS[layer.kv.element_size()]
    for run in runs:
        src, dst = (torch.from_numpy(span.slots(BLOCK_SIZE)) for span in (run.source, run.destination))
        for start in range(0, run.num_tokens, CHUNK):
            part = slice(start, start + CHUNK)
            key, value = reference.gather(layer.kv, layer.layout, src[part].to(layer.kv.device))
            moved_key, moved_value = reference.gather(layer.kv, layer.layout, dst[part].to(layer.kv.device))
            exact = reference.rotate(key, layer.rope, run.delta)
            allowed = 2e-6 * key.double().norm(dim=-1, keepdim=True) + half_ulp * exact.abs() + HALF_STEP[key.dtype]
            if (
                not torch.equal(moved_value.view(bits), value.view(bits))
                or not ((moved_key.double() - exact).abs() <= allowed).all()
            ):
                return False
    return True


def name_of(kv_type: torch.dtype) -> str:
    """As the option has it."""
    return next(name for name, found in TYPES.items() if found == kv_type)


def below_bar(rows: Sequence[GpuRow]) -> list[str]:
    """The moves that are too slow beside a copy, in words."""
    judged = {shape.name for shape in MODELS if shape.latent is None}
    return [
        f"{row.model}, {row.kv_type}, {row.num_tokens} tokens: {row.ratio:.0%} of a copy's bandwidth"
        for row in rows
        if row.model in judged and row.ratio < MIN_RATIO
    ]


def parse(argv: Sequence[str] | None) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.gpu.kernel.main",
        description="Time of moving cached KV on a GPU, beside a device copy of the same bytes.",
    )
    parser.add_argument("--models", nargs="+", metavar="NAME", help="default: Llama-3-8B Qwen3-8B DeepSeek-V3")
    parser.add_argument("--types", nargs="+", choices=TYPES, default=list(TYPES), help="of the KV cache; default: both")
    parser.add_argument("--tokens", type=int, nargs="+", default=list(TOKENS), help="default: 1024 2048 ... 131072")
    parser.add_argument("--repetitions", type=int, default=15, help="timed repetitions per row (default: 15)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write the rows, machine and versions to FILE")
    parser.add_argument("--cpu-check", action="store_true", help="tiny sizes on the CPU, Triton interpreted")
    options = parser.parse_args(argv)
    if min(options.repetitions, *options.tokens) < 1:
        parser.error("--tokens and --repetitions must be at least 1")
    return options


def measure(shapes: Sequence[ModelShape], options: argparse.Namespace, device: str) -> tuple[list[GpuRow], bool]:
    """All rows, printed as they come, and whether every result was right."""
    rows, right = [], True
    heads = ("launches", "wall", "move", "copy", "move", "ratio")
    print(f"{'model':12}{'type':>5}{'tokens':>8}" + "".join(map("{:>{}}".format, heads, (9, 13, 13, 13, 12, 8))))
    for shape in shapes:
        bench = GpuBench(shape, device, options.repetitions)
        begin = f"{shape.name:12}{name_of(shape.kv_type):>5}"
        for num_tokens in options.tokens:
            if device == "cuda" and torch.cuda.mem_get_info()[0] < bench.num_bytes_needed(num_tokens):
                print(f"{begin}{num_tokens:8}  left out: needs {bench.num_bytes_needed(num_tokens) >> 30} GiB")
                continue
            row = bench.run(num_tokens)
            if device == "cuda":
                torch.cuda.empty_cache()
            if row is None:
                right = False
                print(f"{begin}{num_tokens:8}  the result differs from the reference; not timed")
                continue
            rows.append(row)
            print(
                f"{begin}{row.num_tokens:8}{row.num_launches:9}{row.wall_move_ms:10.3f} ms"
                f"{row.move_ms:10.3f} ms{row.copy_ms:10.3f} ms"
                f"{row.move_gb_s:7.0f} GB/s{row.ratio:8.0%}",
                flush=True,
            )
    return rows, right


def other_roundings() -> dict[str, int]:
    """Numbers that this card's conversions of 8-bit floats take otherwise than ours, by type. {} where it has none."""
    if not converts_fp8(torch.device("cuda")):
        return {}
    # Not above, as in `_move`.
    from acmserve.bench.gpu.kernel.rounding import count_other

    return count_other("cuda")


def main(argv: Sequence[str] | None = None) -> int:
    """Print the table, write JSON where asked. Returns 1 where a result was wrong, 2 where nothing can be measured."""
    options = parse(argv)
    if options.cpu_check:
        os.environ["TRITON_INTERPRET"] = "1"
    import triton  # type: ignore[import-untyped]

    known = {shape.name: shape for shape in MODELS}
    unknown = [name for name in options.models or () if name not in known]
    if unknown:
        print(f"unknown model {unknown[0]}; known are {', '.join(known)}", file=sys.stderr)
        return 2
    if not options.cpu_check and not torch.cuda.is_available():
        print("no CUDA device: run this on a GPU, or with --cpu-check to try the program itself", file=sys.stderr)
        return 2
    wanted = [known[name] for name in options.models or known]
    shapes = [replace(shape, kv_type=TYPES[name]) for shape in wanted for name in options.types]
    if options.cpu_check:
        shapes, options.tokens, options.repetitions = [shape.tiny() for shape in shapes], [70], 1
    machine = describe_machine()
    machine["versions"]["triton"] = triton.__version__
    machine["gpu"] = "none: Triton's interpreter" if options.cpu_check else torch.cuda.get_device_name()
    machine["cuda"] = torch.version.cuda
    machine["attention"] = library_on("cpu" if options.cpu_check else "cuda")
    print(f"{machine['gpu']}, torch {torch.__version__}, triton {triton.__version__}")
    rows, right = measure(shapes, options, "cpu" if options.cpu_check else "cuda")
    slow = [] if options.cpu_check else below_bar(rows)
    other = {} if options.cpu_check else other_roundings()
    right = right and not any(other.values())
    print("\n".join([*slow, *(f"{name}: {num} numbers are converted otherwise" for name, num in other.items() if num)]))
    if options.json is not None:
        kind = {"correct": right, "cpu_check": options.cpu_check}
        report = {
            "machine": machine,
            **kind,
            "below_bar": slow,
            "other_roundings": other,
            "rows": [asdict(row) for row in rows],
        }
        write_whole(options.json, as_json(report))
    return 0 if right and not slow else 1


if __name__ == "__main__":
    sys.exit(main())
