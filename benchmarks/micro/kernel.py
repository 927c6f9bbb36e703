"""Bandwidth of the CPU move beside memcpy of the same bytes on the same threads: `acmserve bench kernel`.

Each row moves tokens in every layer of a SmolLM2-135M-shaped KV cache (30 layers, 3 KV heads, head size 64, blocks of
128). Move and memcpy take turns, so that other work on the machine falls on both. Before a row is timed its result is
compared with the reference, element by element, in the first and the last layer; where that fails nothing is printed
for it and the exit code is 1.

memcpy copies one contiguous piece of memory per thread, the best case for it; neither side finds its bytes in the
caches. Two distances between offsets are measured, because a move reads and writes different parts of two blocks:
`move` (from 100 to 20) and `odd` (from 31 to 0, lines and words shifted against each other). Bytes are counted once (a
memcpy of 1 GB is 1 GB, not 2).

At the end of each type every core is kept busy by another process, and one thread and all of them move in turns; the
row `busy` says how much faster all of them were (with five times the repetitions, because time slices scatter).
"""

from __future__ import annotations

import argparse
import ctypes
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from itertools import pairwise

import numpy as np
import torch

from acmserve.bench.harness.benchmark import Benchmark
from acmserve.bench.harness.machine import describe_machine, one_line
from acmserve.bench.harness.options import add_report_options
from acmserve.kernels.dispatch import LayerMover
from acmserve.kernels.layout import KVLayer
from acmserve.kernels.layouts.cpu_amx import CpuAmxLayout
from acmserve.kernels.layouts.cpu_vec import CpuVecLayout
from acmserve.kernels.movers import reference
from acmserve.kernels.rope import Rope
from acmserve.kernels.slots import SlotRun, slot_range

NUM_LAYERS, NUM_HEADS, HEAD_SIZE, BLOCK_SIZE = 30, 3, 64, 128
TYPES = {
    "float32 vec": (torch.float32, CpuVecLayout),
    "bfloat16 vec": (torch.bfloat16, CpuVecLayout),
    "float16 vec": (torch.float16, CpuVecLayout),
    "bfloat16 amx": (torch.bfloat16, CpuAmxLayout),
}
# Delta, offset in the first source block, offset in the first destination block.
MOVES = {"copy": (0, 0, 0), "move": (-1980, 100, 20), "odd": (-31, 31, 0)}
# Twice the storage type's half ulp, relative to the key's norm.
TOLERANCE = {torch.float32: 4e-6, torch.bfloat16: 2.0**-7, torch.float16: 2.0**-10}


@dataclass(frozen=True, slots=True)
class KernelRow:
    """One measurement; times are medians in milliseconds, bandwidths in 10^9 bytes per second."""

    kv: str
    what: str
    num_tokens: int
    num_threads: int
    move_ms: float
    memcpy_ms: float
    move_gb_s: float
    memcpy_gb_s: float
    ratio: float


@dataclass(frozen=True, slots=True)
class BusyRow:
    """The same move with every core busy, by one thread and by `num_threads`; medians in milliseconds."""

    kv: str
    num_tokens: int
    num_threads: int
    one_thread_ms: float
    all_threads_ms: float
    speedup: float


class KernelBench:
    """One KV cache type: its layers, filled once, and the moves timed on them."""

    def __init__(self, kv: str, num_tokens: int) -> None:
        dtype, kind = TYPES[kv]
        self._kv, self._num_tokens = kv, num_tokens
        self._blocks = num_tokens // BLOCK_SIZE + 2
        layout = kind(NUM_HEADS, BLOCK_SIZE, HEAD_SIZE)
        inv_freq = 10_000.0 ** (-np.arange(0, HEAD_SIZE, 2) / HEAD_SIZE)
        rope = Rope(tuple(inv_freq.tolist()), HEAD_SIZE, True)
        shape = (2 * self._blocks, NUM_HEADS, BLOCK_SIZE, 2 * HEAD_SIZE)
        generator = torch.Generator().manual_seed(1)
        caches = [torch.randn(shape, generator=generator).to(dtype) for _ in range(NUM_LAYERS)]
        self._layers = [KVLayer(cache, layout, rope) for cache in caches]
        self.num_bytes = 2 * num_tokens * NUM_LAYERS * NUM_HEADS * HEAD_SIZE * caches[0].element_size()

    def run(self, what: str, num_threads: int, repetitions: int) -> KernelRow | None:
        """Measure one move; None where the result is wrong."""
        src, dst, delta = self._slots(what)
        segments = [SlotRun(0, self._num_tokens, delta)]
        mover = LayerMover(self._layers, num_threads)
        mover.move(src, dst, segments)
        if not all(is_right(layer, src, dst, delta) for layer in (self._layers[0], self._layers[-1])):
            return None
        with Memcpy(self.num_bytes, num_threads) as memcpy:
            move_s, memcpy_s = take_turns(lambda: mover.move(src, dst, segments), memcpy.run, repetitions)
        return KernelRow(
            kv=self._kv,
            what=what,
            num_tokens=self._num_tokens,
            num_threads=num_threads,
            move_ms=round(1e3 * move_s, 2),
            memcpy_ms=round(1e3 * memcpy_s, 2),
            move_gb_s=round(self.num_bytes / move_s / 1e9, 2),
            memcpy_gb_s=round(self.num_bytes / memcpy_s / 1e9, 2),
            ratio=round(memcpy_s / move_s, 3),
        )

    def run_busy(self, num_threads: int, repetitions: int) -> BusyRow:
        """One thread and `num_threads` in turns, while other processes want every core."""
        src, dst, delta = self._slots("move")
        segments = [SlotRun(0, self._num_tokens, delta)]
        one, many = (LayerMover(self._layers, count) for count in (1, num_threads))
        with BusyCores():
            one_s, many_s = take_turns(
                lambda: one.move(src, dst, segments), lambda: many.move(src, dst, segments), 5 * repetitions
            )
        return BusyRow(
            kv=self._kv,
            num_tokens=self._num_tokens,
            num_threads=num_threads,
            one_thread_ms=round(1e3 * one_s, 2),
            all_threads_ms=round(1e3 * many_s, 2),
            speedup=round(one_s / many_s, 3),
        )

    def _slots(self, what: str) -> tuple[torch.Tensor, torch.Tensor, int]:
        delta, src_offset, dst_offset = MOVES[what]
        src = slot_range(range(self._blocks), src_offset, self._num_tokens, BLOCK_SIZE)
        dst = slot_range(range(self._blocks, 2 * self._blocks), dst_offset, self._num_tokens, BLOCK_SIZE)
        return src, dst, delta


class BusyCores:
    """One process per usable core that does nothing but want it."""

    def __enter__(self) -> BusyCores:
        command = [sys.executable, "-c", "while True: pass"]
        self._processes = [subprocess.Popen(command) for _ in os.sched_getaffinity(0)]
        return self

    def __exit__(self, *error: object) -> None:
        for process in self._processes:
            process.kill()
            process.wait()


class Memcpy:
    """memcpy of `num_bytes` on `num_threads` threads (ctypes lets go of the GIL)."""

    def __init__(self, num_bytes: int, num_threads: int) -> None:
        self._src, self._dst = torch.ones(num_bytes, dtype=torch.uint8), torch.zeros(num_bytes, dtype=torch.uint8)
        cuts = [num_bytes * i // num_threads for i in range(num_threads + 1)]
        self._parts = list(pairwise(cuts))
        self._pool = ThreadPoolExecutor(num_threads)

    def __enter__(self) -> Memcpy:
        return self

    def __exit__(self, *error: object) -> None:
        self._pool.shutdown()

    def run(self) -> None:
        """Copy everything once."""
        list(self._pool.map(self._copy, self._parts))

    def _copy(self, part: tuple[int, int]) -> None:
        begin, end = part
        ctypes.memmove(self._dst.data_ptr() + begin, self._src.data_ptr() + begin, end - begin)


def is_right(layer: KVLayer, src: torch.Tensor, dst: torch.Tensor, delta: int) -> bool:
    """The gate: V bit for bit, K as the reference rotates it."""
    key, value = reference.gather(layer.kv, layer.layout, src)
    moved_key, moved_value = reference.gather(layer.kv, layer.layout, dst)
    if delta == 0:
        return bool(torch.equal(moved_key, key) and torch.equal(moved_value, value))
    assert layer.rope is not None
    exact = reference.rotate(key, layer.rope, delta)
    allowed = TOLERANCE[key.dtype] * key.double().norm(dim=-1, keepdim=True)
    return bool(torch.equal(moved_value, value) and ((moved_key.double() - exact).abs() <= allowed).all())


def take_turns(first: Callable[[], None], second: Callable[[], None], repetitions: int) -> tuple[float, float]:
    """Median seconds of both, measured alternately after one warm-up each."""
    times: tuple[list[float], list[float]] = ([], [])
    for repetition in range(repetitions + 1):
        for function, taken in zip((first, second), times, strict=True):
            begin = time.perf_counter()
            function()
            if repetition > 0:
                taken.append(time.perf_counter() - begin)
    return statistics.median(times[0]), statistics.median(times[1])


def main(argv: Sequence[str] | None = None) -> int:
    """Print the table, write the JSON file; 1 where a result was wrong."""
    parser = argparse.ArgumentParser(
        prog="acmserve bench kernel", description="Bandwidth of the CPU KV move beside memcpy of the same bytes."
    )
    parser.add_argument("--tokens", type=int, default=3000, help="tokens moved (default: 3000)")
    parser.add_argument("--threads", type=int, nargs="+", default=[1, 2], help="thread counts (default: 1 2)")
    parser.add_argument("--repetitions", type=int, default=9, help="timed repetitions per row (default: 9)")
    add_report_options(parser, quick="three repetitions: a look, not a measurement", plot=False)
    options = parser.parse_args(argv)
    if options.quick:
        options.repetitions = 3
    if min(options.tokens, options.repetitions, *options.threads) < 1:
        parser.error("--tokens, --threads and --repetitions must be at least 1")
    machine = describe_machine()
    print(one_line(machine))
    print(f"{'KV cache':14}{'what':6}{'tokens':>8}{'threads':>9}{'move':>12}{'memcpy':>12}{'move':>13}{'ratio':>8}")
    rows, busy_rows, right = [], [], True
    for kv in TYPES:
        bench = KernelBench(kv, options.tokens)
        for what in MOVES:
            for num_threads in options.threads:
                row = bench.run(what, num_threads, options.repetitions)
                if row is None:
                    right = False
                    print(f"{kv:14}{what:6}: the result differs from the reference; not timed")
                    continue
                rows.append(row)
                print(
                    f"{row.kv:14}{row.what:6}{row.num_tokens:8}{row.num_threads:9}{row.move_ms:9.2f} ms"
                    f"{row.memcpy_ms:9.2f} ms{row.move_gb_s:8.2f} GB/s{row.ratio:8.0%}",
                    flush=True,
                )
        if max(options.threads) > 1 and right:
            busy = bench.run_busy(max(options.threads), options.repetitions)
            busy_rows.append(busy)
            print(
                f"{busy.kv:14}busy  {busy.num_tokens:8}{busy.num_threads:9}{busy.all_threads_ms:9.2f} ms; "
                f"one thread {busy.one_thread_ms:.2f} ms: {busy.speedup:.2f} times as fast",
                flush=True,
            )
    if options.json is not None:
        report = {
            "machine": machine,
            "correct": right,
            "rows": [asdict(row) for row in rows],
            "busy": [asdict(row) for row in busy_rows],
        }
        options.json.write_text(json.dumps(report, indent=2) + "\n", encoding="utf-8")
    return 0 if right else 1


BENCHMARK = Benchmark("kernel", "bandwidth of the KV move, beside memcpy of the same bytes", main)


if __name__ == "__main__":
    sys.exit(main())
